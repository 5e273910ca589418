"""
Wake-ups between processes: few, small, and never needed.

A notification is a hint that a worker may look sooner than its poll would. PostgreSQL
serialises the commits of all transactions that notify, so one a job would put every
producer in line. Instead the first enqueue after a quiet moment carries a hint, and
the ones that follow within `QUIET_SECONDS` share a single trailing one.

Payloads: `due 3,17` (queues with something to claim) and `cancel 3 <job id>`; `watch 3 <job id>` (somebody waits for
this job's end) and the answer to that, `done <job id>,<job id>`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from uuid import UUID

from fencepost.errors import DatabaseUnavailable
from fencepost.logger import get_logger
from fencepost.store.database import Database
from fencepost.store.failures import no_room_for_hints
from fencepost.store.querying import Row

log = get_logger("fencepost.hints")

Hint = str | None

QUIET_SECONDS = 0.005
"""The least time between two hints for one queue; so also the most that a hint can be late."""
MOST_QUEUES = 500
"""Queue ids that a hint carries at the most: a payload has to stay under 8,000 bytes."""


MOST_DONE = 200
"""Job ids that a `done` may carry, for the same reason."""


def due_hint(queue_ids: Iterable[int]) -> Hint:
    """Tell workers that these queues, `MOST_QUEUES` at the most, have something due; None when there are none."""
    named = sorted(queue_ids)
    return "due " + ",".join(map(str, named)) if named else None


def watch_hint(queue_id: int, job_id: UUID) -> str:
    """Tell workers that somebody waits for a job's end."""
    return f"watch {queue_id} {job_id}"


def done_hint(job_ids: Iterable[UUID]) -> str:
    """Tell whoever waits that these jobs, `MOST_DONE` at the most, have ended."""
    return "done " + ",".join(map(str, job_ids))


def done_ids(hint: str) -> frozenset[UUID]:
    """The jobs of which a `done` tells; none of any other hint. Raises ValueError for what isn't one of ours."""
    kind, _, rest = hint.partition(" ")
    return frozenset(map(UUID, rest.split(","))) if kind == "done" else frozenset()


class Hints:
    """Decides when a hint is sent, for the producers of one event loop."""

    def __init__(
        self,
        database: Database,
        *,
        local: Callable[[Iterable[int]], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._local = local or (lambda queue_ids: None)
        self._clock = clock
        self._sent_at: dict[int, float] = {}
        self._owed: set[int] = set()
        self._trailing: asyncio.Task[None] | None = None

    def offer(self, queue_ids: set[int]) -> set[int]:
        """
        Of these queues, in which a commit is about to make jobs due, those that its hint is to name.

        The others had one too recently, or there are too many. Theirs is owed when the commit is over, and not before:

            one enqueue                         another                         the trailing hint
            commits, is owed one
                                                offers: too recent
                                                                                is sent, for both if both were owed
                                                commits, after the workers looked
        """
        now = self._clock()
        named = {queue_id for queue_id in queue_ids if now - self._sent_at.get(queue_id, -1.0) >= QUIET_SECONDS}
        if len(named) > MOST_QUEUES:
            named = set(sorted(named)[:MOST_QUEUES])
        self._sent_at.update(dict.fromkeys(named, now))
        return named

    def immediate(self, queue_ids: set[int]) -> Hint:
        """A hint for these queues, `MOST_QUEUES` at the most, whatever was sent before."""
        self._sent_at.update(dict.fromkeys(queue_ids, self._clock()))
        return due_hint(queue_ids)

    def cancellation(self, queue_id: int, job_id: UUID) -> Hint:
        """A hint that somebody wants a running job to stop."""
        return f"cancel {queue_id} {job_id}"

    async def fetch(self, name: str, /, **values: object) -> list[Row]:
        """
        Run a statement that sends a `hint`, or `hints`, when it commits; without them when the server has no room.

        Such a commit is refused, and that may go on for long: because of a session that listens and doesn't hear,
        which need not be one of ours. What hints tell is found by polling.
        """
        values["channel"] = self._database.channel
        try:
            return await self._database.fetch(name, **values)
        except DatabaseUnavailable as error:
            if not no_room_for_hints(error):
                raise
            log.warning("no hint was sent; polling finds what it told", extra={"reason": str(error)})
        return await self._database.fetch(name, **{**values, "hints" if "hints" in values else "hint": None})

    def committed(self, queue_ids: set[int], *, named: set[int] | None = None) -> None:
        """
        The jobs are visible: wake this process's own workers, and pay the hints that are owed a little later.

        *named* are the queues that the commit's own hint told of; all, unless it is given.
        """
        self._local(queue_ids)
        if named is not None:
            self._owed |= queue_ids - named
        if self._owed and (self._trailing is None or self._trailing.done()):
            self._trailing = asyncio.get_running_loop().create_task(self._pay(), name="fencepost-hints")

    async def close(self) -> None:
        """Send what is owed now."""
        if self._trailing is not None:
            self._trailing.cancel()
            await asyncio.wait([self._trailing])
        if self._owed:
            await self._send()

    async def _pay(self) -> None:
        while self._owed:
            await asyncio.sleep(QUIET_SECONDS)
            await self._send()

    async def _send(self) -> None:
        owed, self._owed = self._owed, set()
        try:
            while owed:
                named = set(sorted(owed)[:MOST_QUEUES])
                await self._database.fetch("notify", channel=self._database.channel, hint=self.immediate(named))
                owed -= named
        except DatabaseUnavailable:
            # The workers' poll finds the jobs.
            return
        except Exception:
            log.exception("fault while sending a hint; the workers' poll finds the jobs")
        except asyncio.CancelledError:
            # By `close`, which sends what is owed. Sent twice does no harm.
            self._owed |= owed
            raise
