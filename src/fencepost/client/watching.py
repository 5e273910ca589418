"""
Wait for jobs to end, without asking again and again.

Whoever waits says so on the schema's channel (`watch`), and the worker that ends the job
answers (`done`). One connection listens for all that wait in a loop. Either message may
be lost, so a job that is waited for is also looked at, less and less often, and it is said
again that somebody waits. All who wait for the same job share its looks, and looks at
different jobs share statements: waiting takes two connections, however many wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from uuid import UUID

from fencepost.domain.job import Job
from fencepost.errors import DatabaseUnavailable, JobNotFound, ResultTimeout
from fencepost.store.database import Database
from fencepost.store.hints import done_ids, watch_hint
from fencepost.store.jobs import job_of_row, not_found
from fencepost.store.listener import Listener
from fencepost.store.merging import Merger

FIRST_LOOK_SECONDS = 0.05
LONGEST_LOOK_SECONDS = 2.0
LONGEST_POLL_SECONDS = 0.5
"""The same where nobody can listen, so that looking is all there is."""
LAST_LOOK_SECONDS = 2.0
"""How long after its time a waiter hopes for the answer to its last look."""
REPEAT_SECONDS = 20.0
"""How often it is said again that somebody waits; workers remember it for a minute."""
PATIENCE_SECONDS = 60.0
"""How long the database may be away before whoever waits is told, when they set no limit themselves."""
JOBS_A_STATEMENT = 20
"""How many jobs are read at once; each may bring a payload and a result of the largest size."""
SAYING = 2
"""For how many jobs it is said at once that somebody waits."""


class Watcher:
    """Those who wait for jobs in one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._looks = Merger(self._read)
        self._saying = asyncio.Semaphore(SAYING)
        self._watches: dict[UUID, _Watch] = {}
        self._listening: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()

    async def ended(self, job_id: UUID, timeout_seconds: float | None, *, may_appear: bool) -> Job:
        """
        The job, once it has ended. With *may_appear*, one that isn't there yet is waited for too.

        Errors of the database are waited out, until the time is up or a minute has passed without an answer.

        Raises ResultTimeout, JobNotFound when it isn't there or is removed meanwhile, and DatabaseUnavailable.
        """
        if timeout_seconds == 0:
            found = await self._looks.put(job_id)
            if found is None or found.finished_at is None:
                raise _not_ended(job_id, found, may_appear=may_appear)
            return found
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        with self._watched(job_id) as watch:
            return await _wait(watch, deadline, may_appear=may_appear)

    @contextmanager
    def _watched(self, job_id: UUID) -> Iterator[_Watch]:
        can_listen = self._database.can_listen
        if can_listen and (self._listening is None or self._listening.done()):
            listener = Listener(self._database, heard=self._heard, connected=self._connected.set)
            self._listening = asyncio.get_running_loop().create_task(listener.run(), name="fencepost-results")
        watch = self._watches.get(job_id)
        if watch is None:
            longest = LONGEST_LOOK_SECONDS if can_listen else LONGEST_POLL_SECONDS
            watch = self._watches[job_id] = _Watch(job_id, self._looks.put, self._say, longest_seconds=longest)
        watch.waiters += 1
        try:
            yield watch
        finally:
            watch.waiters -= 1
            if not watch.waiters:
                del self._watches[job_id]
                watch.stop()

    def _heard(self, hint: str) -> None:
        for job_id in done_ids(hint):
            watch = self._watches.get(job_id)
            if watch is not None:
                watch.ask()

    async def _read(self, job_ids: Sequence[UUID]) -> list[Job | None]:
        wanted = list(dict.fromkeys(job_ids))
        found: dict[UUID, Job] = {}
        for start in range(0, len(wanted), JOBS_A_STATEMENT):
            rows = await self._database.fetch("read_jobs", ids=wanted[start : start + JOBS_A_STATEMENT])
            found.update((job.id, job) for job in map(job_of_row, rows))
        return [found.get(job_id) for job_id in job_ids]

    async def _say(self, job_id: UUID) -> bool:
        """Tell the workers that somebody waits; False when that can't be told yet."""
        if not self._connected.is_set():
            return False
        async with self._saying:
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


