"""
Goes through the history and removes what has been kept long enough, in small steps with rests between.

What a step does, and why it is safe beside everything else, is said in
`store/retention.py` and in the SQL that it calls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import UUID

import msgspec

from fencepost.domain.jitter import between
from fencepost.errors import DatabaseUnavailable
from fencepost.logger import get_logger
from fencepost.store.failures import for_operator, is_outage, waited_too_long
from fencepost.store.retention import MOVED_JOBS, NotOurTurn, Retention, Span, Step, Survey
from fencepost.telemetry.events import Events
from fencepost.telemetry.pulses import Pulse, unwatched
from fencepost.worker.maintenance import repeat

log = get_logger("fencepost.retention")

EVERY_SECONDS = 3600.0
FIRST_AFTER_SECONDS = 60.0
"""A process first serves, and prunes within a minute or so: many that start together don't come at once."""
DELETED_ROWS = 1000
SURVEYED_ROWS = 10_000
"""The most that one step looks at."""
FEWEST_ROWS = 10
QUICK_SECONDS, SLOW_SECONDS = 0.05, 0.2
"""A step that takes less is followed by a larger one, and one that takes more by a smaller one."""
REST = 2.0
"""How long a rest is, in the length of the step before it: one third of one connection's time is used."""
LONGEST_REST_SECONDS = 2.0
TRIES = 10
"""How often a lock is asked for before its range is left for the next time."""

Answer = TypeVar("Answer")


class Report(msgspec.Struct):
    """What one run did."""

    jobs: int = 0
    """Jobs that went, with all that is theirs."""
    keys: int = 0
    """Idempotency keys."""
    unique_keys: int = 0
    """Unique keys that kept nothing away any more."""
    ranges: int = 0
    """Ranges whose partitions were dropped."""
    moved: int = 0
    """Jobs that were moved out of those."""
    left: int = 0
    """Ranges that are ready to be dropped, but for a lock that wasn't to be had."""
    interrupted: bool = False
    """Another process is pruning; this one left it to that."""


