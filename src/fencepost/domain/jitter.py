"""What spreads waits at random, so that many who met one outage don't come back together."""

from __future__ import annotations

import random

_system = random.SystemRandom()
"""
Ours alone: `random.seed` is the program's.

Of a program that seeds it, every process would otherwise draw the same waits and come back with
all the others; and our draws, from threads of ours, would change what its own seed promises.
"""


def between(low: float, high: float) -> float:
    """Draw evenly from *low* to *high*. Safe from any thread and after a fork."""
    return _system.uniform(low, high)
