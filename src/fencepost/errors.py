"""
Everything fencepost raises on purpose.

    FencepostError
    ├── InvalidJob            a job, or a filter, that can never be accepted
    ├── JobNotFound           no job has this id
    ├── QueueNotFound         no queue has this name
    ├── KeyConflict           an idempotency key was used again for something else
    ├── WrongStatus           the job's status doesn't allow this
    ├── DuplicateJob          another job holds this one's unique key
    ├── LeaseLost             the attempt no longer owns its job
    ├── JobFailed             a job whose result was waited for ended without one
    ├── ResultTimeout         a job whose result was waited for has not ended yet
    ├── WrongConnection       a connection that can't be used here, or not like this
    ├── InvalidSettings       a setting that can't work
    ├── LifespanFailed        what a worker's handlers share can't be opened
    ├── SchemaMismatch        the database's schema isn't the one this version needs
    ├── EmbeddedError         the private PostgreSQL can't be started
    └── DatabaseUnavailable   the database can't be reached; try again later
        └── PrivilegeMissing  the database refuses this to our role, until it is granted

    Permanent, Retry, Snooze, Cancel   what a handler raises to say how its attempt ends

Each class knows its HTTP status, its stable code and its exit code, so that no
second table repeats them. A message says what is wrong and what to do next.
"""

from __future__ import annotations

import math
from datetime import timedelta


class FencepostError(Exception):
    """The root of fencepost's exceptions."""

    code = "internal"
    """The stable machine-readable name, sent as `X-Error-Code`."""
    http_status = 500
    exit_code = 1

    def for_operator(self) -> str:
        """The message for whoever runs fencepost: it may name hosts, of which HTTP's callers learn nothing."""
        return str(self)


class InvalidJob(FencepostError):
    """
    The request can't be accepted, now or later.

    `field` names what is wrong (`payload`, `run_at`, …), or is None when the whole
    body is; `index` is the job's place in a bulk request.
    """

    code = "invalid_request"
    http_status = 400
    exit_code = 2

    def __init__(self, message: str, *, field: str | None = None, index: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.index = index

    def __str__(self) -> str:
        where = "" if self.index is None else f"jobs[{self.index}]: "
        return where + (self.message if self.field is None else f"{self.field}: {self.message}")

    def at(self, index: int) -> InvalidJob:
        """The same error, for the job at *index* of a bulk request."""
        return InvalidJob(self.message, field=self.field, index=index)


class JobNotFound(FencepostError):
    """No job has this id. It was never enqueued, or its retention has passed."""

    code = "job_not_found"
    http_status = 404
    exit_code = 3


class QueueNotFound(FencepostError):
    """No queue has this name. Queues exist from their first job on."""

    code = "queue_not_found"
    http_status = 404
    exit_code = 3


class KeyConflict(FencepostError):
    """This idempotency key already made another job: use a new key for a new request."""

    code = "idempotency_key_reused"
    http_status = 409
    exit_code = 4


class WrongStatus(FencepostError):
    """The job's status doesn't allow this, so nothing was changed."""

    code = "wrong_status"
    http_status = 409
    exit_code = 4


class DuplicateJob(FencepostError):
    """Another job, which the message names, holds this one's unique key, so it wasn't put back."""

    code = "duplicate_job"
    http_status = 409
    exit_code = 4


class LeaseLost(FencepostError):
    """
    This attempt no longer owns the job, so nothing was recorded.

    Its lease ran out, or the job was cancelled, and the job may be someone else's
    by now. What the handler did has happened. Stop working on it; don't try again.
    """

    code = "lease_lost"
    http_status = 409
    exit_code = 4


class JobFailed(FencepostError):
    """
    The job ended `failed`, `dead_letter` or `cancelled`, so there is no result.

    `status` says which; the message holds its last error.
    """

    code = "job_failed"
    http_status = 409
    exit_code = 4

    def __init__(self, message: str, *, status: str) -> None:
        super().__init__(message)
        self.status = status


class ResultTimeout(FencepostError):
    """The job has not ended within the time that was allowed. It goes on; wait again, or look at its status."""

    code = "result_timeout"
    http_status = 504
    exit_code = 4


class WrongConnection(FencepostError):
    """This connection can't be used here, or not in this way; the message says which can, and how."""

    code = "wrong_connection"
    exit_code = 2


class InvalidSettings(FencepostError):
    """A setting can't work; the message names it and what is allowed."""

    code = "invalid_settings"
    exit_code = 2


class LifespanFailed(FencepostError):
    """The app's own lifespan raised while opening what handlers share, so the worker can't start."""

    code = "lifespan_failed"
    exit_code = 1


class SchemaMismatch(FencepostError):
    """The database's schema isn't one that this version of fencepost can work with."""

    code = "schema_mismatch"
    http_status = 503
    exit_code = 4


class EmbeddedError(FencepostError):
    """The private PostgreSQL can't be started; the message says why and what to do."""

    code = "embedded_database"
    exit_code = 6


class DatabaseUnavailable(FencepostError):
    """
    The database can't be reached, or is too busy to answer in time. Trying again later is safe.

    `place` is where nobody answered, as host and port, if that is what happened.
    """

    code = "database_unavailable"
    http_status = 503
    exit_code = 6

    def __init__(self, message: str, *, place: str | None = None) -> None:
        super().__init__(message)
        self.place = place

    def for_operator(self) -> str:
        """The message, with the place."""
        return str(self) if self.place is None else f"{self} ({self.place})"


class PrivilegeMissing(DatabaseUnavailable):
    """
    The database refuses this to the role that fencepost connects as; nothing was done.

    Waiting doesn't change it, `fencepost grant` does. What runs goes on by itself from then on.
    """

    code = "privilege_missing"
    exit_code = 4


class Permanent(FencepostError):
    """Raised by a handler: this job can never succeed, so it ends `failed` without a retry."""

    code = "permanent"


class Retry(FencepostError):
    """
    Raised by a handler: this attempt failed and another should come later.

    Any other exception says the same; this one may also say when: not before *after*, seconds
    or a timedelta, has passed, and up to a tenth later, so that many jobs that were sent away
    together don't come back together. It counts as an attempt.
    """

    code = "retry"

    def __init__(self, message: str, *, after: float | timedelta | None = None) -> None:
        if not isinstance(message, str):
            raise InvalidJob(f"must be a text; when to try again is after={message!r}", field="message")
        super().__init__(message)
        self.after = None if after is None else _seconds(after, "after")


class Snooze(FencepostError):
    """
    Raised by a handler: not now, try again after *seconds*, or a timedelta. Costs no attempt, however often.

    For work whose time hasn't come (a resource isn't ready, an office is closed), not for failures.
    """

    code = "snooze"

    def __init__(self, seconds: float | timedelta, message: str = "") -> None:
        self.seconds = _seconds(seconds, "seconds")
        super().__init__(message or f"snoozed for {self.seconds:g} seconds")


class Cancel(FencepostError):
    """Raised by a handler: the job is no longer wanted, so it ends `cancelled`, without a retry."""

    code = "cancel"


_LONGEST_SECONDS = 1e12
"""More than any job waits; and a float has room for it."""


def _seconds(value: float | timedelta, field: str) -> float:
    """Raises InvalidJob: what was meant as a pause must not become none without a word."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise InvalidJob(f"must be seconds or a timedelta, from 0 on, not {value!r}", field=field)
    return float(min(seconds, _LONGEST_SECONDS))
