"""What the worker's tests share: a bench that starts workers and looks at their jobs, and ways to wait."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from fencepost.app import Fencepost
from fencepost.domain.ids import new_id
from fencepost.domain.job import Attempt as PastAttempt
from fencepost.domain.job import Job, Lease, NewJob, Status
from fencepost.domain.outcome import Ending
from fencepost.settings import Settings
from fencepost.store.claims import Claim
from fencepost.store.database import Database
from fencepost.store.jobs import Jobs, job_of_row
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore
from fencepost.telemetry.events import Events
from fencepost.types.jobtype import Handler
from fencepost.worker.worker import Worker
from tests.patience import limit

SETTINGS = Settings(
    workers=4,
    job_timeout_seconds=20.0,
    lease_seconds=30.0,
    # Nothing in these tests may lean on polling or on recovery without saying so.
    recovery_interval_seconds=30.0,
    poll_interval_seconds=30.0,
    backoff_base_seconds=0.02,
    backoff_max_seconds=0.1,
)


async def wait_until(predicate: Callable[[], object], seconds: float, what: str = "") -> None:
    """Return once *predicate*, plain or async, says yes. Fails after *seconds*, and some patience."""
    deadline = time.monotonic() + limit(seconds)
    while True:
        answer = predicate()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {seconds:g} s: {what or inspect.getsource(predicate).strip()}")
        await asyncio.sleep(0.01)


async def within(seconds: float, work: Awaitable[Any]) -> Any:
    """Await *work*; fails after *seconds*, and some patience."""
    async with asyncio.timeout(limit(seconds)):
        return await work


def make_lease(**fields: Any) -> Lease:
    """A lease as a claim brings it, for parts that are tested without a database."""
    values: dict[str, Any] = {
        "id": new_id(),
        "queue_id": 1,
        "queue": "default",
        "token": 1,
        "type": "work",
        "payload": "{}",
        "attempt": 1,
        "max_attempts": 3,
        "timeout_seconds": None,
        "request_id": None,
    }
    return Lease(**{**values, **fields})


class Tally(Events):
    """Counts what the engine reports."""

    def __init__(self) -> None:
        self.starts = 0
        self.endings: Counter[tuple[Ending, str | None]] = Counter()
        self.recoveries = 0
        self.stuck_now = 0
        self.stuck_ever = 0

    def started(self) -> None:
        self.starts += 1

    def ended(self, ending: Ending, status: str | None, seconds: float) -> None:
        self.endings[ending, status] += 1

    def recovered(self, count: int) -> None:
        self.recoveries += count

    def stuck(self, change: int) -> None:
        self.stuck_now += change
        self.stuck_ever += change > 0


class Overlap:
    """Counts how many are inside at once. For handlers in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = 0
        self.most = 0
        self.entered = 0

    def __enter__(self) -> Overlap:
        with self._lock:
            self.now += 1
            self.entered += 1
            self.most = max(self.most, self.now)
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


Function = TypeVar("Function", bound=Handler)


