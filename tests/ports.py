"""Ports of loopback, for programs that have to be told theirs."""

from __future__ import annotations

import random
import socket

_NOT_GIVEN_AWAY = range(12_000, 32_768)
"""Systems take the ports of those who don't care from above: none of these goes to somebody else meanwhile."""


def free_port() -> int:
    """A port that nobody listens on. It may be left and taken again: no other test is given it by chance."""
    # Drawn by the system: tests seed Python's own numbers, and those that run at the same time would draw the same.
    ports = random.SystemRandom()
    while True:
        port = ports.choice(_NOT_GIVEN_AWAY)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
