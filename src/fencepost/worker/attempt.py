"""One attempt while it runs, what may interrupt it, and what its handler may ask for."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol
from uuid import UUID

from fencepost.domain.job import Lease
from fencepost.domain.outcome import Ending
from fencepost.errors import WrongStatus
from fencepost.types.jobtype import JobType
from fencepost.worker.resources import Resources

Key = tuple[UUID, int]
"""A job's id and the attempt's lease token."""


class Remote(Protocol):
    """Where a handler runs that isn't in this process."""

    def interrupt(self, ending: Ending) -> None:
        """See to it that it ends, soon."""
        ...


class Host:
    """What a worker's attempts reach into when their handlers ask for something."""

    def __init__(
        self,
        *,
        schema: str = "fencepost",
        max_result_bytes: int,
        progress: Callable[[Attempt, float, str | None], None] = lambda attempt, fraction, message: None,
    ) -> None:
        self.schema = schema
        self.max_result_bytes = max_result_bytes
        self.progress = progress
        """Called from any thread."""
        self.resources = Resources()
        """What the lifespan opened."""
        self.lock = threading.RLock()
        """
        Held while an attempt is interrupted, abandoned or ended, so that it can't be extended in the same moment, nor
        go about completing itself.
        """


class Attempt:
    """
    An attempt from its claim until its outcome is written.

    `interruption` says who stopped it, so that a cancelled handler can be told from one
    that raised CancelledError by itself. The first interruption counts, except that a
    lost lease overrides whatever came before: nothing may be written any more.

    It is also what stands behind its handler's Context (domain/context.py, `Control`):
    one object a job less.
    """

    __slots__ = (
        "abandoned",
        "asked_at",
        "completed_in",
        "completing",
        "deadline",
        "ended_at",
        "grace",
        "host",
        "in_thread",
        "interruption",
        "job_type",
        "lease",
        "remote",
        "renew_at",
        "started_at",
        "stop_renewing_at",
        "task",
        "timeout_seconds",
        "valid_until",
    )

    host: Host
    """Set when it starts."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.job_type: JobType | None = None
        self.task: asyncio.Task[None] | None = None
        self.grace: asyncio.TimerHandle | None = None
        """Ends the patience with a handler that was interrupted."""
        self.in_thread = False
        """Its handler is in a thread just now, where nothing can stop it."""
        self.remote: Remote | None = None
        """Its handler is in a child process just now."""
        self.interruption: Ending | None = None
        self.abandoned = False
        """Its outcome was decided while its handler still runs, because the handler won't stop."""
        self.completing = False
        """Its handler has gone about completing it in a transaction of its own, from before the statement was sent."""
        self.completed_in = False
        """The statement has answered: once that transaction commits, the job is completed."""
        self.started_at = time.monotonic()
        self.ended_at: float | None = None
        self.timeout_seconds = 0.0
        """How long it may take; more when it was extended."""
        self.deadline = 0.0
        """When its time is up."""
        # The lease's upkeep; leases.py sets and reads these.
        self.renew_at = 0.0
        self.valid_until = 0.0
        self.stop_renewing_at = 0.0
        self.asked_at: float | None = None
        """Since when a renewal has been asked for that wasn't answered."""

    def end(self) -> None:
        """From now on it can't be interrupted any more; only its outcome is still to be written."""
        if self.ended_at is None:
            self.ended_at = time.monotonic()

    @property
    def key(self) -> Key:
        """What names this attempt and no other."""
        return self.lease.id, self.lease.token

    @property
    def seconds(self) -> float:
        """How long it has run, or did."""
        return (self.ended_at or time.monotonic()) - self.started_at

    def __repr__(self) -> str:
        return f"<attempt {self.lease.attempt} at {self.lease.id}>"

    def progress(self, fraction: float, message: str | None) -> None:
        """Note how far the handler is. What comes after the end is dropped."""
        if self.ended_at is None and not self.abandoned:
            self.host.progress(self, fraction, message)

    def extend(self, seconds: float) -> None:
        """Move the deadline, and with it the time for which the lease is renewed. Raises WrongStatus."""
        with self.host.lock:
            if self.ended_at is not None or self.interruption is not None:
                raise WrongStatus("this attempt has ended or was interrupted, so it can't be extended any more")
            self.timeout_seconds += seconds
            self.deadline += seconds
            self.stop_renewing_at += seconds

    @property
    def remaining_seconds(self) -> float:
        """How long it may still take."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """Whether it was interrupted, for whatever reason."""
        return self.interruption is not None

    async def complete_in(self, connection: Any, result: object) -> None:
        """End it in the open transaction of an async connection."""
        from fencepost.worker.completing import complete_in

        await complete_in(self, connection, result)

    def complete_in_sync(self, connection: Any, result: object) -> None:
        """The same for a sync connection."""
        from fencepost.worker.completing import complete_in_sync

        complete_in_sync(self, connection, result)

    def resource(self, name: str | None, annotation: Any) -> Any:
        """What the lifespan opened. Raises InvalidSettings."""
        return self.host.resources.find(name, annotation)
