"""
Move jobs through their life in PostgreSQL.

Every function that changes a job is one statement and one round trip. It repeats, in
the statement, where it believes the job to be and (for a worker) under which lease
token; when the database disagrees nothing is written and the caller is told. That is
the whole protection against a worker that was given up for dead and wasn't.

Statements are in `store/sql/`. Read the one you call: its head names the index and
the locks.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from fencepost.domain.job import Attempt, Job, NewJob, Status
from fencepost.errors import JobNotFound, KeyConflict, WrongStatus
from fencepost.store.database import Database, Querier, Row
from fencepost.store.hints import Hint, Hints
from fencepost.store.merging import Merger
from fencepost.store.queues import Queues

RACE_ROUNDS = 5
"""How often an operation by id looks again when the job was just moving."""


class Enqueued(msgspec.Struct, frozen=True):
    """What became of one job of an enqueue."""

    id: UUID
    replayed: bool
    """True when its idempotency key had made this job before."""
    created_at: Any = None
    run_at: Any = None


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job as `enqueue.sql` and `replay.sql` read it. What is left out costs nothing to send and to parse."""

    id: UUID
    queue_id: int
    type: str
    payload: msgspec.Raw
    max_attempts: int
    priority: int = 0
    timeout_seconds: float | None = None
    run_at: datetime | None = None
    delay_microseconds: int | None = None
    idempotency_key: str | None = None
    schedule: str | None = None
    request_id: str | None = None

    def stored(self, created_at: datetime) -> Enqueued:
        """What became of it, at that time of the database's. It is due when the statement says, too."""
        due = created_at
        if self.run_at is not None:
            due = max(self.run_at.astimezone(UTC), created_at)
        elif self.delay_microseconds:
            due = created_at + timedelta(microseconds=self.delay_microseconds)
        return Enqueued(self.id, replayed=False, created_at=created_at, run_at=due)


class _KeyVanished(Exception):
    """An idempotency key was in the way of an insert and then wasn't there: retention removed it in between."""


