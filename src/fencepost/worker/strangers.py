"""
Jobs of a type that this worker doesn't know.

While a new version is rolled out, its producers hand in jobs that workers of the old one
can't run. If any process has declared the type lately, such a job is put back for a
while, at no cost to it, until a worker claims it that can. If none has, it is a mistake,
and the job fails with words that say so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from fencepost.domain import outcome
from fencepost.domain.jitter import between
from fencepost.domain.job import Lease
from fencepost.domain.outcome import Outcome
from fencepost.errors import DatabaseUnavailable
from fencepost.logger import get_logger

log = get_logger("fencepost.worker")

DECLARED_WITHIN_SECONDS = 3600.0
"""How long ago somebody may have declared a type for its jobs to be left to others."""
CACHE_SECONDS = 5.0
"""How long a type that was found declared counts as such without another look."""
SHORTEST_SECONDS = 1.0
LONGEST_SECONDS = 30.0
WARN_SECONDS = 60.0
"""How often each unknown type is named in the log."""
WARNED_TYPES = 100
AWAY_SECONDS = 1.0
"""How long a job is put back when the database doesn't tell."""


class DeclaredTypes(Protocol):
    """What is asked of the store."""

    async def declared(self, *, within_seconds: float) -> frozenset[str]:
        """The types that somebody has declared lately."""
        ...


class Strangers:
    """
    Judges jobs of unknown types, for one worker.

    *clock* is the time of day in seconds: ids carry it, and a job's age is told from its id.
    """

    def __init__(self, types: DeclaredTypes, *, clock: Callable[[], float] = time.time) -> None:
        self._types = types
        self._clock = clock
        self._declared: frozenset[str] = frozenset()
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()
        self._looks = 0
        self._warned_at: dict[str, float] = {}

    async def judge(self, lease: Lease) -> Outcome:
        """
        Put the job back for a while, without an attempt spent, or end it as failed. Never raises.

        That a type is declared is believed for a few seconds; that it isn't, never without a
        look that began after the job was claimed: a moment ago nobody may have known it.
        """
        try:
            declared = await self._is_declared(lease.type)
        except Exception as error:
            # Whatever it is, it isn't the job's fault, and must not cost it an attempt.
            if not isinstance(error, DatabaseUnavailable):
                log.exception("fault while looking who knows the type of a job", extra={"job_type": lease.type})
            return outcome.snoozed(lease, AWAY_SECONDS * between(0.8, 1.2))
        self._warn(lease.type)
        if declared:
            return outcome.snoozed(lease, self._pause(lease.id))
        return outcome.permanent(
            lease, "UnknownJobType", f"no worker here knows the job type {lease.type!r}; deploy its handler first"
        )

    def _warn(self, name: str) -> None:
        """Say it, now and then: most often this worker was started for the wrong app, or for none."""
        now = self._clock()
        if not 0 <= now - self._warned_at.get(name, float("-inf")) < WARN_SECONDS:
            # Bounded, whatever names somebody comes up with.
            self._warned_at = {name: now} if len(self._warned_at) >= WARNED_TYPES else {**self._warned_at, name: now}
            log.warning("this worker doesn't know the type of a job", extra={"job_type": name})

    async def _is_declared(self, name: str) -> bool:
        if name in self._declared and 0 <= self._clock() - self._looked_at < CACHE_SECONDS:
            return True
        # One look answers all who asked before it began: those who wait here for another's take the next one together.
        needed = self._looks + 1 + self._looking.locked()
        async with self._looking:
            if self._looks < needed:
                at = self._clock()
                declared = await self._types.declared(within_seconds=DECLARED_WITHIN_SECONDS)
                self._declared, self._looked_at = declared, at
                self._looks += 1
        return name in self._declared

    def _pause(self, job_id: UUID) -> float:
        """The longer it has been waiting, the longer the next wait: a rollout takes minutes, or it takes hours."""
        age = self._clock() - (job_id.int >> 80) / 1000
        return min(max(age / 4, SHORTEST_SECONDS), LONGEST_SECONDS) * between(0.8, 1.2)
