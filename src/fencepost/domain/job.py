"""
The life of a job, as data.

`TRANSITIONS` is the whole state machine. The database enforces it by where a job's
row is: each status is a table (or a value in `finished`), and each event is one SQL
statement that moves the row or touches nothing. The diagram in the docs is drawn
from this constant, and a test drives every event against every status.
"""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec


class Status(enum.StrEnum):
    """Where a job stands. The legal moves are in `TRANSITIONS`; nothing else decides."""

    PENDING = "pending"
    """Waiting for its due time, then for a worker."""
    PROCESSING = "processing"
    """Leased to one attempt. Only that attempt, or its recovery, may end it."""
    COMPLETED = "completed"
    """A handler succeeded. Final."""
    FAILED = "failed"
    """It can never succeed: a permanent error, an unknown type, a payload that doesn't fit. Final."""
    DEAD_LETTER = "dead_letter"
    """Its attempts are used up. Kept until somebody retries it."""
    CANCELLED = "cancelled"
    """Somebody asked for it to stop. Final."""


class Event(enum.StrEnum):
    """What can happen to a job."""

    CREATE = "create"
    CLAIM = "claim"
    SUCCEED = "succeed"
    FAIL_RETRYABLE = "fail, attempts left"
    FAIL_LAST = "fail, last attempt"
    FAIL_PERMANENT = "fail permanently"
    RELEASE = "release"
    SNOOZE = "snooze"
    EXPIRE = "lease expires, attempts left"
    EXPIRE_LAST = "lease expires, last attempt"
    CANCEL = "cancel"
    RETRY = "retry by hand"


TRANSITIONS: dict[tuple[Status | None, Event], Status] = {
    (None, Event.CREATE): Status.PENDING,
    (Status.PENDING, Event.CLAIM): Status.PROCESSING,
    (Status.PENDING, Event.CANCEL): Status.CANCELLED,
    (Status.PROCESSING, Event.SUCCEED): Status.COMPLETED,
    (Status.PROCESSING, Event.FAIL_RETRYABLE): Status.PENDING,
    (Status.PROCESSING, Event.FAIL_LAST): Status.DEAD_LETTER,
    (Status.PROCESSING, Event.FAIL_PERMANENT): Status.FAILED,
    (Status.PROCESSING, Event.RELEASE): Status.PENDING,
    (Status.PROCESSING, Event.SNOOZE): Status.PENDING,
    (Status.PROCESSING, Event.EXPIRE): Status.PENDING,
    (Status.PROCESSING, Event.EXPIRE_LAST): Status.DEAD_LETTER,
    (Status.PROCESSING, Event.CANCEL): Status.CANCELLED,
    (Status.DEAD_LETTER, Event.RETRY): Status.PENDING,
}
"""Which event leads from which status to which. A pair that isn't here is refused."""


class Limits:
    """What a job may hold. Every door (HTTP, bulk, library) refuses the same."""

    MAX_ATTEMPTS = 100
    PRIORITY = 100
    NAME_BYTES = 100
    KEY_BYTES = 255
    PAYLOAD_DEPTH = 64
    TIMEOUT_SECONDS = 24 * 3600.0
    DELAY_SECONDS = 10 * 365 * 86400.0
    UNIQUE_KEY_BYTES = 255
    TAGS = 20
    TAG_BYTES = 100
    METADATA_BYTES = 16 << 10


class UniqueUntil(enum.StrEnum):
    """How long a job stands in the way of another one with its unique key."""

    STARTED = "started"
    """While it waits for its first attempt."""
    FINISHED = "finished"
    """While it is pending or processing."""
    PERIOD = "period"
    """For a time from its creation on, however it ends."""


class UniqueMode(enum.StrEnum):
    """What becomes of a request for a job whose unique key another job holds."""

    SKIP = "skip"
    """Nothing: the answer is the job that is there."""
    REPLACE = "replace"
    """The job that is there is cancelled, if it hasn't started, and the new one takes its place."""
    EARLIEST = "earliest"
    """The job that is there is made due when the new one would be, if that is earlier and it hasn't started."""
    LATEST = "latest"
    """The same, if that is later: the way to wait until a flood of requests has ebbed."""


