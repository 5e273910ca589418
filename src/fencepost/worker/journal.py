"""
The two lines of an attempt in the log: `job started` and `job finished`.

They cost more than anything else a worker does for a job that does nothing, so a share of
the successful ones can be left out. Attempts that did not succeed always have theirs.
"""

from __future__ import annotations

import logging

from fencepost.domain.job import Lease, Status
from fencepost.domain.outcome import Ending, Outcome
from fencepost.logger import get_logger
from fencepost.worker.attempt import Attempt

log = get_logger("fencepost.worker")

_RANDOM_BITS = 32


class Journal:
    """
    Writes the lines of attempts.

    *share*, from 0 to 1, is how many of the jobs have lines for success. It goes by the
    random bits of a job's id, so that all attempts at a job have theirs, in every process.
    """

    def __init__(self, *, share: float = 1.0) -> None:
        self._limit = round(share * (1 << _RANDOM_BITS))

    def _takes(self, lease: Lease) -> bool:
        return lease.id.int % (1 << _RANDOM_BITS) < self._limit

    def started(self, lease: Lease) -> None:
        """An attempt starts."""
        if not log.isEnabledFor(logging.INFO) or not self._takes(lease):
            return
        log.info(
            "job started",
            extra={
                "job_id": str(lease.id),
                "job_type": lease.type,
                "attempt": lease.attempt,
                "request_id": lease.request_id,
            },
        )

    def finished(self, attempt: Attempt, ending: Ending, result: Outcome | None, status: Status | None) -> None:
        """An attempt has ended; its job is now in *status*, or the lease was lost (None)."""
        lease = attempt.lease
        error = error_of(ending, result)
        level = logging.INFO if error is None and ending is not Ending.LOST else logging.WARNING
        if not log.isEnabledFor(level) or (level == logging.INFO and not self._takes(lease)):
            return
        fields: dict[str, object] = {
            "job_id": str(lease.id),
            "job_type": lease.type,
            "attempt": lease.attempt,
            "outcome": ending.value,
            "status": None if status is None else status.value,
            "duration_ms": round(attempt.seconds * 1000, 3),
            "request_id": lease.request_id,
        }
        if error is not None:
            fields["error"] = error.error
            fields["error_type"] = error.error_type
            if error.traceback is not None:
                fields["traceback"] = error.traceback
        if result is not None and status is Status.PENDING:
            fields["retry_delay_ms"] = round(result.delay_seconds * 1000)
        log.log(level, "job finished", extra=fields)


def error_of(ending: Ending, result: Outcome | None) -> Outcome | None:
    """The outcome, if it has an error to tell of: not that of an attempt which had completed by itself."""
    if result is None or result.error is None or ending is Ending.SUCCEEDED:
        return None
    return result