class Pace:
    """Keeps steps short, however large the rows and however slow the disk, and rests after each."""

    def __init__(self, most_rows: int, *, rest: float = REST) -> None:
        self._most = most_rows
        self._rest = rest
        self.rows = min(most_rows, 200)

    async def take(self, step: Callable[[int], Awaitable[Answer]]) -> Answer:
        """Do a step of so many rows; one that is cut off, by a time-out of the role say, again with fewer."""
        while True:
            began = time.monotonic()
            try:
                answer = await step(self.rows)
            except DatabaseUnavailable:
                if self.rows <= FEWEST_ROWS:
                    raise
                self.rows = max(FEWEST_ROWS, self.rows // 4)
                await asyncio.sleep(0.5)
                continue
            took = time.monotonic() - began
            if took > SLOW_SECONDS:
                self.rows = max(FEWEST_ROWS, self.rows // 2)
            elif took < QUICK_SECONDS:
                self.rows = min(self._most, self.rows * 2)
            await asyncio.sleep(min(LONGEST_REST_SECONDS, took * self._rest))
            return answer


class Pruner:
    """
    Removes old jobs and keys, beside everything else.

    Any number of processes may have one. Only one works at a time: the others meet it and
    leave. What a killed one has begun, the next goes on with.

    What can't be removed (a trigger or a foreign key of somebody's refuses it, its row is
    locked) keeps no other range, and no keys, from being gone through.
    """

    def __init__(
        self,
        retention: Retention,
        *,
        events: Events,
        advance: Callable[[str, int], None] = lambda remark, steps: None,
        everything: bool = False,
        rest: float = REST,
    ) -> None:
        self._retention = retention
        self._events = events
        self._advance = advance
        self._everything = everything
        """Whether to look also at ranges that were gone through not long ago."""
        self._survey_pace = Pace(SURVEYED_ROWS, rest=rest)
        self._delete_pace = Pace(DELETED_ROWS, rest=rest)
        self._report = Report()
        self._fault: Exception | None = None
        """The first one of this run that concerns a part of the history."""
        self._pulse = unwatched("pruner")

    async def keep_on(self, pulse: Pulse | None = None) -> None:
        """Run about once an hour, until cancelled. *pulse* beats with each run, and while one gets on."""
        if pulse is not None:
            self._pulse = pulse
        await repeat(
            "removing old jobs",
            self.run,
            every_seconds=EVERY_SECONDS,
            first_after_seconds=FIRST_AFTER_SECONDS,
            pulse=pulse,
        )

    async def run(self) -> Report:
        """
        Go through everything once.

        Raises DatabaseUnavailable; and at the end, when all the rest is done, the first fault that kept one range, or
        the keys, from being gone through. What was done stays done.
        """
        self._report, self._fault = Report(), None
        report = self._report
        began = time.monotonic()
        try:
            await self._run()
        except NotOurTurn:
            report.interrupted = True
        finally:
            if report.jobs or report.keys or report.unique_keys or report.ranges or report.left:
                log.info(
                    "old jobs removed",
                    extra={
                        "jobs": report.jobs,
                        "keys": report.keys,
                        "unique_keys": report.unique_keys,
                        "ranges_dropped": report.ranges,
                        "ranges_left": report.left,
                        "jobs_moved": report.moved,
                        "duration_ms": round((time.monotonic() - began) * 1000),
                    },
                )
        return report

    async def _run(self) -> None:
        keep = self._retention.keep
        spans, horizon = await self._retention.spans()
        if horizon is not None:
            for span in spans:
                before = keep.reach(span, horizon)
                if before is not None:
                    await self._apart(self._prune(span, before), _text(span) or "default partitions")
                self._advance("", 1)
        if horizon is not None or keep.key_seconds is not None:
            # With their jobs they are gone by now, unless a run before this one was killed half way.
            for span in await self._retention.key_spans():
                await self._apart(self._walk(self._retention.remove_keys, span.after, span.high), "keys")
        await self._apart(self._remove_unique_keys(), "unique keys")
        if self._fault is not None:
            raise self._fault

    async def _apart(self, work: Awaitable[None], what: str) -> None:
        """Do a part of the run; what is wrong with that part alone is raised after the others."""
        try:
            await work
        except NotOurTurn:
            raise
        except Exception as error:
            if is_outage(error) and not waited_too_long(error):
                raise
            self._fault = self._fault or error
            log.warning("some of what is old can't be removed", extra={"where": what, "reason": for_operator(error)})

    async def _remove_unique_keys(self) -> None:
        after: tuple[str, str] | None = ("", "")

        def next_rows(rows: int) -> Awaitable[tuple[int, tuple[str, str] | None]]:
            return self._retention.remove_unique_keys(after=after or ("", ""), rows=rows)

        while after is not None:
            removed, after = await self._delete_pace.take(next_rows)
            self._report.unique_keys += removed

    async def _prune(self, span: Span, before: UUID) -> None:
        """Remove what is past its time in one range, or in one gap between ranges."""
        if not (span.due or self._everything):
            return
        if span.past and await self._drop(span):
            return
        await self._walk(self._retention.remove_jobs, span.after, before)
        await self._retention.leave(span)

    async def _drop(self, span: Span) -> bool:
        """Drop an old range, or leave it for a lock; returns whether that was it. False: too much must stay."""
        try:
            if span.surveyed_to is None:
                await self._patiently(lambda: self._retention.watch(span))
            if not await self._survey(span):
                return False
            dropped = await self._patiently(lambda: self._retention.drop(span))
        except _Locked as locked:
            self._report.left += 1
            log.warning(
                "old partitions can't be dropped yet: another transaction keeps a table locked",
                extra={"starts_at": _text(span), "reason": str(locked)},
            )
            return True
        if dropped is None:
            return False
        removed, moved = dropped
        self._count(Step(0, None, removed))
        self._report.ranges += 1
        self._report.moved += moved
        log.info("old partitions dropped", extra={"starts_at": _text(span), "jobs": removed, "jobs_moved": moved})
        if self._retention.keep.key_seconds is None:
            await self._walk(self._retention.remove_keys, span.after, span.high)
        return True

    async def _survey(self, span: Span) -> bool:
        """Look through an old range; returns whether few enough of its jobs must stay."""
        begun = False

        def next_rows(rows: int) -> Awaitable[Survey]:
            return self._retention.survey(span, rows=rows, begun=begun)

        while True:
            survey = await self._survey_pace.take(next_rows)
            begun = True
            self._advance(f"looking at {_text(span)}", 0)
            if survey.survivors > MOVED_JOBS:
                return False
            if survey.complete or not survey.looked:
                return True

    async def _walk(self, step: Callable[..., Awaitable[Step]], after: UUID, before: UUID) -> None:
        """Take *step* from one end of a range of ids to the other."""

        def next_rows(rows: int) -> Awaitable[Step]:
            return step(after=after, before=before, rows=rows)

        while True:
            done = await self._delete_pace.take(next_rows)
            self._count(done)
            if done.last_id is None:
                return
            after = done.last_id
            self._pulse.turned_at = time.monotonic()

    async def _patiently(self, step: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask for a lock again and again, without ever waiting for it: whoever waits holds up all the others."""
        for number in range(TRIES):
            try:
                return await step()
            except DatabaseUnavailable as error:
                reason = error
            await asyncio.sleep(0.1 * (number + 1) * between(0.5, 1.0))
        raise _Locked(str(reason))

    def _count(self, done: Step) -> None:
        self._report.jobs += done.jobs
        self._report.keys += done.keys
        if done.jobs:
            self._events.pruned(done.jobs)
        self._advance(f"{self._report.jobs:,} jobs removed", 0)


class _Locked(Exception):
    """A lock wasn't to be had."""


def _text(span: Span) -> str:
    return "" if span.starts_at is None else span.starts_at.isoformat()
