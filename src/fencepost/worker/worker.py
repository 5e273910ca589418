"""
A worker process's engine: its parts, put together and taken apart in the right order.

`Worker` lives in one event loop, whichever that is: `fencepost serve` gives it a thread
and a loop of its own, so that a handler which blocks its loop blocks no request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

from fencepost.domain import outcome
from fencepost.domain.backoff import Exponential
from fencepost.domain.job import Lease, Status
from fencepost.domain.outcome import Ending, Outcome
from fencepost.domain.policy import Policy
from fencepost.errors import DatabaseUnavailable
from fencepost.settings import Settings
from fencepost.store.database import ACQUIRE_SECONDS, HOT_SESSION, Database
from fencepost.store.listener import Listener
from fencepost.store.retention import Keep, Retention
from fencepost.store.workers import WorkerStore
from fencepost.telemetry.events import Events
from fencepost.types.jobtype import JobType
from fencepost.worker import maintenance
from fencepost.worker.attempt import Attempt
from fencepost.worker.dispatcher import Dispatcher
from fencepost.worker.executor import GRACE_SECONDS, Executor
from fencepost.worker.journal import Journal
from fencepost.worker.leases import LeaseKeeper
from fencepost.worker.pruner import Pruner
from fencepost.worker.settler import Settler

log = logging.getLogger("fencepost.worker")

CONNECTIONS = 4
"""What a worker opens at the most: claims, settlements, looks behind and maintenance. Its leases take one more, its
listener another."""
OUTCOME_SECONDS = 10.0
"""How long outcomes may take to be written once everything else has stopped."""
FAREWELL_SECONDS = 2.0
"""How long this process may take to be struck off the list of workers."""


class Worker:
    """
    Runs jobs in the current event loop, from `start` until `drain`.

    Any number of workers, in any number of processes, share one database; they know
    nothing of each other.
    """

    def __init__(self, dsn: str, types: Mapping[str, JobType], settings: Settings, events: Events) -> None:
        self.id: UUID = uuid4()
        self._settings = settings
        self._events = events
        self._database = Database(dsn, schema=settings.schema, connections=CONNECTIONS, lines=2, session=HOT_SESSION)
        self._store = WorkerStore(self._database, self.id)
        self._journal = Journal(share=settings.log_jobs)
        self._settler = Settler(self._store, settled=self._settled)
        self._executor = Executor(
            types,
            slots=settings.workers,
            timeout_seconds=settings.job_timeout_seconds,
            policy=Policy(Exponential(settings.backoff_base_seconds, settings.backoff_max_seconds)),
            max_result_bytes=settings.max_result_bytes,
            settle=self._settle,
            events=events,
            journal=self._journal,
        )
        self._dispatcher = Dispatcher(
            self._store,
            settler=self._settler,
            slots=settings.workers,
            free=lambda: self._executor.free,
            slot_freed=self._executor.slot_freed,
            hand_over=self._begin,
            lease_seconds=settings.lease_seconds,
            aging_seconds=settings.priority_aging_seconds,
            poll_seconds=settings.poll_interval_seconds,
        )
        self._keeper = LeaseKeeper(
            lambda: WorkerStore(Database(dsn, schema=settings.schema, connections=1, session=HOT_SESSION), self.id),
            lease_seconds=settings.lease_seconds,
            interrupt=self._interrupt_from_outside,
        )
        self._rescuer = maintenance.Rescuer(self._store, wake=self._dispatcher.wake, events=events)
        self._presence = maintenance.Presence(self._store, slots=settings.workers)
        self._pruner = Pruner(Retention(self._database, Keep.of(settings)), events=events)
        self._listener = Listener(self._database, heard=self._heard, connected=self._dispatcher.poll_now)
        self._duties: list[asyncio.Task[None]] = []
        self._errands: set[asyncio.Task[None]] = set()
        self._cancel_hints: set[UUID] = set()
        """Cancellations heard of while a claim was under way: of jobs that it may bring."""
        self._recovery: asyncio.Task[None] | None = None
        self._claiming: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining = False

    @property
    def running(self) -> int:
        """How many handlers have not returned yet."""
        return len(self._executor.running)

    async def start(self) -> None:
        """Connect and begin to claim. Raises DatabaseUnavailable."""
        self._loop = asyncio.get_running_loop()
        await self._database.open()
        self._keeper.start()
        settings = self._settings
        self._settling = self._task(self._settler.run(), "settler")
        self._recovery = self._task(
            maintenance.repeat("recovery", self._rescuer.sweep, every_seconds=settings.recovery_interval_seconds),
            "recovery",
        )
        self._duties = [
            self._task(self._listener.run(), "listener"),
            self._task(
                maintenance.repeat("heartbeat", self._presence.beat, every_seconds=maintenance.HEARTBEAT_SECONDS),
                "heartbeat",
            ),
            self._task(
                maintenance.repeat(
                    "making partitions", self._make_partitions, every_seconds=maintenance.PARTITIONS_SECONDS
                ),
                "partitions",
            ),
            self._task(self._pruner.keep_on(), "pruner"),
        ]
        self._claiming = self._task(self._dispatcher.run(), "dispatcher")

    def wake(self, queue_ids: Iterable[int]) -> None:
        """These queues may have something due. Callable from any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._dispatcher.wake, list(queue_ids))

    async def stop_claiming(self) -> None:
        """Claim and recover no more. Running jobs go on, and their outcomes are written."""
        self._draining = True
        self._dispatcher.stop()
        await _cancelled(self._recovery)
        if self._claiming is not None:
            # A claim in a connection that has gone silent may take longer than anybody can wait.
            await asyncio.wait([self._claiming], timeout=GRACE_SECONDS)

    async def drain(self, timeout_seconds: float) -> int:
        """
        Stop for good: let running jobs finish, give the rest back, write every outcome.

        Jobs still running after *timeout_seconds* are cancelled and released to pending
        without costing an attempt. Returns how many handlers ignored even that; theirs are
        released too, so the process should exit soon after.
        """
        await self.stop_claiming()
        await self._returned(timeout_seconds)
        for attempt in list(self._executor.running):
            self._executor.interrupt(attempt, Ending.RELEASED)
        await self._returned(GRACE_SECONDS if self._can_stop() else 0)
        stubborn = [attempt for attempt in self._executor.running if not attempt.abandoned]
        for attempt in stubborn:
            self._executor.abandon(attempt)
        if self._settling is not None and not self._settling.done():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._settler.flush(), OUTCOME_SECONDS)
        await self._close()
        return self.running

    async def _close(self) -> None:
        farewell = self._task(self._leave(), "farewell")
        await asyncio.wait([farewell], timeout=FAREWELL_SECONDS)
        await _cancelled(*self._duties, *self._errands, self._settling, self._claiming, farewell)
        self._keeper.stop()
        await self._database.close()

    async def _leave(self) -> None:
        with suppress(DatabaseUnavailable):
            await self._presence.leave()

    def _can_stop(self) -> bool:
        return any(attempt.task is not None and not attempt.abandoned for attempt in self._executor.running)

    async def _returned(self, seconds: float) -> None:
        """Wait until every handler has returned, or *seconds* have passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(not attempt.abandoned for attempt in self._executor.running):
                    self._executor.slot_freed.clear()
                    await self._executor.slot_freed.wait()

    def _task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, name=f"fencepost-{name}")

    def _begin(self, leases: list[Lease]) -> None:
        for lease in leases:
            attempt = Attempt(lease)
            self._keeper.hold(
                attempt,
                limit_seconds=self._executor.timeout_of(lease) + GRACE_SECONDS + self._settings.lease_seconds,
            )
            if self._draining:
                # Claimed while the signal came in: back at once, unstarted.
                attempt.end()
                self._settle(attempt, outcome.released(lease))
            else:
                self._executor.start(attempt)
                if lease.id in self._cancel_hints:
                    self._look_at_cancellation(lease.queue_id, lease.id)
        # Those that are left were for other workers.
        self._cancel_hints.clear()

    def _settle(self, attempt: Attempt, result: Outcome | None) -> None:
        if result is None:
            self._keeper.drop(attempt)
            self._report(attempt, Ending.LOST, None, None)
        else:
            self._settler.put(attempt, result)

    def _settled(self, attempt: Attempt, result: Outcome, status: Status | None) -> None:
        self._keeper.drop(attempt)
        if status is Status.PENDING:
            # A retry of ours starts on time; other workers find it by polling.
            self._dispatcher.due_in(result.queue_id, result.delay_seconds)
        self._report(attempt, result.ending if status is not None else Ending.LOST, result, status)

    def _report(self, attempt: Attempt, ending: Ending, result: Outcome | None, status: Status | None) -> None:
        self._events.ended(ending, status, attempt.seconds)
        self._journal.finished(attempt, ending, result, status)

    def _interrupt_from_outside(self, attempt: Attempt, ending: Ending) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._executor.interrupt, attempt, ending)

    def _heard(self, hint: str) -> None:
        kind, _, rest = hint.partition(" ")
        if kind == "due":
            self._dispatcher.wake([int(queue_id) for queue_id in rest.split(",")])
        elif kind == "cancel":
            queue_id, _, job_id = rest.partition(" ")
            wanted = UUID(job_id)
            if any(attempt.lease.id == wanted for attempt in self._executor.running):
                self._look_at_cancellation(int(queue_id), wanted)
            elif self._dispatcher.is_claiming:
                # The hint may have overtaken the claim's answer, on its other connection.
                self._cancel_hints.add(wanted)

    def _look_at_cancellation(self, queue_id: int, job_id: UUID) -> None:
        errand = self._task(self._cancel(queue_id, job_id), "cancel")
        self._errands.add(errand)
        errand.add_done_callback(self._errands.discard)

    async def _cancel(self, queue_id: int, job_id: UUID) -> None:
        """A hint says that somebody wants a job of ours to stop: ask the database, and do it."""
        with suppress(DatabaseUnavailable):
            requested = await self._store.cancel_requests(queue_id, [job_id])
            for attempt in [attempt for attempt in self._executor.running if attempt.key in requested]:
                self._executor.interrupt(attempt, Ending.CANCELLED)

    async def _make_partitions(self) -> None:
        await self._store.ensure_partitions(partition_days=self._settings.partition_days)


async def _cancelled(*tasks: asyncio.Task[None] | None) -> None:
    """
    End these tasks, and wait until they have.

    Asks more than once: a cancelled statement whose connection is silent ends in an error of
    the database, which such a task would survive.
    """
    waiting = {task for task in tasks if task is not None}
    while waiting:
        for task in waiting:
            task.cancel()
        # Longer than such a statement takes to end, or its connection would be left to itself.
        _, waiting = await asyncio.wait(waiting, timeout=ACQUIRE_SECONDS + 1)
