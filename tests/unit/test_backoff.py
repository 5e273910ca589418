"""How long a failed job waits: the bounds hold for every attempt there can be, and some there can't."""

from __future__ import annotations

import math
import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.domain.backoff import Exponential

seconds = st.floats(min_value=0, max_value=1e9, allow_nan=False)


def test_it_doubles_from_the_base_to_the_ceiling() -> None:
    backoff = Exponential(base_seconds=1, ceiling_seconds=300)
    assert [backoff.bound(attempt) for attempt in range(1, 12)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_the_delay_lies_between_half_the_bound_and_the_bound() -> None:
    backoff = Exponential(base_seconds=8, ceiling_seconds=300)
    drawn = [backoff.delay(3) for _ in range(2_000)]
    assert 16 <= min(drawn) < 16.5
    assert 31.5 < max(drawn) <= 32
    assert 23 < sum(drawn) / len(drawn) < 25, "drawn uniformly"


def test_the_ends_of_the_range_can_be_drawn() -> None:
    backoff = Exponential(base_seconds=4, ceiling_seconds=300)
    assert backoff.delay(1, draw=lambda low, high: low) == 2
    assert backoff.delay(1, draw=lambda low, high: high) == 4


@pytest.mark.parametrize("attempt", [16, 47, 100, 1_023, 1_024, 1_100, 4_999, 10**9, sys.maxsize, 10**400])
@pytest.mark.parametrize("base", [5e-324, 0.001, 1.0, 5.0, 1e300])
def test_no_attempt_overflows(attempt: int, base: float) -> None:
    backoff = Exponential(base_seconds=base, ceiling_seconds=1800)
    assert 0 < backoff.delay(attempt) <= 1800


@given(base=seconds, ceiling=seconds, attempt=st.integers(), seed=st.integers())
def test_the_delay_is_never_negative_never_more_than_the_ceiling(
    base: float, ceiling: float, attempt: int, seed: int
) -> None:
    delay = Exponential(base_seconds=base, ceiling_seconds=ceiling).delay(attempt, draw=random.Random(seed).uniform)
    assert math.isfinite(delay)
    assert 0 <= delay <= ceiling


@given(base=seconds, ceiling=seconds, attempt=st.integers(min_value=1, max_value=200))
def test_the_bound_is_the_formula_and_never_shrinks(base: float, ceiling: float, attempt: int) -> None:
    backoff = Exponential(base_seconds=base, ceiling_seconds=ceiling)
    assert backoff.bound(attempt) == min(base * 2.0 ** (attempt - 1), ceiling)
    assert backoff.bound(attempt) <= backoff.bound(attempt + 1)


def test_a_base_of_zero_never_waits() -> None:
    assert Exponential(base_seconds=0, ceiling_seconds=300).delay(50) == 0
