"""
A worker process's engine: its parts, put together and taken apart in the right order.

`Worker` lives in one event loop, whichever that is: `fencepost serve` gives it a thread
and a loop of its own, so that a handler which blocks its loop blocks no request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

from fencepost.domain import outcome
from fencepost.domain.backoff import Exponential
from fencepost.domain.job import Lease, Status
from fencepost.domain.outcome import Ending, Outcome
from fencepost.domain.policy import Policy
from fencepost.logger import get_logger
from fencepost.settings import Settings
from fencepost.store.database import HOT_SESSION, Database
from fencepost.store.hints import Hints
from fencepost.store.job_types import JobTypes
from fencepost.store.listener import Listener
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore
from fencepost.telemetry.events import Events
from fencepost.types.jobtype import JobType
from fencepost.worker.attempt import Attempt, Host
from fencepost.worker.dispatcher import Dispatcher
from fencepost.worker.duties import Duties
from fencepost.worker.executor import GRACE_SECONDS, Executor
from fencepost.worker.hearing import Hearing
from fencepost.worker.journal import Journal
from fencepost.worker.leases import LeaseKeeper
from fencepost.worker.maintenance import Rescuer
from fencepost.worker.progress import Progress
from fencepost.worker.reports import Reports
from fencepost.worker.resources import OpenLifespan
from fencepost.worker.runtime import Runtime
from fencepost.worker.served import Served
from fencepost.worker.settler import Settler
from fencepost.worker.strangers import Strangers
from fencepost.worker.tasks import Kept, end_all
from fencepost.worker.vitals import WorkerVitals
from fencepost.worker.watching import Watching

log = get_logger("fencepost.worker")

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

    def __init__(
        self, dsn: str, runtime_or_types: Runtime | Mapping[str, JobType], settings: Settings, events: Events
    ) -> None:
        runtime = Runtime.of(runtime_or_types)
        self.id: UUID = uuid4()
        self._settings = settings
        self._events = events
        self._database = Database.of(settings, dsn, connections=CONNECTIONS, lines=2, session=HOT_SESSION)
        self._store = WorkerStore(self._database, self.id)
        journal = Journal(share=settings.log_jobs)
        self._reports = Reports(events, runtime.hooks, journal)
        self.vitals = vitals = WorkerVitals(settings, runtime.types.values())
        self._settler = Settler(self._store, settled=self._settled, relieved=self._relieved, pulse=vitals.settler)
        self._progress = Progress(self._store)
        self._lifespan = OpenLifespan(runtime)
        self._host = Host(
            schema=settings.schema, max_result_bytes=settings.max_result_bytes, progress=self._progress.put
        )
        self._executor = Executor(
            runtime,
            slots=settings.workers,
            timeout_seconds=settings.job_timeout_seconds,
            policy=Policy(Exponential(settings.backoff_base_seconds, settings.backoff_max_seconds)),
            host=self._host,
            judge_stranger=Strangers(JobTypes(self._database)).judge,
            settle=self._settle,
            events=events,
            journal=journal,
        )
        queues = Queues(self._database, Hints(self._database))
        self._served = Served(settings.queues, queues)
        self._dispatcher = Dispatcher(
            self._store,
            settler=self._settler,
            slots=settings.workers,
            free=self._free,
            slot_freed=self._executor.slot_freed,
            hand_over=self._begin,
            lease_seconds=settings.lease_seconds,
            aging_seconds=settings.priority_aging_seconds,
            poll_seconds=settings.poll_interval_seconds,
            serves=self._served.__contains__,
            pulse=vitals.dispatcher,
        )
        self._keeper = LeaseKeeper(
            lambda: WorkerStore(Database.of(settings, dsn, connections=1, session=HOT_SESSION), self.id),
            lease_seconds=settings.lease_seconds,
            interrupt=self._interrupt_from_outside,
            pulse=vitals.leases,
            look=vitals.look,
        )
        self._watching = Watching(self._store.notify)
        self._duties = Duties(
            self._store,
            settings,
            runtime,
            queues=queues,
            served=self._served,
            rescuer=Rescuer(
                self._store, wake=self._dispatcher.wake, events=events, hooks=runtime.hooks, ended=self._watching.ended
            ),
            events=events,
            vitals=vitals,
            task=self._task,
        )
        self._hearing = Hearing(self._store, self._dispatcher, self._executor, self._watching)
        self._listener = Listener(
            self._database,
            heard=self._hearing.heard,
            connected=self._dispatcher.poll_now,
            pulse=vitals.listener,
        )
        self._listening: asyncio.Task[None] | None = None
        self._claiming: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining = False
        self._kept = Kept()

    @property
    def running(self) -> int:
        """How many handlers have not returned yet."""
        return len(self._executor.running)

    async def start(self) -> None:
        """
        Connect, open what the app's handlers share, and begin to claim.

        Raises DatabaseUnavailable; and what the lifespan raises, or InvalidSettings when a
        handler asks for something that it doesn't open.
        """
        self._loop = asyncio.get_running_loop()
        await self._database.open()
        try:
            await self._served.find()
            self._host.resources = await self._lifespan.open()
        except BaseException:
            await self._database.close()
            raise
        self._executor.prepare()
        self._keeper.start()
        self._progress.start()
        self.vitals.start()
        self._settling = self._task(self._settler.run(), "settler")
        self._listening = self._task(self._listener.run(), "listener")
        self._duties.start()
        self._claiming = self._task(self._dispatcher.run(), "dispatcher")

    async def until(self, stop: asyncio.Event) -> None:
        """
        Return once *stop* is set.

        Raises RuntimeError when the worker can't go on: a handler has cancelled its tasks, say.
        """
        await self._kept.until(stop)

    def wake(self, queue_ids: Iterable[int]) -> None:
        """These queues may have something due. Callable from any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._dispatcher.wake, list(queue_ids))

    async def stop_claiming(self) -> None:
        """Claim and recover no more. Running jobs go on, and their outcomes are written."""
        self._draining = True
        self.vitals.end()
        self._kept.let_go()
        self._dispatcher.stop()
        await self._duties.stop_recovering()
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
                await asyncio.wait_for(self._settler.finish(self._database.reopen), OUTCOME_SECONDS)
        await self._executor.close()
        await self._lifespan.close()
        await self._close()
        return self.running

    async def _close(self) -> None:
        farewell = self._task(self._duties.leave(), "farewell")
        await asyncio.wait([farewell], timeout=FAREWELL_SECONDS)
        await self._settler.stop()
        await self._progress.stop()
        await self._watching.stop()
        stopped = (*self._duties.stop(), *self._hearing.stop())
        await end_all(*stopped, self._listening, self._settling, self._claiming, farewell)
        self._keeper.stop()
        await self._database.close()

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
        return self._kept.keep(asyncio.get_running_loop().create_task(work, name=f"fencepost-{name}"))

    def _relieved(self) -> None:
        self._executor.slot_freed.set()

    def _free(self) -> int:
        """How many jobs may be claimed: none while so many outcomes can't be written."""
        return 0 if self._settler.is_full else self._executor.free

    def _begin(self, leases: list[Lease], claimed_at: float) -> None:
        for lease in leases:
            attempt = Attempt(lease)
            self._keeper.hold(
                attempt,
                claimed_at=claimed_at,
                limit_seconds=self._executor.timeout_of(lease) + GRACE_SECONDS + self._settings.lease_seconds,
            )
            if self._draining:
                # Claimed while the signal came in: back at once, unstarted.
                self._events.started()
                attempt.end()
                self._settle(attempt, outcome.released(lease))
            else:
                self._executor.start(attempt)
        self._hearing.begun(leases)

    def _settle(self, attempt: Attempt, result: Outcome | None) -> None:
        if result is None:
            self._keeper.drop(attempt)
            self._progress.forget(attempt)
            self._reports.ended(attempt, Ending.LOST, None, None)
        else:
            self._settler.put(attempt, result)

    def _settled(self, attempt: Attempt, result: Outcome, status: Status | None) -> None:
        self._keeper.drop(attempt)
        self._progress.forget(attempt)
        if status is Status.PENDING:
            # A retry of ours starts on time; other workers find it by polling. What we don't know is left to them.
            if attempt.job_type is not None:
                self._dispatcher.due_in(result.queue_id, result.delay_seconds)
        elif status is not None:
            self._watching.ended(result.id)
        self._reports.ended(attempt, result.ending if status is not None else Ending.LOST, result, status)

    def _interrupt_from_outside(self, attempt: Attempt, ending: Ending) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._executor.interrupt, attempt, ending)
