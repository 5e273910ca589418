"""What a drain has run."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import msgspec

from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending
from fencepost.telemetry.events import AttemptEnded


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt that a drain has run, and what became of its job."""

    job_id: UUID
    type: str
    queue: str
    attempt: int
    ending: Ending
    status: Status | None
    """Where its job went; None when the lease was lost."""
    error_type: str | None
    error: str | None
    retry_delay_seconds: float | None
    """How long the job waits, when it is pending again."""
    exception: BaseException | None = None
    """What the handler raised; None when it ran in a child process, or raised nothing."""

    def __str__(self) -> str:
        error = f": {self.error_type}: {self.error}" if self.error_type else ""
        status = "lost" if self.status is None else self.status.value
        return f"{self.type} (attempt {self.attempt}) {self.ending.value}, now {status}{error}"


class Report(msgspec.Struct, frozen=True):
    """What a drain has run, attempt by attempt, in the order in which they ended."""

    attempts: tuple[Ran, ...]

    @property
    def completed(self) -> int:
        """Jobs that succeeded."""
        return self._count(status=Status.COMPLETED)

    @property
    def failed(self) -> int:
        """Jobs that can never succeed."""
        return self._count(status=Status.FAILED)

    @property
    def dead_letter(self) -> int:
        """Jobs whose attempts are used up."""
        return self._count(status=Status.DEAD_LETTER)

    @property
    def cancelled(self) -> int:
        """Jobs that ended cancelled."""
        return self._count(status=Status.CANCELLED)

    @property
    def retried(self) -> int:
        """Attempts that failed and whose job waits for another."""
        return self._count(status=Status.PENDING, endings=(Ending.FAILED, Ending.TIMED_OUT))

    @property
    def snoozed(self) -> int:
        """Attempts that were put off."""
        return self._count(status=Status.PENDING, endings=(Ending.SNOOZED,))

    @property
    def errors(self) -> list[str]:
        """The errors of all attempts that had one."""
        return [f"{ran.type}: {ran.error_type}: {ran.error}" for ran in self.attempts if ran.error_type]

    def _count(self, *, status: Status, endings: tuple[Ending, ...] | None = None) -> int:
        return sum(ran.status is status and (endings is None or ran.ending in endings) for ran in self.attempts)

    def __str__(self) -> str:
        return "\n".join(["ran nothing"] if not self.attempts else map(str, self.attempts))


def report_of(events: Iterable[AttemptEnded], exceptions: dict[tuple[UUID, int], BaseException]) -> Report:
    """The report of these endings; *exceptions* by job and lease token."""
    return Report(
        tuple(
            Ran(
                job_id=event.job_id,
                type=event.type,
                queue=event.queue,
                attempt=event.attempt,
                ending=event.ending,
                status=event.status,
                error_type=event.error_type,
                error=event.error,
                retry_delay_seconds=event.retry_delay_seconds,
                exception=exceptions.get((event.job_id, event.token)),
            )
            for event in events
        )
    )
