"""How long tests wait for a sign."""

from __future__ import annotations

LONGEST_SECONDS = 20.0
"""Below the 30 seconds at which the tests' workers poll, so that a lost wake-up still fails a test."""
TIMER_SECONDS = 0.005
"""How much early a timer may fire: event loops count in whole milliseconds, from when they last looked at the clock."""


def limit(seconds: float) -> float:
    """
    What a test waits for something that takes up to *seconds* where nothing else runs.

    A machine that does other work, or whose disk stalls, takes several times as long; a sign that never comes is
    only found out a little later.
    """
    return max(seconds, min(4 * seconds, LONGEST_SECONDS))
