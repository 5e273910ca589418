"""How long a failed job waits before its next attempt."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from fencepost.domain.jitter import between

Draw = Callable[[float, float], float]


class Exponential(msgspec.Struct, frozen=True):
    """
    Exponential growth to a ceiling, spread at random.

    The delay after attempt n is drawn uniformly from [c × (1 − jitter), c] with
    c = min(base × factor^(n−1), ceiling), so that jobs which failed together don't come
    back together.
    """

    base_seconds: float = 1.0
    ceiling_seconds: float = 300.0
    factor: float = 2.0
    jitter: float = 0.5
    """0 is none, 1 spreads over the whole delay."""

    def bound(self, attempt: int) -> float:
        """The longest delay after *attempt*, in seconds. Never overflows, whatever the attempt."""
        try:
            return min(self.base_seconds * self.factor ** min(max(attempt, 1) - 1, 1000), self.ceiling_seconds)
        except OverflowError:
            return self.ceiling_seconds if self.base_seconds else 0.0

    def delay(self, attempt: int, *, draw: Draw = between) -> float:
        """Draw the delay after *attempt*, in seconds."""
        return _spread(self.bound(attempt), self.jitter, draw)


class Linear(msgspec.Struct, frozen=True):
    """After attempt n: n × step, up to a ceiling, spread at random like `Exponential`."""

    step_seconds: float = 10.0
    ceiling_seconds: float = 300.0
    jitter: float = 0.5

    def delay(self, attempt: int, *, draw: Draw = between) -> float:
        """Draw the delay after *attempt*, in seconds."""
        return _spread(min(self.step_seconds * max(attempt, 1), self.ceiling_seconds), self.jitter, draw)


class Constant(msgspec.Struct, frozen=True):
    """The same after each attempt, spread at random like `Exponential`; by default not spread."""

    seconds: float = 10.0
    jitter: float = 0.0

    def delay(self, attempt: int, *, draw: Draw = between) -> float:
        """Draw the delay after *attempt*, in seconds."""
        return _spread(self.seconds, self.jitter, draw)


Backoff = Exponential | Linear | Constant | Callable[[int], float]
"""What a job type may say: one of these three, or a function of the attempt that has failed (1 for the first)."""


def delay_after(backoff: Backoff, attempt: int, *, ceiling_seconds: float) -> float:
    """
    The delay after *attempt*, from 0 to *ceiling_seconds*, whatever number a caller's own function answers.

    Raises what such a function raises, and ValueError for what is no number.
    """
    seconds = float(backoff(attempt) if callable(backoff) else backoff.delay(attempt))
    if math.isnan(seconds):
        raise ValueError("the delay is not a number")
    return min(max(seconds, 0.0), ceiling_seconds)


def pause_after(failures: int, *, first_seconds: float, longest_seconds: float) -> float:
    """
    How long a loop of ours waits after so many failures in a row, in seconds: twice as long with each, up to a limit.

    Spread over the upper half, so that many who met one outage don't come back together.
    """
    return min(first_seconds * 2.0 ** min(failures, 10), longest_seconds) * between(0.5, 1.0)


def _spread(bound: float, jitter: float, draw: Draw) -> float:
    return draw(bound * (1 - jitter), bound)
