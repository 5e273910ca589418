"""One attempt while it runs, and what may interrupt it."""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

from fencepost.domain.job import Lease
from fencepost.domain.outcome import Ending

Key = tuple[UUID, int]
"""A job's id and the attempt's lease token."""


class Attempt:
    """
    An attempt from its claim until its outcome is written.

    `interruption` says who stopped it, so that a cancelled handler can be told from one
    that raised CancelledError by itself. The first interruption counts, except that a
    lost lease overrides whatever came before: nothing may be written any more.
    """

    __slots__ = (
        "abandoned",
        "asked_at",
        "deadline",
        "ended_at",
        "grace",
        "interruption",
        "lease",
        "renew_at",
        "started_at",
        "stop_renewing_at",
        "task",
        "valid_until",
    )

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.task: asyncio.Task[None] | None = None
        self.grace: asyncio.TimerHandle | None = None
        """Ends the patience with a handler that was interrupted."""
        self.interruption: Ending | None = None
        self.abandoned = False
        """Its outcome was decided while its handler still runs, because the handler won't stop."""
        self.started_at = time.monotonic()
        self.ended_at: float | None = None
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