class _Watch:
    """One job that is looked at again and again, for all who wait for it."""

    def __init__(
        self,
        job_id: UUID,
        look: Callable[[UUID], Awaitable[Job | None]],
        say: Callable[[UUID], Awaitable[bool]],
        *,
        longest_seconds: float,
    ) -> None:
        self.job_id = job_id
        self._look = look
        self._say = say
        self._longest_seconds = longest_seconds
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._told = asyncio.get_running_loop().create_future()
        self.waiters = 0
        self.found: Job | None = None
        self.seen = False
        """Whether it was there once."""
        self.begun = 0
        """How many looks have begun."""
        self.over = 0
        """The number of the last look that has ended, well or not."""
        self.answered = 0
        """The number of the last one that was answered."""
        self.answered_at = time.monotonic()
        self.error: Exception | None = None
        """Why the last one wasn't."""

    def ask(self) -> int:
        """Have a look taken that begins after this; returns its number."""
        self._asked.set()
        return self.begun + 1

    async def told(self, seconds: float) -> None:
        """Wait for the end of a look, at most so long."""
        if self._task is None or self._task.done():
            # Also when a program cancels whatever tasks it finds.
            self._task = asyncio.get_running_loop().create_task(self._run(), name="fencepost-wait")
            self._task.add_done_callback(lambda _: self._tell())
        await asyncio.wait([self._told], timeout=seconds)

    def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()

    def _tell(self) -> None:
        told, self._told = self._told, self._told.get_loop().create_future()
        told.set_result(None)

    async def _run(self) -> None:
        pause, said_at = FIRST_LOOK_SECONDS, None
        # Its cancellation may get lost: in wait_for, when it is asked at that moment, or in an error of the database.
        while self.waiters:
            # Before the look: what is heard from now on it may not see.
            self._asked.clear()
            self.begun += 1
            try:
                # The first look may be all that it takes.
                if self.answered and (said_at is None or time.monotonic() - said_at >= REPEAT_SECONDS):
                    said_at = time.monotonic() if await self._say(self.job_id) else said_at
                # After saying so: what ended in between is seen here.
                self.found = await self._look(self.job_id)
                self.seen = self.seen or self.found is not None
                is_first = not self.answered
                self.answered, self.answered_at, self.error = self.begun, time.monotonic(), None
            except Exception as error:  # noqa: BLE001 - those who wait for it judge it
                self.error, is_first = error, False
            self.over = self.begun
            self._tell()
            if is_first:
                # Whoever needs no more has gone by then.
                await asyncio.sleep(0)
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), pause)
            pause = min(pause * 2, self._longest_seconds)


async def _wait(watch: _Watch, deadline: float | None, *, may_appear: bool) -> Job:
    """One caller's wait. Raises as `Watcher.ended`."""
    began, first, last = time.monotonic(), watch.ask(), None
    while True:
        now = time.monotonic()
        if deadline is None:
            patience = PATIENCE_SECONDS
        elif now < deadline:
            patience = min(deadline - now, PATIENCE_SECONDS)
        else:
            last = watch.ask() if last is None else last
            patience = deadline + LAST_LOOK_SECONDS - now
        await watch.told(max(0.0, patience))
        if watch.answered >= first:
            # What an earlier look saw may be older than what this caller knows.
            if watch.found is None and (watch.seen or not may_appear):
                raise _not_ended(watch.job_id, None, may_appear=False, seen=watch.seen)
            if watch.found is not None and watch.found.finished_at is not None:
                return watch.found
        error, now = watch.error, time.monotonic()
        if error is not None and not isinstance(error, DatabaseUnavailable):
            raise error
        if deadline is None:
            if error is not None and now - max(began, watch.answered_at) > PATIENCE_SECONDS:
                raise error
        elif last is not None and (watch.over >= last or now >= deadline + LAST_LOOK_SECONDS):
            if watch.answered < first:
                raise error or DatabaseUnavailable("the database didn't answer in time")
            raise _not_ended(watch.job_id, watch.found, may_appear=True)


def _not_ended(job_id: UUID, found: Job | None, *, may_appear: bool, seen: bool = False) -> Exception:
    if found is not None:
        return ResultTimeout(f"job {job_id} has not ended yet; it is {found.status}")
    if seen:
        return JobNotFound(f"job {job_id} was removed meanwhile")
    if may_appear:
        return JobNotFound(
            f"there is no job {job_id} yet; if it was enqueued in a transaction of yours, that isn't committed"
        )
    return not_found(job_id)
