"""The duties that aren't about one job: recovery, partitions, saying that this process lives and what it knows."""

from __future__ import annotations

import asyncio
import math
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable
from datetime import datetime
from uuid import UUID

import fencepost
from fencepost.domain.backoff import pause_after
from fencepost.domain.jitter import between
from fencepost.domain.job import Status
from fencepost.errors import DatabaseUnavailable
from fencepost.logger import get_logger
from fencepost.store.claims import Position, Recovery
from fencepost.store.failures import is_outage
from fencepost.store.job_types import JobTypes
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore
from fencepost.telemetry.events import Events, Hooks, JobRecovered
from fencepost.telemetry.pulses import Pulse, unwatched
from fencepost.types.jobtype import JobType
from fencepost.worker.cursors import Cursors

log = get_logger("fencepost.maintenance")

HEARTBEAT_SECONDS = 10.0
SILENCE_SECONDS = 60.0
"""A worker not heard of for this long is taken off the list of workers. Its leases run out by themselves."""
PARTITIONS_SECONDS = 3600.0
DECLARATION_SECONDS = 60.0
RECOVERY_ROWS = 1000
MOST_SPARED = 10
"""How many leases of a queue that can't be taken back keep the others from being taken back for a while only."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 5.0
"""How soon a duty that failed is tried again, at the latest: an outage ends when it ends."""
LONGEST_FAULT_PAUSE_SECONDS = 60.0
"""The same for one that fails while the database answers: somebody has to do something first."""


async def repeat(
    what: str,
    duty: Callable[[], Awaitable[object]],
    *,
    every_seconds: float,
    first_after_seconds: float = 0.0,
    pulse: Pulse | None = None,
) -> None:
    """
    Run *duty* now and then every *every_seconds*, a little spread, until cancelled. Survives every error.

    After a failure it is tried again soon, less and less so, but never later than usual. With
    *first_after_seconds* it begins within that time, at random. *pulse* beats with each success.
    """
    pulse = pulse or unwatched(what)
    await asyncio.sleep(between(0.0, first_after_seconds))
    failures = 0
    while True:
        longest = every_seconds
        try:
            await duty()
            failures = 0
            pulse.turned()
        except DatabaseUnavailable as error:
            failures += 1
            longest = min(every_seconds, LONGEST_PAUSE_SECONDS)
            pulse.failed(error)
            log.warning(f"{what} has to wait", extra={"reason": error.for_operator()})
        except Exception as error:
            failures += 1
            longest = min(every_seconds, LONGEST_FAULT_PAUSE_SECONDS)
            pulse.failed(error)
            log.exception(f"fault in {what}")
        if failures:
            await asyncio.sleep(pause_after(failures, first_seconds=FIRST_PAUSE_SECONDS, longest_seconds=longest))
        else:
            await asyncio.sleep(every_seconds * between(0.9, 1.0))


class Rescuer:
    """
    Takes back jobs whose lease has run out: the way back from a worker that died.

    Each queue's sweep begins where the last complete one ended. That rests on the same
    proof as the claims' cursors (worker/cursors.py), with leases in the order of
    `locked_until`: no lease is made that runs out before it begins.

    One lease that can't be taken back (a trigger of somebody's refuses it, its row is
    damaged) doesn't keep those behind it. After a sweep that failed the next one takes a
    lease at a time, up to that one; and the one after it begins behind that.
    """

    def __init__(
        self,
        store: WorkerStore,
        *,
        wake: Callable[[Iterable[int]], None],
        events: Events,
        hooks: Hooks | None = None,
        ended: Callable[[UUID], None] | None = None,
        rows: int = RECOVERY_ROWS,
    ) -> None:
        self._store = store
        self._wake = wake
        self._events = events
        self._hooks = hooks or Hooks()
        self._ended = ended
        self._rows = rows
        self._cursors: dict[int, Cursors] = {}
        self._late: dict[int, int] = {}
        """Queues whose last sweep failed, and how often in a row that was no fault of the database's."""

    async def sweep(self) -> None:
        """
        Take back everything that has run out by now, in every queue.

        One queue's fault doesn't keep the others from being swept: it is raised after them, and
        the queue comes last the next time.
        """
        fault: Exception | None = None
        try:
            queue_ids = await self._store.leased_queues()
            for queue_id in sorted(queue_ids, key=lambda queue_id: queue_id in self._late):
                try:
                    await self._sweep_queue(queue_id)
                    self._late.pop(queue_id, None)
                except Exception as error:
                    self._cursors.pop(queue_id, None)
                    faults = self._late.setdefault(queue_id, 0)
                    if is_outage(error):
                        raise
                    self._late[queue_id] = min(faults + 1, 2 * MOST_SPARED)
                    fault = error
        except DatabaseUnavailable:
            self._cursors.clear()
            raise
        if fault is not None:
            raise fault

    async def _sweep_queue(self, queue_id: int) -> None:
        spared, singly = divmod(self._late.get(queue_id, 0), 2)
        while await self._sweep_some(queue_id, rows=1 if singly else self._rows, spared=spared):
            pass
        if spared:
            log.error("leases that have run out can't be taken back", extra={"queue_id": queue_id, "leases": spared})

    async def _sweep_some(self, queue_id: int, *, rows: int, spared: int) -> bool:
        """One statement; returns whether there may be more."""
        # Sweeps are rare, so every suspect is covered by starting further back.
        cursors = self._cursors.setdefault(queue_id, Cursors(young_seconds=math.inf))
        starts = cursors.starts()
        after: datetime | None = starts[0].run_at if 0 in starts else None
        recovery = await self._store.recover(queue_id, after=after, max_rows=rows, spared=spared)
        full = len(recovery.jobs) == rows and recovery.last_locked_until is not None
        came_to = recovery.last_locked_until if full else None
        cursors.advanced(starts, {0: Position(came_to or recovery.seen_at)}, recovery.snapshot, recovery.transaction)
        if recovery.jobs:
            self._report(queue_id, recovery)
        return full

    def _report(self, queue_id: int, recovery: Recovery) -> None:
        self._events.recovered(len(recovery.jobs))
        for job_id, attempt, status in recovery.jobs:
            log.warning(
                "job recovered: its lease expired",
                extra={"job_id": str(job_id), "attempt": attempt, "status": status.value},
            )
            if self._hooks.listeners:
                self._hooks.emit(JobRecovered(job_id=job_id, attempt=attempt, status=status))
            if self._ended is not None and status is not Status.PENDING:
                self._ended(job_id)
        if any(status is Status.PENDING for _, _, status in recovery.jobs):
            self._wake([queue_id])


