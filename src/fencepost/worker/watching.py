"""
Jobs whose end somebody waits for.

Whoever wants a result without asking again and again says so on the schema's channel
(`watch`), and every worker keeps the job in mind for a while. The one that ends it says
`done`. Nothing depends on it: who waits also looks by itself, less and less often.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from uuid import UUID

from fencepost.errors import DatabaseUnavailable
from fencepost.logger import get_logger
from fencepost.store.hints import MOST_DONE, done_hint

log = get_logger("fencepost.worker")

WATCHED_SECONDS = 60.0
"""How long a job is kept in mind after it was last asked for."""
MOST_WATCHED = 10_000
"""Beyond that the one asked for longest ago is forgotten."""


class Watching:
    """
    The jobs that somebody waits for, as one worker knows them.

    *notify* sends a hint. Ends that come together are told together: a notification takes a
    lock on the whole server at its commit.
    """

    def __init__(
        self,
        notify: Callable[[str], Awaitable[None]],
        *,
        most: int = MOST_WATCHED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notify = notify
        self._most = most
        self._clock = clock
        self._until: dict[UUID, float] = {}
        """Until when each is kept in mind: the one that goes first is in front."""
        self._ended: dict[UUID, None] = {}
        self._telling: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """How many jobs are kept in mind."""
        return len(self._until)

    def watch(self, job_id: UUID) -> None:
        """Somebody waits for this job, or still does."""
        now = self._clock()
        self._until.pop(job_id, None)
        self._until[job_id] = now + WATCHED_SECONDS
        while self._until:
            first = next(iter(self._until))
            if self._until[first] > now and len(self._until) <= self._most:
                break
            del self._until[first]

    def ended(self, job_id: UUID) -> None:
        """This job has ended. Costs next to nothing while nobody waits for anything."""
        if not self._until or self._until.pop(job_id, 0.0) <= self._clock():
            return
        self._ended[job_id] = None
        if self._telling is None or self._telling.done():
            self._telling = asyncio.get_running_loop().create_task(self._tell(), name="fencepost-done")

    async def stop(self) -> None:
        """Tell what is still to be told, unless that takes long, and keep nothing in mind any more."""
        self._until.clear()
        if self._telling is not None:
            await asyncio.wait([self._telling], timeout=1)
            self._telling.cancel()
            await asyncio.wait([self._telling])

    async def _tell(self) -> None:
        while self._ended:
            some = list(self._ended)[:MOST_DONE]
            for job_id in some:
                del self._ended[job_id]
            try:
                await self._notify(done_hint(some))
            except DatabaseUnavailable:
                # Who waits finds it by looking.
                continue
            except Exception:
                log.exception("fault while telling of jobs that have ended")
