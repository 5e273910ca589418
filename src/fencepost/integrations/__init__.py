"""What fits fencepost into other frameworks, where a few lines in an example aren't enough."""
