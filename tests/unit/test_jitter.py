"""Waits are spread by a generator of our own: what a program does with `random.seed` is its own affair."""

from __future__ import annotations

import random

from fencepost.domain.backoff import Constant, Exponential, Linear, pause_after
from fencepost.domain.jitter import between


def waits() -> list[float]:
    """One of each that we draw."""
    backoffs = (Exponential(), Linear(), Constant(jitter=1.0))
    return [*(backoff.delay(3) for backoff in backoffs), pause_after(2, first_seconds=1, longest_seconds=60)]


def test_processes_that_seed_alike_do_not_wait_alike() -> None:
    drawn = []
    for _ in range(20):
        random.seed(42)
        drawn.append(tuple(waits()))
    assert len(set(drawn)) == 20


def test_our_draws_leave_the_programs_sequence_as_it_was() -> None:
    random.seed(42)
    before = random.getstate()
    waits()
    assert random.getstate() == before


def test_draws_fill_the_range_they_are_given() -> None:
    drawn = [between(2.0, 4.0) for _ in range(4_000)]
    assert 2.0 <= min(drawn) < 2.1
    assert 3.9 < max(drawn) <= 4.0
    assert 2.9 < sum(drawn) / len(drawn) < 3.1
