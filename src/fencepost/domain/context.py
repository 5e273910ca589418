"""What a handler may know about the attempt it is running."""

from __future__ import annotations

from uuid import UUID

import msgspec


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at one job, as its handler sees it."""

    id: UUID
    """The job's id: the same in every attempt, so use it as the key for idempotency downstream."""
    type: str
    queue: str
    attempt: int
    """1 for the first attempt."""
    max_attempts: int
    token: int
    """The lease token: larger in every later attempt."""
    timeout_seconds: float
    """How long this attempt may take, from its start."""

    @property
    def is_last(self) -> bool:
        """Whether a failure now would be the end of the job."""
        return self.attempt >= self.max_attempts
