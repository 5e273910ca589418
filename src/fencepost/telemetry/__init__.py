"""What the service says about itself: events, metrics, logs."""
