"""Say how an attempt ended: to whoever counts, to whoever listens, and in the log."""

from __future__ import annotations

from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending, Outcome
from fencepost.telemetry.events import AttemptEnded, Events, Hooks
from fencepost.worker.attempt import Attempt
from fencepost.worker.journal import Journal, error_of


class Reports:
    """Tells the three of them."""

    def __init__(self, events: Events, hooks: Hooks, journal: Journal) -> None:
        self._events = events
        self._hooks = hooks
        self._journal = journal

    def ended(self, attempt: Attempt, ending: Ending, result: Outcome | None, status: Status | None) -> None:
        """An attempt has ended, and its job is now in *status*; None when its lease was lost."""
        self._events.ended(ending, status, attempt.seconds)
        if self._hooks.listeners:
            self._hooks.emit(_event(attempt, ending, result, status))
        self._journal.finished(attempt, ending, result, status)


def _event(attempt: Attempt, ending: Ending, result: Outcome | None, status: Status | None) -> AttemptEnded:
    lease, error = attempt.lease, error_of(ending, result)
    return AttemptEnded(
        job_id=lease.id,
        type=lease.type,
        queue=lease.queue,
        attempt=lease.attempt,
        token=lease.token,
        ending=ending,
        status=status,
        seconds=attempt.seconds,
        error_type=None if error is None else error.error_type,
        error=None if error is None else error.error,
        retry_delay_seconds=result.delay_seconds if result is not None and status is Status.PENDING else None,
    )
