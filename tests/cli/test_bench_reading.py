"""From what a benchmark noted to its figures."""

from __future__ import annotations

import pytest

from fencepost.cli.bench.reading import Progress, merged, percentiles, rate_between

SECOND = 1_000_000_000


def test_progress_of_several_processes_is_one_rising_count() -> None:
    one = [Progress(10, 1), Progress(30, 4)]
    other = [Progress(20, 2), Progress(40, 5)]
    assert merged([one, other]) == [Progress(10, 1), Progress(20, 3), Progress(30, 6), Progress(40, 9)]
    assert merged([one, []]) == one
    assert merged([]) == []


def test_a_rate_is_read_between_the_samples() -> None:
    samples = [Progress(2 * SECOND, 100), Progress(3 * SECOND, 300), Progress(5 * SECOND, 400)]
    assert rate_between(samples, SECOND, 0, 100) == pytest.approx(100)
    assert rate_between(samples, SECOND, 100, 200) == pytest.approx(200)
    assert rate_between(samples, SECOND, 300, 400) == pytest.approx(50)
    assert rate_between(samples, SECOND, 50, 350) == pytest.approx(300 / 2.5)


def test_a_rate_does_not_count_the_time_before_the_first_start() -> None:
    samples = [Progress(0, 0), Progress(3 * SECOND, 0), Progress(5 * SECOND, 100)]
    assert rate_between(samples, 4 * SECOND, 0, 100) == pytest.approx(100)


def test_a_rate_that_cannot_be_told_is_none() -> None:
    assert rate_between([], SECOND, 0, 10) is None
    assert rate_between([Progress(SECOND, 10)], SECOND, 0, 10) is None


def test_percentiles_are_in_milliseconds() -> None:
    assert percentiles([n * 1_000_000 for n in range(100)]) == {"p50_ms": 50, "p95_ms": 95, "p99_ms": 99}
    assert percentiles([7_000_000]) == {"p50_ms": 7, "p95_ms": 7, "p99_ms": 7}
    assert percentiles([]) == {"p50_ms": None, "p95_ms": None, "p99_ms": None}