class Unique(msgspec.Struct, frozen=True, kw_only=True):
    """No second job of one type with this key, as long as the first stands in the way."""

    key: str
    until: UniqueUntil | Literal["started", "finished", "period"] = UniqueUntil.FINISHED
    period_seconds: float | None = None
    """With `until=period`: for how long."""
    mode: UniqueMode | Literal["skip", "replace", "earliest", "latest"] = UniqueMode.SKIP


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job to enqueue, checked and complete. `fencepost.domain.requests` makes them from input."""

    id: UUID
    type: str
    queue: str = "default"
    priority: int = 0
    """0 to 100; the higher goes first."""
    payload: bytes = b"{}"
    """JSON text."""
    max_attempts: int
    run_at: datetime | None = None
    """Not before this moment. None, or the past, is now."""
    delay_seconds: float | None = None
    """Not before this long after the database has stored it."""
    timeout_seconds: float | None = None
    """Longest run of one attempt; None leaves it to the worker."""
    idempotency_key: str | None = None
    request_id: str | None = None
    unique: Unique | None = None
    tags: tuple[str, ...] = ()
    """Words to find it by."""
    metadata: bytes | None = None
    """A JSON object for whoever handles or watches the job; not a part of its payload."""
    trace_context: str | None = None
    """The W3C `traceparent` of whoever enqueued it."""
    expires_at: datetime | None = None
    """Not started at this moment, it ends cancelled instead."""
    expires_seconds: float | None = None
    """The same, as long after the database has stored it."""

    @property
    def schedule(self) -> str:
        """The due time and the expiry as they were asked for: what a repeated request must repeat."""
        due = "now"
        if self.run_at is not None:
            due = f"at {self.run_at.isoformat()}"
        elif self.delay_seconds is not None:
            due = f"in {self.delay_seconds!r}s"
        if self.expires_at is not None:
            return f"{due}, expires at {self.expires_at.isoformat()}"
        return due if self.expires_seconds is None else f"{due}, expires in {self.expires_seconds!r}s"


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that didn't succeed, as history keeps it."""

    attempt: int
    token: int
    outcome: str
    """`failed`, `timed_out`, `lost`, `released` or `cancelled`."""
    worker_id: UUID
    started_at: datetime
    ended_at: datetime
    error_type: str | None
    error: str | None
    traceback: str | None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is right now, read in one snapshot. Times are UTC."""

    id: UUID
    type: str
    queue: str
    status: Status
    priority: int
    payload: msgspec.Raw
    attempts: int
    max_attempts: int
    timeout_seconds: float | None
    run_at: datetime | None
    """When it may run next; only while pending."""
    created_at: datetime
    started_at: datetime | None
    """When its latest attempt started."""
    finished_at: datetime | None
    locked_until: datetime | None
    """When its lease runs out; only while processing."""
    lease_token: int
    cancel_requested_at: datetime | None
    last_error: str | None
    result: msgspec.Raw | None
    idempotency_key: str | None
    request_id: str | None
    unique_key: str | None = None
    tags: list[str] = []
    metadata: msgspec.Raw | None = None
    trace_context: str | None = None
    expires_at: datetime | None = None
    progress: msgspec.Raw | None = None
    """What its handler said last: `{"fraction": 0.4, "message": "…"}`; only while processing."""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The right to run one attempt at a job, until the lease runs out by the database's clock."""

    id: UUID
    queue_id: int
    queue: str
    token: int
    type: str
    payload: str
    """JSON text."""
    attempt: int
    max_attempts: int
    timeout_seconds: float | None
    request_id: str | None
    expired: bool = False
    """Its time to start was over when it was claimed."""
    tags: tuple[str, ...] = ()
    metadata: str | None = None
    """JSON text."""
    trace_context: str | None = None