class Declaration:
    """The job types that a process knows, made known to all; and the queues and lanes of their jobs made."""

    def __init__(self, types: Collection[JobType], job_types: JobTypes, queues: Queues) -> None:
        self._types = types
        self._job_types = job_types
        self._queues = queues

    async def declare(self) -> None:
        """
        Say that they are known, now. Repeat it every `DECLARATION_SECONDS`.

        Whoever enqueues in a transaction of its own then never has to make a queue there,
        which would hold up all others that want it. Raises DatabaseUnavailable.
        """
        # The database may have been put back to a moment when there were none.
        self._queues.forget()
        for queue, priority in sorted({(one.queue, one.priority) for one in self._types}):
            await self._queues.ensure(queue, priority)
        await self._job_types.declare(one.name for one in self._types)


class Presence:
    """This process in the list of workers."""

    def __init__(self, store: WorkerStore, *, slots: int) -> None:
        self._store = store
        self._slots = slots
        self._has_left = False
        # On connections of their own a beat could overtake the farewell, and stay in the list.
        self._turn = asyncio.Lock()

    async def beat(self) -> None:
        """Say that we live."""
        async with self._turn:
            if not self._has_left:
                await self._store.heartbeat(
                    host=socket.gethostname(), pid=os.getpid(), version=fencepost.__version__, slots=self._slots
                )

    async def leave(self) -> None:
        """Say that we stop, for good, and clear away those who never did."""
        async with self._turn:
            self._has_left = True
            await self._store.forget(silence_seconds=SILENCE_SECONDS)
