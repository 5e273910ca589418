"""
What the API takes and gives, as structs: they encode the answers and make the OpenAPI document.

What a job looks like when it is asked for is `fencepost.domain.requests.JobRequest`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from fencepost.domain.job import Attempt, Job, Limits, NewJob, Status
from fencepost.store.enqueueing import Enqueued
from fencepost.store.queues import QueueState

Moment = Annotated[datetime, Meta(tz=True)]
DEFAULT_RETRIES = 3

_ID = "01890a5d-ac96-774b-bcce-b302099a8057"


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a job, as it is right now."""

    id: Annotated[UUID, Meta(examples=[_ID])]
    type: str
    queue: str
    status: Status
    priority: Annotated[int, Meta(description="0 to 100; the higher goes first.")]
    payload: Raw
    attempts: Annotated[int, Meta(description="Attempts started so far, without those that were given back.")]
    max_attempts: int
    run_at: Annotated[Moment | None, Meta(description="When it may run next; only while pending.")]
    created_at: Moment
    started_at: Annotated[Moment | None, Meta(description="When its latest attempt started.")]
    finished_at: Moment | None
    locked_until: Annotated[Moment | None, Meta(description="When its lease runs out; only while processing.")]
    lease_token: Annotated[int, Meta(description="Grows with each attempt and never shrinks.")]
    last_error: str | None
    result: Raw | None
    idempotency_key: str | None
    timeout_seconds: Annotated[float | None, Meta(description="Longest run of one attempt; null: JOB_TIMEOUT.")]
    cancel_requested_at: Moment | None
    request_id: Annotated[str | None, Meta(description="The X-Request-ID of the request that made it.")]
    unique_key: str | None
    tags: list[str]
    metadata: Raw | None
    trace_context: Annotated[str | None, Meta(description="The traceparent of the request that made it.")]
    expires_at: Annotated[Moment | None, Meta(description="Not started by then, it ends cancelled.")]
    progress: Annotated[
        Raw | None,
        Meta(description="What its handler said last; only while processing."),
    ]
    history: Annotated[
        list[AttemptRecord], Meta(description="Attempts that did not succeed, the latest first; at most 200.")
    ]


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that did not succeed."""

    attempt: int
    token: Annotated[int, Meta(description="The lease token that it ran under.")]
    outcome: Annotated[str, Meta(description="failed, timed_out, permanent, cancelled, released or lost.")]
    worker_id: UUID
    started_at: Moment
    ended_at: Moment
    error_type: str | None
    error: str | None
    traceback: str | None


class ListedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job in a list: without its history, and with payload and result only when asked for."""

    id: UUID
    type: str
    queue: str
    status: Status
    priority: int
    attempts: int
    max_attempts: int
    run_at: Moment | None
    created_at: Moment
    started_at: Moment | None
    finished_at: Moment | None
    locked_until: Moment | None
    lease_token: int
    last_error: str | None
    idempotency_key: str | None
    timeout_seconds: float | None
    cancel_requested_at: Moment | None
    request_id: str | None
    unique_key: str | None
    tags: list[str]
    trace_context: str | None
    expires_at: Moment | None
    progress: Raw | None
    payload: Raw | UnsetType = UNSET
    result: Raw | UnsetType | None = UNSET
    metadata: Raw | UnsetType | None = UNSET


class JobList(msgspec.Struct, frozen=True):
    """A page of jobs, newest first."""

    jobs: list[ListedJob]
    next_cursor: Annotated[
        str | None,
        Meta(description="Where to go on; null at the end. A page may be short, or empty, and still have a next one."),
    ]


class JobStatus(msgspec.Struct, frozen=True):
    """How a job stands, in short."""

    id: UUID
    status: Status
    attempts: int
    max_attempts: int
    run_at: Moment | None
    last_error: str | None


class SubmitRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job whose type is in its payload."""

    payload: Annotated[
        Raw,
        Meta(
            description="An object whose member `task` is a registered job type.",
            extra_json_schema={
                "type": "object",
                "required": ["task"],
                "properties": {"task": {"type": "string"}},
                "examples": [{"task": "send_email", "to": "ada@example.org"}],
            },
        ),
    ]
    priority: Annotated[
        int,
        Meta(
            description="The higher goes first.",
            extra_json_schema={"minimum": 0, "maximum": Limits.PRIORITY},
        ),
    ] = 0
    max_retries: Annotated[int, Meta(description="Attempts after the first one.", ge=0, le=Limits.MAX_ATTEMPTS - 1)] = (
        DEFAULT_RETRIES
    )


class Submitted(msgspec.Struct, frozen=True):
    """The id of the job that was made."""

    id: UUID


class BulkItem(msgspec.Struct, frozen=True):
    """What became of one job of a bulk request."""

    id: UUID
    replayed: Annotated[bool, Meta(description="Its idempotency key had made this job before.")]
    effect: Annotated[
        str,
        Meta(
            description="What was done: `created`, `replayed`, or for a unique key that another job held, `skipped`, "
            "`rescheduled` or `replaced`. The id is that of the job that is there now."
        ),
    ]


class BulkAnswer(msgspec.Struct, frozen=True):
    """The jobs of a bulk request, in its order."""

    count: int
    jobs: list[BulkItem]


class QueueRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue stands."""

    name: str
    paused: bool
    paused_at: Moment | None
    created_at: Moment
    depth: Annotated[int, Meta(description="Pending jobs, due or not.")]
    depth_is_capped: Annotated[bool, Meta(description="There are at least `depth` pending jobs; counting stopped.")]
    in_flight: Annotated[int, Meta(description="Jobs in processing.")]
    oldest_due_seconds: Annotated[
        float | None, Meta(description="How long the oldest due job has waited; null when none is due.")
    ]


class QueueList(msgspec.Struct, frozen=True):
    """Every queue, by name."""

    queues: list[QueueRecord]


class State(msgspec.Struct, frozen=True):
    """What a probe answers."""

    status: str


class Index(msgspec.Struct, frozen=True):
    """What there is to ask for."""

    name: str
    version: str
    routes: list[str]


def record_of(job: Job, history: list[Attempt]) -> JobRecord:
    """The full record of a job that was read."""
    return JobRecord(**_fields(job), history=[AttemptRecord(**msgspec.structs.asdict(item)) for item in history])


def record_of_new(job: NewJob, enqueued: Enqueued) -> JobRecord:
    """The full record of a job that was stored a moment ago, as reading it would give."""
    return JobRecord(
        id=job.id,
        type=job.type,
        queue=job.queue,
        status=Status.PENDING,
        priority=job.priority,
        payload=Raw(job.payload),
        attempts=0,
        max_attempts=job.max_attempts,
        run_at=enqueued.run_at,
        created_at=enqueued.created_at,
        started_at=None,
        finished_at=None,
        locked_until=None,
        lease_token=0,
        last_error=None,
        result=None,
        idempotency_key=job.idempotency_key,
        timeout_seconds=job.timeout_seconds,
        cancel_requested_at=None,
        request_id=job.request_id,
        unique_key=None if job.unique is None else job.unique.key,
        tags=list(job.tags),
        metadata=None if job.metadata is None else Raw(job.metadata),
        trace_context=job.trace_context,
        expires_at=_expiry(job, enqueued),
        progress=None,
        history=[],
    )


def listed(job: Job, *, with_payload: bool) -> ListedJob:
    """A job as lists show it."""
    fields = _fields(job)
    if not with_payload:
        del fields["payload"], fields["result"], fields["metadata"]
    return ListedJob(**fields)


def queue_record(state: QueueState, count_limit: int) -> QueueRecord:
    """A queue as it is shown."""
    return QueueRecord(
        name=state.name,
        paused=state.paused_at is not None,
        paused_at=state.paused_at,
        created_at=state.created_at,
        depth=state.depth,
        depth_is_capped=state.depth >= count_limit,
        in_flight=state.in_flight,
        oldest_due_seconds=state.oldest_due_seconds,
    )


def _expiry(job: NewJob, enqueued: Enqueued) -> datetime | None:
    if job.expires_at is not None:
        return job.expires_at
    if job.expires_seconds is None:
        return None
    stored_at: datetime = enqueued.created_at
    return stored_at + timedelta(microseconds=round(job.expires_seconds * 1_000_000))


def _fields(job: Job) -> dict[str, Any]:
    return msgspec.structs.asdict(job)
