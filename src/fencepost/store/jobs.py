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
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from fencepost.domain.job import Attempt, Job, NewJob, Status
from fencepost.errors import DatabaseUnavailable, DuplicateJob, JobNotFound, PrivilegeMissing, WrongStatus
from fencepost.store.database import Database
from fencepost.store.enqueueing import (
    Answer,
    Differing,
    Enqueued,
    Record,
    decode_answer,
    due_soon,
    encode_jobs,
    encode_records,
    outcomes,
    record_of,
    stirred,
    verdicts,
)
from fencepost.store.failures import deadlocked, waited_too_long
from fencepost.store.hints import Hint, Hints, due_hint
from fencepost.store.holding import Contended
from fencepost.store.merging import Merger
from fencepost.store.querying import Row
from fencepost.store.queues import Queues

RACE_ROUNDS = 5
"""How often an operation by id looks again when the job was just moving."""


class Jobs:
    """The jobs of one schema, as producers and operators use them."""

    def __init__(self, database: Database, queues: Queues, hints: Hints) -> None:
        self._database = database
        self._queues = queues
        self._hints = hints
        self._plain = Merger(self._insert_plain)
        # Apart, since a key may be in the hands of somebody's long transaction.
        self._keyed = Merger(self._insert_keyed, keys=Record.keys)
        self.pulses = (self._plain.pulse, self._keyed.pulse)
        """Of what stores the jobs of concurrent callers."""
        self._may_only_enqueue = False

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """
        Store *jobs*, all or none, and wake workers when they are committed.

        A job whose idempotency key made the same request's job before is not stored
        again, and one whose unique key another job holds may not be: its entry names that
        job and says what was done. Answers come in the order of *jobs*.

        Raises KeyConflict when an idempotency key was used for another request (then nothing
        at all is stored) and DatabaseUnavailable when it isn't known whether they were
        stored: the same call again is safe for jobs with an idempotency key.
        """
        if self._may_only_enqueue:
            return await self._enqueue_by_function(jobs)
        try:
            return await self._enqueue(jobs)
        except PrivilegeMissing:
            # Whoever may call the function and no more is a producer; nothing was stored.
            with suppress(PrivilegeMissing):
                stored = await self._enqueue_by_function(jobs)
                self._may_only_enqueue = True
                return stored
            raise

    async def _enqueue_by_function(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """The same for a role that may call `enqueue_jobs` and touch no table. Raises KeyConflict."""
        if not jobs:
            return []
        for tries_left in reversed(range(RACE_ROUNDS)):
            try:
                async with self._database.patience.place():
                    rows = await self._database.fetch("enqueue_jobs", jobs=encode_jobs(jobs))
            except DatabaseUnavailable as error:
                if not (deadlocked(error) and tries_left):
                    raise
                continue
            answer = decode_answer(rows[0]["answer"])
            if not (tries_left and any(one.key_gone for one in answer.differing)):
                break
        return outcomes(answer, [record_of(job) for job in jobs])

    async def _enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        places = {place: await self._queues.ensure(*place) for place in {(job.queue, job.priority) for job in jobs}}
        records = [record_of(job, places[job.queue, job.priority]) for job in jobs]
        if len(records) != 1:
            return await self._enqueue_all(records) if records else []
        if records[0].is_plain:
            return [await self._plain.put(records[0])]
        verdict = await self._keyed.put(records[0])
        if isinstance(verdict, Enqueued):
            return [verdict]
        if verdict.key_gone:
            return await self._enqueue_all(records)
        raise verdict.refusal(records[0])

    async def _enqueue_all(self, records: list[Record]) -> list[Enqueued]:
        """Several jobs, all or none. Raises KeyConflict."""
        if all(record.is_plain for record in records):
            return await self._insert_plain(records)
        for _ in range(RACE_ROUNDS):
            answer = await self._queues.placed(records, self._send_patiently)
            if not any(one.key_gone for one in answer.differing):
                break
        return outcomes(answer, records)

    async def _insert_plain(self, records: Sequence[Record]) -> list[Enqueued]:
        """Store records without keys, of one caller or of several, all or none, and wake workers."""
        created_at = await self._queues.placed(records, self._send_plain)
        return [record.stored(created_at) for record in records]

    async def _insert_keyed(self, records: Sequence[Record]) -> list[Enqueued | Differing]:
        """Store what can be stored of several callers' records. Raises Contended, and then nothing is."""
        try:
            return verdicts(await self._queues.placed(records, partial(self._send, whole=False)), records)
        except DatabaseUnavailable as error:
            if waited_too_long(error):
                raise Contended from error
            raise

    async def _send_patiently(self, records: Sequence[Record]) -> Answer | None:
        async with self._database.patience.place():
            return await self._send(records, whole=True)

    async def _send(self, records: Sequence[Record], *, whole: bool) -> Answer | None:
        """Store records in one statement, and wake workers. None, and nothing is stored, where no claim would look."""
        jobs, named = encode_records(records), self._hints.offer(due_soon(records, datetime.now(UTC)))
        for tries_left in reversed(range(RACE_ROUNDS)):
            try:
                rows = await self._hints.fetch("enqueue", jobs=jobs, whole=whole, hint=due_hint(named))
                break
            except DatabaseUnavailable as error:
                # With somebody's transaction that took keys in another order. Nothing of this is stored.
                if not (deadlocked(error) and tries_left):
                    raise
        if not rows:
            return None
        answer = decode_answer(rows[0]["answer"])
        self._hints.committed(stirred(answer, records), named=named)
        return answer

    async def _send_plain(self, records: Sequence[Record]) -> datetime | None:
        """The same for records without keys; returns when they were stored."""
        soon = due_soon(records, datetime.now(UTC))
        named = self._hints.offer(soon)
        if len(records) == 1:
            rows = await self._send_one(records[0], due_hint(named))
        else:
            rows = await self._hints.fetch("enqueue_plain", jobs=encode_records(records), hint=due_hint(named))
        created_at: datetime | None = rows[0]["created_at"] if rows else None
        if created_at is not None:
            self._hints.committed(soon, named=named)
        return created_at

    async def _send_one(self, record: Record, hint: Hint) -> list[Row]:
        return await self._hints.fetch(
            "enqueue_one",
            id=record.id,
            queue=record.queue,
            queue_id=record.queue_id,
            type=record.type,
            priority=record.priority,
            payload=bytes(record.payload),
            max_attempts=record.max_attempts,
            timeout_seconds=record.timeout_seconds,
            run_at=record.run_at,
            delay_microseconds=record.delay_microseconds,
            request_id=record.request_id,
            tags=record.tags,
            metadata=None if record.metadata is None else bytes(record.metadata),
            trace_context=record.trace_context,
            expires_at=record.expires_at,
            expires_microseconds=record.expires_microseconds,
            hint=hint,
        )

    async def get(self, job_id: UUID) -> Job:
        """Read a job as it is now. Raises JobNotFound."""
        rows = await self._database.fetch("read_jobs", ids=[job_id], payloads=True)
        if not rows:
            raise not_found(job_id)
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
            async with self._database.patience.place():
                rows = await self._hints.fetch(
                    "cancel", id=job_id, queue_id=queue_id, hint=self._hints.cancellation(queue_id, job_id)
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

        A job with a unique key holds it again.

        Raises JobNotFound, WrongStatus for a job in any other status, and DuplicateJob while
        another job holds its unique key.
        """
        queue_id = await self._queue_of(job_id)
        for _ in range(RACE_ROUNDS):
            hint = self._hints.immediate({queue_id})
            async with self._database.patience.place():
                rows = await self._hints.fetch("retry", id=job_id, queue_id=queue_id, hint=hint)
            if not rows:
                job = await self.get(job_id)
                raise WrongStatus(f"job {job_id} is {job.status}; only a dead_letter job can be retried")
            if rows[0]["effect"] == "retried":
                self._hints.committed({queue_id})
                return
            if rows[0]["effect"] == "held":
                raise DuplicateJob(
                    f"job {rows[0]['holder']} holds the unique key of job {job_id}; "
                    "retry it when that one holds it no longer"
                )
        raise DuplicateJob(f"the unique key of job {job_id} kept moving between other jobs; try again")

    async def audit(self) -> dict[str, int]:
        """Count the jobs and the places they are in: `jobs` is the sum of the rest, or something is wrong."""
        return dict((await self._database.fetch("audit"))[0])

    async def _queue_of(self, job_id: UUID) -> int:
        rows = await self._database.fetch("job_queue", id=job_id)
        if not rows:
            raise not_found(job_id)
        return int(rows[0]["queue_id"])


def job_of_row(row: Row) -> Job:
    """Make a Job of a row of `read_jobs.sql`; its payload is `null` where it wasn't read."""
    fields: dict[str, Any] = dict(row)
    fields["status"] = Status(fields["status"])
    fields["payload"] = msgspec.Raw(fields["payload"] or b"null")
    for name in ("result", "metadata", "progress"):
        if fields.get(name) is not None:
            fields[name] = msgspec.Raw(fields[name])
    fields["tags"] = fields.get("tags") or []
    return Job(**fields)


def not_found(job_id: UUID) -> JobNotFound:
    """The error for an id that no job has."""
    return JobNotFound(f"there is no job {job_id}; it was never enqueued here, or its retention has passed")