class Bench:
    """One database, the job types of a test, and the workers it starts."""

    def __init__(self, dsn: str, database: Database, jobs: Jobs, queues: Queues, connection: Any) -> None:
        self.dsn = dsn
        self.database = database
        self.jobs = jobs
        self.queues = queues
        self.app = Fencepost()
        self.workers: list[Worker] = []
        self._connection: asyncpg.Connection[Any] = connection

    def job(self, name: str, *, payload: Any = Any) -> Callable[[Function], Function]:
        """Register the decorated function of a context and a payload as the handler of *name*."""

        def decorate(handler: Function) -> Function:
            self.app.register(name, handler, payload)
            return handler

        return decorate

    async def start(
        self, *, events: Events | None = None, dsn: str | None = None, app: Fencepost | None = None, **settings: Any
    ) -> Worker:
        """Start a worker that knows this bench's job types; the fixture drains it."""
        worker = self.make(events=events, dsn=dsn, app=app, **settings)
        await worker.start()
        return worker

    def make(
        self, *, events: Events | None = None, dsn: str | None = None, app: Fencepost | None = None, **settings: Any
    ) -> Worker:
        """A worker that is not started yet."""
        worker = Worker(
            dsn or self.dsn,
            (app or self.app).types,
            msgspec.structs.replace(SETTINGS, **settings),
            events or Events(),
        )
        self.workers.append(worker)
        return worker

    async def enqueue(self, type: str, payload: Any = None, **fields: Any) -> UUID:
        """Enqueue one job and return its id."""
        return (await self.enqueue_many(type, [payload], **fields))[0]

    async def enqueue_many(self, type: str, payloads: Sequence[Any], **fields: Any) -> list[UUID]:
        """Enqueue a job for each of *payloads* (None is {}), in one transaction."""
        new = [
            NewJob(
                id=new_id(),
                type=type,
                payload=msgspec.json.encode({} if payload is None else payload),
                **{"max_attempts": 3, **fields},
            )
            for payload in payloads
        ]
        return [enqueued.id for enqueued in await self.jobs.enqueue(new)]

    async def get(self, job_id: UUID) -> Job:
        return await self.jobs.get(job_id)

    async def statuses(self, ids: Sequence[UUID]) -> Counter[str]:
        return Counter([(await self.get(job_id)).status.value for job_id in ids])

    async def finished(self, *ids: UUID, seconds: float = 8.0) -> list[Job]:
        """Wait until these jobs have ended, whichever way, and read them."""
        await wait_until(lambda: self._count_finished(ids, len(ids)), seconds, f"{len(ids)} jobs to end")
        return [await self.get(job_id) for job_id in ids]

    async def finished_quickly(self, ids: Sequence[UUID], seconds: float = 15.0) -> list[Job]:
        """As `finished`, for many: read in one statement."""
        await wait_until(lambda: self._count_finished(ids, len(ids)), seconds, f"{len(ids)} jobs to end")
        rows = await self.database.fetch("read_jobs", ids=list(ids), payloads=True)
        return [job_of_row(row) for row in rows]

    async def ended(self, job_id: UUID, seconds: float = 8.0) -> Job:
        return (await self.finished(job_id, seconds=seconds))[0]

    async def _count_finished(self, ids: Sequence[UUID], wanted: int) -> bool:
        return bool(await self.value("select count(*) from fencepost.finished where id = any($1)", list(ids)) == wanted)

    async def reached(self, job_id: UUID, status: Status, seconds: float = 5.0) -> Job:
        """Wait until a job is in *status*, and read it."""

        async def there() -> bool:
            return (await self.get(job_id)).status is status

        await wait_until(there, seconds, f"job {job_id} to be {status}")
        return await self.get(job_id)

    async def reached_after(self, job_id: UUID, attempts: int, seconds: float = 5.0) -> Job:
        """Wait until a job is back in pending with so many attempts spent."""

        async def there() -> bool:
            job = await self.get(job_id)
            return job.status is Status.PENDING and job.attempts == attempts

        await wait_until(there, seconds, f"job {job_id} to be pending after {attempts} attempts")
        return await self.get(job_id)

    async def history(self, job_id: UUID) -> list[PastAttempt]:
        """The attempts that didn't succeed, the first one first."""
        return (await self.jobs.attempts(job_id))[::-1]

    async def value(self, sql: str, *values: Any) -> Any:
        """Run SQL text and return the first column of its first row."""
        return await self._connection.fetchval(sql, *values)

    async def sql(self, sql: str, *values: Any) -> list[Any]:
        return await self._connection.fetch(sql, *values)

    async def queue_id(self, name: str = "default") -> int:
        return await self.queues.id_of(name)

    async def audit(self) -> None:
        """No job is lost, and none is in two places."""
        counts = await self.jobs.audit()
        assert counts.pop("jobs") == sum(counts.values()), counts

    async def expire(self, job_id: UUID) -> None:
        """Let a lease run out and be recovered, as if its worker had been silent for too long."""
        queue_id = await self.queue_id((await self.get(job_id)).queue)
        token = (await self.get(job_id)).lease_token
        store = WorkerStore(self.database, new_id())

        async def recovered() -> bool:
            # Its worker may renew it between these two statements; then once more.
            await self.sql(
                "update fencepost.leases set locked_until = started_at + interval '1us' where id = $1 and token = $2",
                job_id,
                token,
            )
            await store.recover(queue_id, after=None, max_rows=100)
            # By this sweep or by a worker's own.
            return not await self.value(
                "select exists (select from fencepost.leases where id = $1 and token = $2)", job_id, token
            )

        await wait_until(recovered, 3, "a lease to be recovered")

    async def orphan(self, max_attempts: int, *, attempts: int = 1, queue: str = "default") -> UUID:
        """Leave a job of the type "orphan" whose worker died: claimed, and its lease has run out."""
        job_id = await self.enqueue("orphan", max_attempts=max_attempts, queue=queue)
        store = WorkerStore(self.database, new_id())
        queue_id = await self.queue_id(queue)
        for attempt in range(attempts):
            await store.claim(queue_id, slots=1, cursors={}, lease_seconds=0.001, aging_seconds=0)
            await asyncio.sleep(0.005)
            if attempt < attempts - 1:
                await store.recover(queue_id, after=None, max_rows=10)
        return job_id

    async def start_swept(self, **settings: Any) -> Worker:
        """Start a worker whose first sweep is over, so that no lease is taken back by it for a recovery interval."""
        orphan = await self.orphan(1)
        worker = await self.start(**settings)
        assert (await self.ended(orphan)).status is Status.DEAD_LETTER
        return worker

    async def kill_backends(self) -> int:
        """Terminate every connection of our software to this database; returns how many there were."""
        return int(
            await self.value(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid() and application_name = 'fencepost'"
            )
        )


class Claims:
    """What a worker has asked its store to claim, and what it got."""

    def __init__(self, worker: Worker) -> None:
        self.made: list[tuple[int, int, Claim]] = []
        """Queue, slots asked for, answer."""
        store: WorkerStore = worker._store
        claim = store.claim

        async def spy(queue_id: int, *, slots: int, **rest: Any) -> Claim:
            answer = await claim(queue_id, slots=slots, **rest)
            self.made.append((queue_id, slots, answer))
            return answer

        turn = store.turn

        async def spy_turn(queue_id: int, outcomes: Any, *, slots: int, **rest: Any) -> Any:
            statuses, answer = await turn(queue_id, outcomes, slots=slots, **rest)
            self.made.append((queue_id, slots, answer))
            return statuses, answer

        store.turn = spy_turn  # type: ignore[method-assign]
        store.claim = spy  # type: ignore[method-assign]

    @property
    def leases(self) -> list[Lease]:
        return [lease for _, _, claim in self.made for lease in claim.leases]

    async def one_more(self, worker: Worker, queue_id: int, seconds: float = 3.0) -> Claim:
        """Make the worker look at a queue; return what its claim there brought."""
        known = len(self.made)
        worker.wake([queue_id])
        await wait_until(lambda: any(queue == queue_id for queue, _, _ in self.made[known:]), seconds, "another claim")
        return next(claim for queue, _, claim in self.made[known:] if queue == queue_id)


def records(caplog: Any, message: str) -> list[logging.LogRecord]:
    """The records logged with this message."""
    return [record for record in caplog.records if record.getMessage() == message]


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What a record carries beyond the standard attributes."""
    standard = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
    return {name: value for name, value in vars(record).items() if name not in standard}
