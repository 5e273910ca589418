"""How long a failed job waits before its next attempt."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec


class Backoff(msgspec.Struct, frozen=True):
    """
    Exponential growth to a ceiling, spread at random.

    The delay after attempt n is drawn uniformly from [c/2, c] with
    c = min(base × 2^(n−1), ceiling), so that jobs which failed together don't come
    back together.
    """

    base_seconds: float = 1.0
    ceiling_seconds: float = 300.0

    def bound(self, attempt: int) -> float:
        """The longest delay after *attempt*, in seconds. Never overflows, whatever the attempt."""
        # 2^1000 still fits a float; any base that isn't zero has reached its ceiling by then.
        return min(self.base_seconds * 2.0 ** min(max(attempt, 1) - 1, 1000), self.ceiling_seconds)

    def delay(self, attempt: int, *, draw: Callable[[float, float], float] = random.uniform) -> float:
        """Draw the delay after *attempt*, in seconds."""
        bound = self.bound(attempt)
        return draw(bound / 2, bound)
