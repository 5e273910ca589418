"""
Wait for jobs to end, without asking again and again.

Whoever waits says so on the schema's channel (`watch`), and the worker that ends the job
answers (`done`). One connection listens for all that wait in a loop. Either message may
be lost, so each waiter also looks by itself, less and less often, and says again that it
waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from uuid import UUID

from fencepost.domain.job import Job
from fencepost.errors import DatabaseUnavailable, JobNotFound, ResultTimeout
from fencepost.store.database import Database
from fencepost.store.hints import done_ids, watch_hint
from fencepost.store.jobs import Jobs
from fencepost.store.listener import Listener

FIRST_LOOK_SECONDS = 0.05
LONGEST_LOOK_SECONDS = 2.0
REPEAT_SECONDS = 20.0
"""How often a waiter says again that it waits; workers remember it for a minute."""
PATIENCE_SECONDS = 60.0
"""How long the database may be away before whoever waits is told, when they set no limit themselves."""


class Watcher:
    """Those who wait for jobs in one event loop."""

    def __init__(self, database: Database, jobs: Jobs) -> None:
        self._database = database
        self._jobs = jobs
        self._waiting: dict[UUID, set[asyncio.Event]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()

    async def ended(self, job_id: UUID, timeout_seconds: float | None, *, may_appear: bool) -> Job:
        """
        The job, once it has ended. With *may_appear*, one that isn't there yet is waited for too.

        Raises ResultTimeout, JobNotFound when it isn't there, and DatabaseUnavailable.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        found = await self._look(job_id) if may_appear else await self._jobs.get(job_id)
        if found is not None and found.finished_at is not None:
            return found
        if timeout_seconds == 0:
            raise _timed_out(job_id, found)
        with self._waits(job_id) as signal:
            return await _Wait(self._look, self._say, job_id, signal, deadline).run()

    @contextmanager
    def _waits(self, job_id: UUID) -> Iterator[asyncio.Event]:
        if self._listening is None or self._listening.done():
            listener = Listener(self._database, heard=self._heard, connected=self._connected.set)
            self._listening = asyncio.get_running_loop().create_task(listener.run(), name="fencepost-results")
        signal = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(signal)
        try:
            yield signal
        finally:
            waiting = self._waiting[job_id]
            waiting.discard(signal)
            if not waiting:
                del self._waiting[job_id]

    def _heard(self, hint: str) -> None:
        for job_id in done_ids(hint):
            for signal in self._waiting.get(job_id, ()):
                signal.set()

    async def _look(self, job_id: UUID) -> Job | None:
        with suppress(JobNotFound):
            return await self._jobs.get(job_id)
        return None

    async def _say(self, job_id: UUID) -> bool:
        """Tell the workers that somebody waits; False when that can't be told yet."""
        if not self._connected.is_set():
            return False
        rows = await self._database.fetch("job_queue", id=job_id)
        if rows:
            hint = watch_hint(int(rows[0]["queue_id"]), job_id)
            await self._database.fetch("notify", channel=self._database.channel, hint=hint)
        return bool(rows)

    async def close(self) -> None:
        """Stop listening. Safe to call twice."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            await asyncio.wait([listening])


class _Wait:
    """One caller's wait for one job."""

    def __init__(
        self,
        look: Callable[[UUID], Awaitable[Job | None]],
        say: Callable[[UUID], Awaitable[bool]],
        job_id: UUID,
        signal: asyncio.Event,
        deadline: float | None,
    ) -> None:
        self._look = look
        self._say = say
        self._job_id = job_id
        self._signal = signal
        self._deadline = deadline
        self._answered_at = time.monotonic()
        self._said_at = 0.0

    async def run(self) -> Job:
        """Wait for the job's end. Raises as `Watcher.ended`."""
        pause, found = FIRST_LOOK_SECONDS, None
        while True:
            try:
                if time.monotonic() - self._said_at >= REPEAT_SECONDS and await self._say(self._job_id):
                    self._said_at = time.monotonic()
                # After saying so: what ended in between is seen here.
                found = await self._look(self._job_id)
                self._answered_at = time.monotonic()
            except DatabaseUnavailable:
                if self._deadline is None and time.monotonic() - self._answered_at > PATIENCE_SECONDS:
                    raise
            if found is not None and found.finished_at is not None:
                return found
            remaining = None if self._deadline is None else self._deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise _timed_out(self._job_id, found)
            self._signal.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._signal.wait(), pause if remaining is None else min(pause, remaining))
            pause = min(pause * 2, LONGEST_LOOK_SECONDS)


def _timed_out(job_id: UUID, found: Job | None) -> Exception:
    if found is None:
        return JobNotFound(
            f"there is no job {job_id} yet; if it was enqueued in a transaction of yours, that isn't committed"
        )
    return ResultTimeout(f"job {job_id} has not ended yet; it is {found.status}")
