"""How long it took to recover, from the ledger: no process under test is asked."""

from __future__ import annotations

import bisect
from collections import defaultdict

import msgspec

from chaos.evidence import Evidence
from chaos.injector import Injected
from chaos.ledger import Start

KILLS = frozenset({"kill", "kill_group"})
RESTART_BAR_SECONDS = 5.0
BEFORE_SECONDS = 1.5
"""A fault that was over so long before holds nothing up any more."""


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
    """All of them. What other faults overlap is counted apart: they may be why it took long."""

    given_back: Spread
    """From the kill of a worker until the jobs it ran were pending again, or dead letters."""
    given_back_amid_faults: Spread
    after_kill: Spread
    """From the kill of a worker until a job it ran was started again; other jobs may come first."""
    after_kill_amid_faults: Spread
    after_restart: Spread
    """From when PostgreSQL takes connections again to the first start of a job."""
    after_restart_amid_faults: Spread


def measure(evidence: Evidence, injected: list[Injected], *, recovery_seconds: float) -> Measures:
    """Work them out."""
    bar = evidence.lease_seconds + recovery_seconds
    faults = [one for one in injected if one.error is None]
    under_way = _Attempts(evidence)
    back: _Halves = ([], [])
    again: _Halves = ([], [])
    for one in injected:
        if one.fault.kind not in KILLS:
            continue
        apart = _overlapped(one, faults, one.began, one.began + bar)
        for start in under_way.at(one.began, one.killed):
            back[apart].extend(under_way.given_back(start, one.began))
            for seconds, direct in under_way.started_again(start, one.began):
                again[apart or not direct].append(seconds)
    restarts = _restarts(faults, evidence)
    return Measures(
        given_back=spread(back[False], bar),
        given_back_amid_faults=spread(back[True], bar),
        after_kill=spread(again[False], bar),
        after_kill_amid_faults=spread(again[True], bar),
        after_restart=spread(restarts[False], RESTART_BAR_SECONDS),
        after_restart_amid_faults=spread(restarts[True], RESTART_BAR_SECONDS),
    )


_Halves = tuple[list[float], list[float]]
"""Those by themselves, and those amid other faults."""


class _Attempts:
    """The attempts of the ledger, by job and by process."""

    def __init__(self, evidence: Evidence) -> None:
        self._offset = evidence.wall_offset
        self._by_job: dict[str, list[Start]] = defaultdict(list)
        self._by_pid: dict[int, list[Start]] = defaultdict(list)
        self._ended: dict[tuple[str, int], float] = {}
        self._lost = {(row.id, row.token): row.ended_at for row in evidence.attempt_rows if row.outcome == "lost"}
        for record in evidence.attempts:
            if isinstance(record, Start):
                self._by_job[record.job].append(record)
                # What a job's child runs is lost along with the worker over it.
                for pid in {record.pid, record.parent}:
                    self._by_pid[pid].append(record)
            else:
                self._ended[record.job, record.token] = record.monotonic

    def at(self, moment: float, pids: list[int]) -> list[Start]:
        """What these processes were at in a moment, as far as the ledger knows."""
        return [
            start
            for pid in pids
            for start in self._by_pid[pid]
            if start.monotonic <= moment < self._ended.get((start.job, start.token), moment + 1)
        ]

    def given_back(self, start: Start, killed_at: float) -> list[float]:
        """How long after the kill this attempt was declared lost, if it was after the kill."""
        at = self._lost.get((start.job, start.token), 0.0) - self._offset
        return [at - killed_at] if at > killed_at else []

    def started_again(self, start: Start, killed_at: float) -> list[tuple[float, bool]]:
        """
        How long after the kill this job was started again.

        And whether that was by the next claim of it, rather than after one that died before it began.
        """
        first = min(
            (other for other in self._by_job[start.job] if other.token > start.token),
            key=lambda other: other.token,
            default=None,
        )
        # Earlier than the kill: the lease was lost before, and the attempt never got to say that it had ended.
        if first is None or first.monotonic <= killed_at:
            return []
        return [(first.monotonic - killed_at, first.token == start.token + 1)]


def _overlapped(one: Injected, faults: list[Injected], begin: float, end: float) -> bool:
    """Whether another fault was there in that time."""
    return any(other is not one and other.began < end and other.over > begin - BEFORE_SECONDS for other in faults)


def _restarts(faults: list[Injected], evidence: Evidence) -> _Halves:
    moments = sorted(record.monotonic for record in evidence.attempts if isinstance(record, Start))
    found: _Halves = ([], [])
    # One worker of several that is killed holds the first job up by nothing.
    faults = [one for one in faults if one.fault.kind not in KILLS]
    for one in faults:
        if one.accepted is None:
            continue
        # Not when it went down again before anything could start.
        again = min((other.began for other in faults if other.accepted and other.began > one.accepted), default=1e300)
        place = bisect.bisect_left(moments, one.accepted)
        if place == len(moments) or moments[place] > again:
            continue
        until = one.accepted + RESTART_BAR_SECONDS
        apart = _overlapped(one, faults, one.accepted, until)
        found[apart].append(moments[place] - one.accepted)
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
