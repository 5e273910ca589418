"""Every route of the API, with what it takes and how it answers."""

from __future__ import annotations

from fencepost.api.jobs import MOST_PAGE_JOBS, PAGE_JOBS, JobViews
from fencepost.api.operations import Operations
from fencepost.api.queues import QueueViews
from fencepost.api.routes import Answer, Operation, Parameter
from fencepost.api.schemas import (
    BulkAnswer,
    Index,
    JobList,
    JobRecord,
    JobStatus,
    QueueList,
    QueueRecord,
    State,
    SubmitRequest,
    Submitted,
)
from fencepost.api.submission import Submissions
from fencepost.domain.fields import KEY_PATTERN, NAME_PATTERN
from fencepost.domain.job import Limits, Status
from fencepost.domain.requests import JobRequest
from fencepost.telemetry.metrics import CONTENT_TYPE

_WORD = {"type": "string", "minLength": 1, "maxLength": Limits.NAME_BYTES, "pattern": f"^{NAME_PATTERN}$"}
_KEY = Parameter(
    name="Idempotency-Key",
    where="header",
    text="Makes at most one job, however often the request is repeated. Quoted or bare.",
    schema={"type": "string", "minLength": 1, "maxLength": Limits.KEY_BYTES, "pattern": f"^{KEY_PATTERN}$"},
)
_TRACE = Parameter(
    name="traceparent",
    where="header",
    text="The W3C trace context that the job belongs to. Ignored when it isn't one.",
    schema={"type": "string"},
)
_ID = Parameter(name="id", where="path", text="A job's id.", schema={"type": "string", "format": "uuid"})
_NAME = Parameter(name="name", where="path", text="A queue's name.", schema=_WORD)
_MOMENT = {"type": "string", "format": "date-time"}
_FILTERS = (
    Parameter(name="status", where="query", text="Jobs in this status.", schema={"enum": [*map(str, Status)]}),
    Parameter(name="type", where="query", text="Jobs of this type.", schema=_WORD),
    Parameter(name="queue", where="query", text="Jobs of this queue.", schema=_WORD),
    Parameter(
        name="tag",
        where="query",
        text="Jobs that have this tag.",
        schema={"type": "string", "minLength": 1, "maxLength": Limits.TAG_BYTES},
    ),
    Parameter(name="since", where="query", text="Created at this time or later.", schema=_MOMENT),
    Parameter(name="until", where="query", text="Created before this time.", schema=_MOMENT),
    Parameter(
        name="limit",
        where="query",
        text="Jobs on a page.",
        schema={"type": "integer", "minimum": 1, "maximum": MOST_PAGE_JOBS, "default": PAGE_JOBS},
    ),
    Parameter(name="cursor", where="query", text="`next_cursor` of the page before.", schema={"type": "string"}),
    Parameter(name="include", where="query", text="Show payloads and results.", schema={"enum": ["payload"]}),
)


def submission_routes(views: Submissions) -> list[Operation]:
    """The routes that make jobs."""
    return [
        Operation(
            method="POST",
            path="/jobs",
            name="createJobs",
            text="Make one job, or with an array or NDJSON many: all of them or none.",
            handler=views.post_jobs,
            parameters=(_KEY, _TRACE),
            body=JobRequest,
            many=True,
            answers=(
                Answer(201, "Made.", JobRecord | BulkAnswer),
                Answer(
                    200,
                    "Made before by the same idempotency key, or there under its unique key.",
                    JobRecord | BulkAnswer,
                ),
            ),
            errors=(400, 408, 409, 413, 415),
        ),
        Operation(
            method="POST",
            path="/submit",
            name="submitTask",
            text="Make a job whose type is the member `task` of its payload.",
            handler=views.post_submit,
            parameters=(_KEY, _TRACE),
            body=SubmitRequest,
            answers=(
                Answer(201, "Made.", Submitted),
                Answer(200, "Made before by the same idempotency key.", Submitted),
            ),
            errors=(400, 408, 409, 413, 415),
        ),
    ]


