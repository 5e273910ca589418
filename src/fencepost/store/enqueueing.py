"""
What an enqueue says to the database, and what it answers.

One text goes in and one comes out, so any driver can store jobs in its own transaction.
Nothing here knows a driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from fencepost.domain.job import NewJob, Unique
from fencepost.errors import InvalidJob, KeyConflict
from fencepost.store import statements

SOON = timedelta(minutes=1)
"""What is due later needs no wake-up: workers look at the schedule more often than that."""
_SOON_MICROSECONDS = 60_000_000

CALL_BYTES = (1 << 28) - 1
"""As many as a jsonb array may have. Beyond four times as many the server hangs up rather than say so."""

CREATED, REPLAYED, SKIPPED, REPLACED, RESCHEDULED = "created", "replayed", "skipped", "replaced", "rescheduled"


class Enqueued(msgspec.Struct, frozen=True):
    """What became of one job of an enqueue."""

    id: UUID
    """The job that is there now: the new one, or the one that was there before."""
    effect: str = CREATED
    """
    `created`; `replayed` when its idempotency key had made this job before. For a job with a unique key also `skipped`
    (another is there), `rescheduled` (another is there and was moved) or `replaced` (it took another's place).
    """
    created_at: Any = None
    run_at: Any = None
    """Both only when it is a new job."""

    @property
    def replayed(self) -> bool:
        """True when its idempotency key had made this job before."""
        return self.effect == REPLAYED

    @property
    def is_new(self) -> bool:
        """Whether this call made the job."""
        return self.effect in (CREATED, REPLACED)


class _Unique(msgspec.Struct, frozen=True, omit_defaults=True):
    key: str
    until: str
    mode: str = "skip"
    period_microseconds: int | None = None


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job as the database reads it. What is left out costs nothing to send and to parse."""

    id: UUID
    type: str
    payload: msgspec.Raw
    max_attempts: int
    queue: str = ""
    queue_id: int = 0
    """Once the queue and the lane are known to exist. Its name goes along, to see that they still do."""
    priority: int = 0
    timeout_seconds: float | None = None
    run_at: datetime | None = None
    delay_microseconds: int | None = None
    request_id: str | None = None
    trace_context: str | None = None
    idempotency_key: str | None = None
    schedule: str | None = None
    unique: _Unique | None = None
    tags: tuple[str, ...] | None = None
    metadata: msgspec.Raw | None = None
    expires_at: datetime | None = None
    expires_microseconds: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether no key can stand in its way."""
        return self.idempotency_key is None and self.unique is None

    def keys(self) -> list[tuple[str, ...]]:
        """The keys of it that another transaction may hold."""
        keys: list[tuple[str, ...]] = [] if self.idempotency_key is None else [(self.idempotency_key,)]
        return keys if self.unique is None else [*keys, (self.type, self.unique.key)]

    def stored(self, created_at: datetime, effect: str = CREATED) -> Enqueued:
        """What became of it, stored at that time of the database's. It is due when the statements say, too."""
        due = created_at
        if self.run_at is not None:
            due = max(self.run_at.astimezone(UTC), created_at)
        elif self.delay_microseconds:
            due = created_at + timedelta(microseconds=self.delay_microseconds)
        return Enqueued(self.id, effect, created_at, due)


class Differing(msgspec.Struct, frozen=True):
    """What became of a job that was not just stored, as the database says it."""

    place: int
    id: UUID | None = None
    effect: str = ""
    gone: bool = False
    queue_id: int = 0
    run_at: datetime | None = None
    """Of a waiting job that was moved, or held back until the commit."""
    replaced: UUID | None = None

    @property
    def key_gone(self) -> bool:
        """
        Whether the idempotency key stood in the way and then wasn't there.

        Retention removed it in between; or the request that took it, in the same statement, made no job.
        """
        return self.effect == "key_gone"

    @property
    def is_refusal(self) -> bool:
        """Whether nothing was stored, and nothing was there, for this job."""
        return self.effect in ("conflict", "key_gone")

    def refusal(self, record: Record, *, is_shared: bool = False) -> KeyConflict:
        """The error that it is to whoever asked for *record*. *is_shared*: with others that have its key, at once."""
        key = record.idempotency_key
        if self.key_gone and is_shared:
            return KeyConflict(
                f"the idempotency key {key!r} is that of two different requests of this call; use one for each"
            )
        if self.key_gone:
            return KeyConflict(f"the job of the idempotency key {key!r} is being removed right now; try again")
        # Keys may be kept for longer than jobs. Whether this request is the same can't be told any more, and a
        # second job is what the key is there to prevent.
        what = ", which has ended and was removed since" if self.gone else " from another request"
        return KeyConflict(
            f"the idempotency key {key!r} already made job {self.id}{what}; use a new key for a new request"
        )


class Answer(msgspec.Struct, frozen=True):
    """What `fencepost.enqueue_jobs` returns."""

    created_at: datetime
    differing: list[Differing] = []
    quiet: bool = False
    """Nothing was stored or moved."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Answer)


def enqueue_sql(schema: str) -> str:
    """
    The statement that stores jobs in the transaction it runs in.

    Its one parameter, spelled `:jobs`, is what `encode_jobs` makes. Its one value is for `read_answer`. It wakes
    workers when that transaction commits.
    """
    return statements.text("enqueue_jobs", schema)


def encode_jobs(jobs: Sequence[NewJob]) -> str:
    """Write *jobs* as the statement takes them. Raises InvalidJob when that is more than PostgreSQL takes."""
    return encode_records([record_of(job) for job in jobs]).decode()


def read_answer(text: str | bytes, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """
    What became of *jobs*, in their order.

    Raises KeyConflict when an idempotency key was used for another request; then nothing at all was
    stored, and the transaction goes on.
    """
    return outcomes(decode_answer(text), [record_of(job) for job in jobs])


def encode_records(records: Sequence[Record]) -> bytes:
    """Write *records* as the statements take them. Raises InvalidJob when that is more than PostgreSQL takes."""
    raw = _encoder.encode(records)
    if len(raw) > CALL_BYTES:
        raise InvalidJob(
            f"take {len(raw):,} bytes together, and one call takes {CALL_BYTES:,}; store them in several", field="jobs"
        )
    return raw


def decode_answer(text: str | bytes) -> Answer:
    """Read what `fencepost.enqueue_jobs` returned."""
    return _decoder.decode(text)


def verdicts(answer: Answer, records: Sequence[Record]) -> list[Enqueued | Differing]:
    """What became of *records*, in their order; a refusal where there is nothing to name."""
    created_at = answer.created_at.astimezone(UTC)
    differing = {one.place: one for one in answer.differing}
    found: list[Enqueued | Differing] = []
    for place, record in enumerate(records):
        one = differing.get(place)
        if one is None:
            found.append(record.stored(created_at))
        elif one.effect == REPLACED:
            found.append(record.stored(created_at, REPLACED))
        else:
            found.append(one if one.id is None or one.is_refusal else Enqueued(one.id, one.effect))
    return found


def outcomes(answer: Answer, records: Sequence[Record]) -> list[Enqueued]:
    """What became of *records*, in their order. Raises KeyConflict for the first that was refused."""
    found: list[Enqueued] = []
    for record, verdict in zip(records, verdicts(answer, records), strict=True):
        if isinstance(verdict, Differing):
            keys = [one.idempotency_key for one in records]
            raise verdict.refusal(record, is_shared=keys.count(record.idempotency_key) > 1)
        found.append(verdict)
    return found


def due_soon(records: Iterable[Record], now: datetime) -> set[int]:
    """The queues in which some of *records* are due within `SOON`, if it is *now*."""
    found = set()
    for record in records:
        if record.queue_id not in found:
            if record.run_at is not None:
                soon = record.run_at - now < SOON
            else:
                soon = record.delay_microseconds is None or record.delay_microseconds < _SOON_MICROSECONDS
            if soon:
                found.add(record.queue_id)
    return found


def stirred(answer: Answer, records: Sequence[Record]) -> set[int]:
    """The queues that have something due soon, since *records* were stored, or made jobs that wait there move."""
    if answer.quiet:
        return set()
    now = answer.created_at
    moved = {one.queue_id for one in answer.differing if one.run_at is not None and one.run_at - now < SOON}
    others = {one.place for one in answer.differing if one.effect != REPLACED}
    return moved | due_soon((record for place, record in enumerate(records) if place not in others), now)


def record_of(job: NewJob, queue_id: int = 0) -> Record:
    """What is sent of *job*; with *queue_id* when its queue and lane are known to exist."""
    # By position, since a thousand of them are made in a bulk enqueue.
    plain = (
        job.id, job.type, msgspec.Raw(job.payload), job.max_attempts, job.queue, queue_id,
        job.priority, job.timeout_seconds, job.run_at,
        None if job.delay_seconds is None else round(job.delay_seconds * 1_000_000), job.request_id, job.trace_context,
    )  # fmt: skip
    is_simple = job.idempotency_key is None and job.unique is None and not job.tags and job.metadata is None
    if is_simple and job.expires_at is None and job.expires_seconds is None:
        return Record(*plain)
    return Record(
        *plain,
        idempotency_key=job.idempotency_key,
        schedule=None if job.idempotency_key is None else _schedule(job),
        unique=None if job.unique is None else _unique(job.unique),
        tags=job.tags or None,
        metadata=None if job.metadata is None else msgspec.Raw(job.metadata),
        expires_at=job.expires_at,
        expires_microseconds=_microseconds(job.expires_seconds),
    )


def _microseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1_000_000)


def _unique(unique: Unique) -> _Unique:
    return _Unique(unique.key, str(unique.until), str(unique.mode), _microseconds(unique.period_seconds))


def _schedule(job: NewJob) -> str:
    """What a repeated request must repeat beside what the job's row says. The SQL function enqueue writes the same."""
    if job.unique is None:
        return job.schedule
    period = "" if job.unique.period_seconds is None else f" of {job.unique.period_seconds!r}s"
    return f"{job.schedule}, unique until {job.unique.until}{period}, {job.unique.mode}, by {job.unique.key}"
