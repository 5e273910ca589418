"""The HTTP API against whatever may be sent to it, and payloads from every door to every other."""
