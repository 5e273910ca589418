"""From what was noted to figures: rates between two counts, percentiles. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Progress(msgspec.Struct, frozen=True):
    """How many handlers had started when."""

    at_ns: int
    started: int


def merged(series: Sequence[Sequence[Progress]]) -> list[Progress]:
    """The progress of several processes as one."""
    counts = [0] * len(series)
    total: list[Progress] = []
    for at, index, started in sorted(
        (one.at_ns, index, one.started) for index, one_series in enumerate(series) for one in one_series
    ):
        counts[index] = started
        total.append(Progress(at, sum(counts)))
    return total


def rate_between(samples: Sequence[Progress], first_ns: int, low: int, high: int) -> float | None:
    """
    Jobs a second between the *low*-th and the *high*-th start, read between the samples.

    *first_ns* is when the first one started. None where the samples are too few to tell.
    """

    def when(count: int) -> float:
        before = Progress(first_ns, 0)
        for sample in samples:
            # A process also reports that nothing has started yet, and the clock doesn't run until something has.
            if sample.started <= before.started:
                continue
            if sample.started >= count:
                share = (count - before.started) / (sample.started - before.started)
                return before.at_ns + share * (sample.at_ns - before.at_ns)
            before = sample
        return float(before.at_ns)

    seconds = (when(high) - when(low)) / 1e9
    return (high - low) / seconds if seconds > 0 else None


def percentiles(nanoseconds: Sequence[int]) -> dict[str, float | None]:
    """The median and the tail, in milliseconds; None without a value."""
    ordered = sorted(nanoseconds)
    return {
        f"p{share}_ms": ordered[min(len(ordered) - 1, len(ordered) * share // 100)] / 1e6 if ordered else None
        for share in (50, 95, 99)
    }
