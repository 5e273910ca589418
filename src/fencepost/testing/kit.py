"""An app on a test's database."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar
from uuid import UUID

import msgspec

from fencepost.client.job import Job
from fencepost.client.portal import Portal
from fencepost.domain.job import Job as JobRecord
from fencepost.domain.job import Status
from fencepost.errors import FencepostError
from fencepost.settings import Settings
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from fencepost.store.listing import Filter, Listing
from fencepost.store.migrate import prepare
from fencepost.store.queues import Queues
from fencepost.testing import clock, draining, inline, matching
from fencepost.testing.matching import Waiting
from fencepost.testing.report import Report
from fencepost.testing.seam import Elsewhere

if TYPE_CHECKING:
    from fencepost.app import Fencepost

R = TypeVar("R")
T = TypeVar("T")

LIMIT = 1_000
"""How many attempts a drain runs at most, unless it is told otherwise."""
_PAGE_JOBS = 500
_NOT_OPEN = "this kit isn't open: use it inside of `with Kit(…) as kit:` or `async with`"


class Kit:
    """
    An app on a test's database, from `with` or `async with` on, for as long as that lasts.

    Whatever the app enqueues meanwhile goes there, and waits: nothing runs before `drain`. The
    database is the test's own: it is brought up to date, its clock can be set, and nothing in it
    is removed afterwards.

    What isn't a coroutine here may be called in sync and async tests alike; it takes a millisecond
    or two, in which an event loop stands still.
    """

    def __init__(self, app: Fencepost, database_url: str, *, settings: Settings | None = None) -> None:
        """*settings* are those of the worker that drains; the app's own if they are left out."""
        self.app = app
        self.database_url = database_url
        self._settings = settings
        self._portal = Portal(self._close)
        self._database: Database | None = None
        self._elsewhere: Elsewhere | None = None

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._begin)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._elsewhere is not None:
            await self._elsewhere.close_here()
        await asyncio.to_thread(self._end)

    def enqueued(self, job: Job[..., Any] | None = None, /, *args: Any, **kwargs: Any) -> list[Waiting]:
        """
        The jobs that wait, due or not, the oldest first.

        Of *job* and with these arguments if they are given; others of its arguments don't matter.
        Raises InvalidJob for an argument that *job* doesn't have.
        """
        expected = {} if job is None else matching.expected_arguments(job, args, kwargs)
        found = self._run(self._waiting(None if job is None else job.name))
        return [one for one in found if job is None or matching.matches(one, job, expected)]

    def assert_enqueued(self, job: Job[..., Any], /, *args: Any, count: int = 1, **kwargs: Any) -> list[Waiting]:
        """
        Raise AssertionError, saying what there is instead, unless *count* jobs of *job* wait.

        With these arguments; those that aren't given don't matter. Returns the jobs.
        """
        return matching.check(self.enqueued(), job, args, kwargs, count)

    async def drain(self, queue: str | None = None, *, limit: int = LIMIT, raise_errors: bool = False) -> Report:
        """
        Run everything that is due, by a real worker in this loop, until nothing is.

        That includes what the jobs themselves enqueue. What is due later stays (`travel` makes it
        due), and so do jobs of paused queues, and of others if a *queue* is given.

        With *raise_errors* it stops after the first attempt that fails, and raises what the handler
        raised, so that the test shows its traceback. Raises AssertionError when *limit* attempts were
        not enough: a job that is due again and again would never end.
        """
        self._opened()
        options = {"queue": queue, "limit": limit, "raise_errors": raise_errors}
        return await draining.drain(self.app.runtime(), self.database_url, self._worker_settings(), **options)

    def drain_sync(self, queue: str | None = None, *, limit: int = LIMIT, raise_errors: bool = False) -> Report:
        """The same for sync tests: the worker runs in a loop of another thread."""
        return self._run(self.drain(queue, limit=limit, raise_errors=raise_errors))

    async def run_inline(self, job: Job[..., R], /, *args: Any, **kwargs: Any) -> R:
        """
        Run *job* with these arguments here and now, past the database; returns its result.

        The arguments and the result go through JSON and back. The app's lifespan is opened for it.
        Raises InvalidJob for arguments that don't fit, and whatever the function raises.
        """
        async with inline.lifespan_of(self.app) as resources:
            return await inline.run_with(job, resources, args, kwargs)

    def run_inline_sync(self, job: Job[..., R], /, *args: Any, **kwargs: Any) -> R:
        """The same for sync tests, in a loop of another thread."""
        return self._run(self.run_inline(job, *args, **kwargs))

    def job(self, job_id: UUID) -> JobRecord:
        """The full record of a job, as it is now. Raises JobNotFound."""

        async def read() -> JobRecord:
            from fencepost.store.jobs import Jobs

            database = self._opened()
            hints = Hints(database)
            return await Jobs(database, Queues(database, hints), hints).get(job_id)

        return self._run(read())

    def now(self) -> datetime:
        """What the database's clock says."""

        async def read() -> datetime:
            [state] = await self._opened().fetch("drain_state", worker_id=UUID(int=0), queues=[])
            moment: datetime = state["now"]
            return moment

        return self._run(read())

    def freeze(self, at: datetime | None = None) -> datetime:
        """
        Stop the database's clock, at a moment or where it is; returns what it says then.

        Everything that has a time gets it from there: due times, backoff, leases, expiry. Not so the
        timeouts of handlers, what Python's own clocks say, and job ids, which are always of the real time.
        """
        if at is not None and at.tzinfo is None:
            raise ValueError(f"at: {at.isoformat()} has no time zone; say datetime(…, tzinfo=UTC) or the like")
        self._run(clock.freeze(self._opened(), None if at is None else at.astimezone(UTC)))
        return self.now()

    def travel(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, milliseconds: float = 0
    ) -> datetime:
        """Put the clock forward, whether it stands or runs; returns what it says then. Never back: `freeze` can."""
        by = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        if by < timedelta(0):
            raise ValueError("a clock is put forward by a positive time; freeze(at=…) sets it to any moment")
        self._run(clock.travel(self._opened(), by))
        return self.now()

    def unfreeze(self) -> None:
        """Let the clock be the real one again."""
        self._run(clock.unfreeze(self._opened()))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._elsewhere is None:
            work.close()
            raise FencepostError(_NOT_OPEN)
        return self._portal.run(work)

    def _opened(self) -> Database:
        if self._database is None:
            raise FencepostError(_NOT_OPEN)
        return self._database

    def _begin(self) -> None:
        if self._elsewhere is not None:
            raise FencepostError("this kit is open already")
        clock.obey()
        self._elsewhere = Elsewhere(self.app, self.database_url)
        try:
            self._portal.run(self._open())
        except BaseException:
            self._end()
            raise

    async def _open(self) -> None:
        settings = self.app.settings
        self._database = Database(self.database_url, schema=settings.schema, connections=1, lines=0)
        await self._database.open()
        await prepare(self._database, partition_days=settings.partition_days)
        await clock.install(self._database)

    def _end(self) -> None:
        elsewhere, self._elsewhere = self._elsewhere, None
        try:
            if elsewhere is not None:
                elsewhere.back()
        finally:
            self._portal.stop()

    async def _close(self) -> None:
        """The end of the portal's loop."""
        database, self._database = self._database, None
        if database is not None:
            if database.is_open:
                await clock.unfreeze(database)
            await database.close()

    def _worker_settings(self) -> Settings:
        return self._settings or self.app.settings

    async def _waiting(self, type_name: str | None) -> list[Waiting]:
        database = self._opened()
        listing = Listing(database, Queues(database, Hints(database)))
        found: list[JobRecord] = []
        before: UUID | None = None
        while True:
            page = await listing.page(Filter(status=Status.PENDING, type=type_name), limit=_PAGE_JOBS, before=before)
            found += page.jobs
            before = page.next_before
            if before is None:
                return [self._read(job) for job in reversed(found)]

    def _read(self, job: JobRecord) -> Waiting:
        raw = bytes(job.payload)
        return Waiting(
            id=job.id,
            type=job.type,
            arguments=matching.read_arguments(self.app.types.get(job.type), raw),
            payload=msgspec.json.decode(raw),
            queue=job.queue,
            priority=job.priority,
            run_at=job.run_at,
            attempts=job.attempts,
            tags=tuple(job.tags),
            metadata={} if job.metadata is None else msgspec.json.decode(bytes(job.metadata)),
            idempotency_key=job.idempotency_key,
        )


class MakeKit(Protocol):
    """What the fixture `fencepost_kit` is: makes a kit for an app, on the test's own database."""

    def __call__(self, app: Fencepost, *, settings: Settings | None = None) -> Kit:
        """Make it; open it by `with` or `async with`."""
        ...