def job_routes(views: JobViews) -> list[Operation]:
    """The routes about jobs that exist."""
    return [
        Operation(
            method="GET",
            path="/jobs",
            name="listJobs",
            text="List jobs, newest first.",
            handler=views.page,
            parameters=_FILTERS,
            answers=(Answer(200, "A page of jobs.", JobList),),
            errors=(400,),
        ),
        Operation(
            method="GET",
            path="/jobs/{id}",
            name="getJob",
            text="Show everything about a job.",
            handler=views.get,
            parameters=(_ID,),
            answers=(Answer(200, "The job.", JobRecord),),
            errors=(400, 404),
        ),
        Operation(
            method="GET",
            path="/jobs/{id}/status",
            name="getJobStatus",
            text="Show how a job stands.",
            handler=views.status,
            parameters=(_ID,),
            answers=(Answer(200, "Its status.", JobStatus),),
            errors=(400, 404),
        ),
        Operation(
            method="POST",
            path="/jobs/{id}/retry",
            name="retryJob",
            text="Put a dead-lettered job back to pending, with all its attempts.",
            handler=views.retry,
            parameters=(_ID,),
            answers=(Answer(200, "It is pending.", JobRecord),),
            errors=(400, 404, 408, 409, 413),
        ),
        Operation(
            method="POST",
            path="/jobs/{id}/cancel",
            name="cancelJob",
            text="Stop a job.",
            handler=views.cancel,
            parameters=(_ID,),
            answers=(
                Answer(200, "It is cancelled.", JobRecord),
                Answer(202, "It is running and was asked to stop.", JobRecord),
            ),
            errors=(400, 404, 408, 409, 413),
        ),
    ]


def queue_routes(views: QueueViews) -> list[Operation]:
    """The routes about queues."""
    one = (Answer(200, "The queue.", QueueRecord),)
    return [
        Operation(
            method="GET",
            path="/queues",
            name="listQueues",
            text="List the queues, as they were at most a second ago.",
            handler=views.overview,
            answers=(Answer(200, "All queues.", QueueList),),
        ),
        Operation(
            method="GET",
            path="/queues/{name}",
            name="getQueue",
            text="Show one queue.",
            handler=views.get,
            parameters=(_NAME,),
            answers=one,
            errors=(400, 404),
        ),
        Operation(
            method="POST",
            path="/queues/{name}/pause",
            name="pauseQueue",
            text="Let no more of its jobs start.",
            handler=views.pause,
            parameters=(_NAME,),
            answers=one,
            errors=(400, 404, 408, 413),
        ),
        Operation(
            method="POST",
            path="/queues/{name}/resume",
            name="resumeQueue",
            text="Let its jobs start again.",
            handler=views.resume,
            parameters=(_NAME,),
            answers=one,
            errors=(400, 404, 408, 413),
        ),
    ]


def operation_routes(views: Operations) -> list[Operation]:
    """The routes for machines."""
    alive = (Answer(200, "It lives.", State),)
    return [
        Operation(
            method="GET",
            path="/",
            name="index",
            text="List the routes.",
            handler=views.index,
            answers=(Answer(200, "The routes.", Index),),
        ),
        Operation(
            method="GET",
            path="/healthz",
            name="getHealth",
            text="Say that the process lives.",
            handler=views.healthz,
            answers=alive,
        ),
        Operation(
            method="GET",
            path="/health",
            name="getHealthAlias",
            text="The same as /healthz.",
            handler=views.healthz,
            answers=alive,
        ),
        Operation(
            method="GET",
            path="/readyz",
            name="getReadiness",
            text="Say whether it wants requests.",
            handler=views.readyz,
            answers=(Answer(200, "It does.", State),),
        ),
        Operation(
            method="GET",
            path="/metrics",
            name="getMetrics",
            text="Metrics for Prometheus.",
            handler=views.metrics,
            answers=(Answer(200, "The text format.", CONTENT_TYPE),),
        ),
        Operation(
            method="GET",
            path="/openapi.json",
            name="getOpenapi",
            text="This document.",
            handler=views.openapi,
            answers=(Answer(200, "OpenAPI 3.1.", "application/json"),),
        ),
    ]