class Jobs:
    """The jobs of one schema, as producers and operators use them."""

    def __init__(self, database: Database, queues: Queues, hints: Hints) -> None:
        self._database = database
        self._queues = queues
        self._hints = hints
        self._merger = Merger(self._insert)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """
        Store *jobs*, all or none, and wake workers when they are committed.

        A job whose idempotency key made the same request's job before is not stored
        again: its entry names that job. Answers come in the order of *jobs*.

        Raises KeyConflict when a key was used for another request (then nothing at all
        is stored) and DatabaseUnavailable when it isn't known whether they were stored:
        the same call again is safe for jobs with a key.
        """
        places = {place: await self._queues.ensure(*place) for place in {(job.queue, job.priority) for job in jobs}}
        records = [_record(job, places[job.queue, job.priority]) for job in jobs]
        for _ in range(RACE_ROUNDS):
            with suppress(_KeyVanished):
                return await (self._enqueue_one(records[0]) if len(records) == 1 else self._enqueue_all(records))
        raise KeyConflict("the job of this idempotency key is being removed right now; try again")

    async def _enqueue_one(self, record: _Record) -> list[Enqueued]:
        """One job, in a statement shared with whoever else is enqueueing. Raises _KeyVanished."""
        return [await self._merger.put(record) or await self._replay(self._database, record)]

    async def _enqueue_all(self, records: list[_Record]) -> list[Enqueued]:
        """Several jobs, all or none. Raises _KeyVanished."""
        if not any(record.idempotency_key for record in records):
            return [stored for stored in await self._insert(records) if stored is not None]
        queue_ids = _queue_ids(records)
        # A conflict must undo the rest of the request, so the look at the keys is in the same transaction.
        async with self._database.transaction() as session:
            found = await self._send(session, records, self._hints.offer(queue_ids))
            answers = [
                stored or await self._replay(session, record) for record, stored in zip(records, found, strict=True)
            ]
        self._hints.committed(queue_ids)
        return answers

    async def _insert(self, records: Sequence[_Record]) -> list[Enqueued | None]:
        """Store records in a transaction of their own, and wake workers. None for one whose key exists already."""
        queue_ids = _queue_ids(records)
        stored = await self._send(self._database, records, self._hints.offer(queue_ids))
        self._hints.committed(queue_ids)
        return stored

    async def _send(self, session: Querier, records: Sequence[_Record], hint: Hint) -> list[Enqueued | None]:
        if len(records) == 1 and records[0].idempotency_key is None:
            return [await self._send_one(session, records[0], hint)]
        head, *keyed = await session.fetch(
            "enqueue", jobs=msgspec.json.encode(records), channel=self._database.channel, hint=hint
        )
        created_at, new = head["created_at"], {row["id"] for row in keyed}
        return [
            record.stored(created_at) if record.idempotency_key is None or record.id in new else None
            for record in records
        ]

    async def _send_one(self, session: Querier, record: _Record, hint: Hint) -> Enqueued:
        rows = await session.fetch(
            "enqueue_one",
            id=record.id,
            queue_id=record.queue_id,
            type=record.type,
            priority=record.priority,
            payload=bytes(record.payload),
            max_attempts=record.max_attempts,
            timeout_seconds=record.timeout_seconds,
            run_at=record.run_at,
            delay_microseconds=record.delay_microseconds,
            request_id=record.request_id,
            channel=self._database.channel,
            hint=hint,
        )
        return record.stored(rows[0]["created_at"])

    async def _replay(self, session: Querier, record: _Record) -> Enqueued:
        """What a key that exists has made. Raises KeyConflict; _KeyVanished when it was removed just now."""
        rows = await session.fetch("replay", job=msgspec.json.encode(record))
        if not rows:
            raise _KeyVanished
        if rows[0]["job_gone"]:
            # Keys may be kept for longer than jobs. Whether this request is the same can't be told any more, and a
            # second job is what the key is there to prevent.
            raise KeyConflict(
                f"the idempotency key {record.idempotency_key!r} already made job {rows[0]['id']}, which has ended "
                "and was removed since; use a new key for a new request"
            )
        if not rows[0]["same"]:
            raise KeyConflict(
                f"the idempotency key {record.idempotency_key!r} already made job {rows[0]['id']} from another "
                "request; use a new key for a new request"
            )
        return Enqueued(id=rows[0]["id"], replayed=True)

    async def get(self, job_id: UUID) -> Job:
        """Read a job as it is now. Raises JobNotFound."""
        rows = await self._database.fetch("read_jobs", ids=[job_id])
        if not rows:
            raise _not_found(job_id)
        return job_of_row(rows[0])

    async def attempts(self, job_id: UUID) -> list[Attempt]:
        """The attempts at a job that didn't succeed, the latest first; at most 200."""
        queue_id = await self._queue_of(job_id)
        rows = await self._database.fetch("read_attempts", id=job_id, queue_id=queue_id)
        return [Attempt(**dict(row)) for row in rows]

    async def cancel(self, job_id: UUID) -> Status:
        """
        Stop a job: `cancelled` when it was pending, `processing` when its worker was asked to stop.

        A job that is asked to stop while it runs never runs again, but may still complete
        or fail by itself first.

        Raises JobNotFound, and WrongStatus when it has ended already.
        """
        queue_id = await self._queue_of(job_id)
        for _ in range(RACE_ROUNDS):
            rows = await self._database.fetch(
                "cancel",
                id=job_id,
                queue_id=queue_id,
                channel=self._database.channel,
                hint=self._hints.cancellation(queue_id, job_id),
            )
            if rows:
                return Status.CANCELLED if rows[0]["effect"] == "cancelled" else Status.PROCESSING
            job = await self.get(job_id)
            if job.finished_at is not None:
                raise WrongStatus(f"job {job_id} is {job.status} already, so there is nothing to cancel")
        raise WrongStatus(f"job {job_id} kept moving between pending and processing; try again")

    async def retry(self, job_id: UUID) -> None:
        """
        Put a dead-lettered job back to pending, with a full budget of attempts, due now.

        Raises JobNotFound, and WrongStatus for a job in any other status.
        """
        queue_id = await self._queue_of(job_id)
        rows = await self._database.fetch(
            "retry",
            id=job_id,
            queue_id=queue_id,
            channel=self._database.channel,
            hint=self._hints.immediate({queue_id}),
        )
        if rows:
            self._hints.committed({queue_id})
            return
        job = await self.get(job_id)
        raise WrongStatus(f"job {job_id} is {job.status}; only a dead_letter job can be retried")

    async def audit(self) -> dict[str, int]:
        """Count the jobs and the places they are in: `jobs` is the sum of the rest, or something is wrong."""
        return dict((await self._database.fetch("audit"))[0])

    async def _queue_of(self, job_id: UUID) -> int:
        rows = await self._database.fetch("job_queue", id=job_id)
        if not rows:
            raise _not_found(job_id)
        return int(rows[0]["queue_id"])


def job_of_row(row: Row) -> Job:
    """Make a Job of a row of `read_jobs.sql`."""
    fields: dict[str, Any] = dict(row)
    fields["status"] = Status(fields["status"])
    fields["payload"] = msgspec.Raw(fields["payload"])
    fields["result"] = None if fields["result"] is None else msgspec.Raw(fields["result"])
    return Job(**fields)


def _queue_ids(records: Sequence[_Record]) -> set[int]:
    return {record.queue_id for record in records}


def _record(job: NewJob, queue_id: int) -> _Record:
    return _Record(
        id=job.id,
        queue_id=queue_id,
        type=job.type,
        payload=msgspec.Raw(job.payload),
        max_attempts=job.max_attempts,
        priority=job.priority,
        timeout_seconds=job.timeout_seconds,
        run_at=job.run_at,
        delay_microseconds=None if job.delay_seconds is None else round(job.delay_seconds * 1_000_000),
        idempotency_key=job.idempotency_key,
        schedule=None if job.idempotency_key is None else job.schedule,
        request_id=job.request_id,
    )


def _not_found(job_id: UUID) -> JobNotFound:
    return JobNotFound(f"there is no job {job_id}; it was never enqueued here, or its retention has passed")
