"""How long it took to recover, from the ledger: no process under test is asked."""

from __future__ import annotations

import bisect
from collections import defaultdict

import msgspec

from chaos.injector import Injected
from chaos.ledger import AttemptRecord, Start

KILLS = frozenset({"kill", "kill_group"})
RESTART_BAR_SECONDS = 5.0
_NOT_CLEAN = frozenset(
    {
        "kill_postmaster",
        "crash",
        "restart",
        "outage",
        "failover",
        "read_only",
        "disk_full",
        "timeouts",
        "lock_table",
        "lock_rows",
        "connection_limit",
        "pause_standby",
        "stop_backend",
        "swallow",
        "refuse",
        "isolate",
        "delay",
        "terminate_backends",
        "cancel_backends",
        "cut",
        "lose_answers",
        "kill_pooler",
    }
)
"""What holds a recovery up by itself. One that such a fault overlaps is counted apart."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Measured times, in seconds, and what they should stay under."""

    count: int
    bar: float
    over_bar: int = 0
    median: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """All of them."""

    after_kill: Spread
    """From the kill of a worker to the next start of each job it was running, with nothing else in the way."""
    after_kill_amid_faults: Spread
    """The same, while other faults were in the way."""
    after_restart: Spread
    """From when PostgreSQL takes connections again to the first start of a job."""


def measure(
    injected: list[Injected], attempts: list[AttemptRecord], *, lease_seconds: float, recovery_seconds: float
) -> Measures:
    """Work them out."""
    starts: dict[str, list[Start]] = defaultdict(list)
    by_pid: dict[int, list[Start]] = defaultdict(list)
    ended: dict[tuple[str, int], float] = {}
    for record in attempts:
        if isinstance(record, Start):
            starts[record.job].append(record)
            by_pid[record.pid].append(record)
            # What a job's child runs is lost along with the worker over it.
            by_pid[record.parent].append(record)
        else:
            ended[record.job, record.token] = record.monotonic
    bar = lease_seconds + recovery_seconds
    unclean = [(one.began, one.over) for one in injected if one.fault.kind in _NOT_CLEAN and one.error is None]
    clean: list[float] = []
    amid: list[float] = []
    for one in injected:
        if one.fault.kind not in KILLS:
            continue
        for pid in one.killed:
            for seconds, direct in _recoveries(one.began, by_pid[pid], starts, ended):
                overlapped = not direct or any(
                    began < one.began + bar and over > one.began - bar for began, over in unclean
                )
                (clean if direct and not overlapped else amid).append(seconds)
    return Measures(
        after_kill=spread(clean, bar),
        after_kill_amid_faults=spread(amid, bar),
        after_restart=spread(_first_starts(injected, attempts), RESTART_BAR_SECONDS),
    )


def _recoveries(
    killed_at: float, began: list[Start], starts: dict[str, list[Start]], ended: dict[tuple[str, int], float]
) -> list[tuple[float, bool]]:
    """
    For each attempt that was under way: how long until its job was started again.

    And whether that was by the next claim of it, rather than after another that died before it began.
    """
    found = []
    for start in began:
        if start.monotonic > killed_at or ended.get((start.job, start.token), killed_at + 1) <= killed_at:
            continue
        later = [other for other in starts[start.job] if other.token > start.token]
        first = min(later, key=lambda other: other.token, default=None)
        # Earlier than the kill: the lease was lost before, and the attempt never got to say that it had ended.
        if first is not None and first.monotonic > killed_at:
            found.append((first.monotonic - killed_at, first.token == start.token + 1))
    return found


def _first_starts(injected: list[Injected], attempts: list[AttemptRecord]) -> list[float]:
    moments = sorted(record.monotonic for record in attempts if isinstance(record, Start))
    downs = [(one.began, one.accepted) for one in injected if one.accepted is not None]
    found = []
    for _, accepted in downs:
        # Not when it went down again before anything could start.
        again = min((began for began, _ in downs if began > accepted), default=float("inf"))
        place = bisect.bisect_left(moments, accepted)
        if place < len(moments) and moments[place] < again:
            found.append(moments[place] - accepted)
    return found


def spread(values: list[float], bar: float) -> Spread:
    """Sum *values* up."""
    if not values:
        return Spread(count=0, bar=bar)
    values = sorted(values)

    def at(share: float) -> float:
        return round(values[min(len(values) - 1, int(share * len(values)))], 3)

    return Spread(
        count=len(values),
        bar=bar,
        over_bar=sum(value > bar for value in values),
        median=at(0.5),
        p95=at(0.95),
        p99=at(0.99),
        max=round(values[-1], 3),
    )
