"""
Write outcomes, as many at a time as have gathered.

While one write is under way the next outcomes gather, so under load a write carries
hundreds and when idle it carries one at once. While none can be written (the database is
away, a right is missing) they are kept, and so are their leases. What must not hold up
others is written apart (apart.py): attempts that may have completed their jobs by
themselves, a batch of which PostgreSQL refuses one, and what may have been written by a
statement whose answer was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from fencepost.domain.backoff import pause_after
from fencepost.domain.job import Status
from fencepost.domain.outcome import Outcome
from fencepost.logger import get_logger
from fencepost.store.failures import for_operator, is_of_the_value, is_outage, is_the_servers, waited_too_long
from fencepost.telemetry.pulses import Pulse, unwatched
from fencepost.worker.apart import Apart, ApartStore
from fencepost.worker.attempt import Attempt

log = get_logger("fencepost.worker")

BATCH = 500
BATCH_BYTES = 16 << 20
"""About how much of results goes along in one statement; PostgreSQL's own limit is at 256 MB."""
MOST_UNWRITTEN = 10 * BATCH
"""With more than that nothing is claimed: their jobs could end no better."""
SILENT_SECONDS = 4.0
"""How long a worker that stops waits for answers before it makes new connections."""
_LONGEST_PAUSE_SECONDS = 2.0

Ended = tuple[Attempt, Outcome]
"""An attempt and how it ended."""


class SettlingStore(ApartStore, Protocol):
    """What the settler needs of the store."""

    async def settle(self, queue_id: int, outcomes: list[Outcome], /) -> list[Status | None]:
        """Write outcomes of one queue; returns where each job went, None for one that had lost its lease."""
        ...


class Settler:
    """
    Collects outcomes and writes them.

    *settled* is called once for each attempt, with the job's new status, or None when
    the lease was lost and nothing was recorded. *relieved* is called when `is_full` has ended.
    """

    def __init__(
        self,
        store: SettlingStore,
        *,
        settled: Callable[[Attempt, Outcome, Status | None], None],
        relieved: Callable[[], None] = lambda: None,
        pulse: Pulse | None = None,
    ) -> None:
        self._store = store
        self._settled = settled
        self._waiting: dict[int, list[Ended]] = {}
        self._unwritten = 0
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._relieved = relieved
        self._pulse = pulse or unwatched("settler")
        self._apart = Apart(store, ended=self._ended_apart, pulse=self._pulse)
        self._doubtful: set[Attempt] = set()
        """Written perhaps: nobody heard."""
        self._pausing = False
        self._most = BATCH
        """How many go into one statement just now: fewer with each failure, should there be too many for the server."""
        self._has_large = False
        """Whether there was ever a result that makes batches too long if there are many like it."""
        self.is_full = False
        """Whether too many wait to be written."""

    def put(self, attempt: Attempt, outcome: Outcome) -> None:
        """Hand over an outcome; it is written as soon as can be."""
        if not self._unwritten:
            self._pulse.wake()
            self._idle.clear()
        self._unwritten += 1
        if outcome.result is not None and len(outcome.result) > BATCH_BYTES // BATCH:
            self._has_large = True
        if self._unwritten > MOST_UNWRITTEN:
            self.is_full = True
        if attempt.completing:
            self._apart.put(attempt, outcome)
            return
        self._waiting.setdefault(outcome.queue_id, []).append((attempt, outcome))
        self._arrived.set()

    def take(self, queue_id: int) -> list[Ended]:
        """Take a batch to be written by the caller, who then owes a `report` or a `give_back`."""
        if self._pausing:
            # They can't be written just now, and a claim need not fail with them.
            return []
        waiting = self._waiting.pop(queue_id, [])
        count = self._most if not self._has_large else min(self._most, _how_many(waiting))
        if len(waiting) > count:
            # To the end of the line, so that a busy queue can't hold up the others.
            self._waiting[queue_id] = waiting[count:]
        return waiting[:count]

    def give_back(self, queue_id: int, batch: list[Ended], *, is_doubtful: bool = False) -> None:
        """It could not be written, or not like this; or perhaps it was, when *is_doubtful*."""
        if is_doubtful:
            self._doubtful.update(attempt for attempt, _ in batch)
        if batch:
            self._waiting[queue_id] = batch + self._waiting.get(queue_id, [])
            self._arrived.set()

    def put_apart(self, batch: list[Ended]) -> None:
        """
        Write each by itself, as soon as can be: one of them is refused, or somebody has its lease locked for long.

        All together would be refused, or wait, again and again.
        """
        for attempt, outcome in batch:
            self._apart.put(attempt, outcome)

    def report(self, batch: list[Ended], statuses: list[Status | None]) -> None:
        """It was written; *statuses* is what `SettlingStore.settle` answered."""
        if self._doubtful:
            batch, statuses = self._without_doubts(batch, statuses)
        self._unwritten -= len(batch)
        for (attempt, outcome), status in zip(batch, statuses, strict=True):
            try:
                self._settled(attempt, outcome, status)
            except Exception:
                # It is written. Whoever is told of it must not keep the others from being told.
                log.exception("fault while reporting how an attempt ended", extra={"job_id": str(outcome.id)})
        self._pulse.turned()
        if not self._unwritten:
            self._pulse.rest()
            self._idle.set()
        if self.is_full and self._unwritten < MOST_UNWRITTEN // 2:
            self.is_full = False
            self._relieved()

    def _without_doubts(
        self, batch: list[Ended], statuses: list[Status | None]
    ) -> tuple[list[Ended], list[Status | None]]:
        """Leave out those whose lease is gone and who may have been written before: that is looked up, apart."""
        sure: list[tuple[Ended, Status | None]] = []
        for (attempt, outcome), status in zip(batch, statuses, strict=True):
            if attempt in self._doubtful:
                self._doubtful.discard(attempt)
                if status is None:
                    self._apart.put(attempt, outcome)
                    continue
            sure.append(((attempt, outcome), status))
        return [ended for ended, _ in sure], [status for _, status in sure]

    async def run(self) -> None:
        """Write until cancelled. Survives every database error."""
        failures = 0
        while True:
            if not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
                # The slot that an outcome frees may bring a claim in this very moment, which then takes it along.
                await asyncio.sleep(0)
            try:
                await self._write_next()
                failures = 0
                self._most = min(BATCH, 2 * self._most)
            except Exception as error:
                failures += 1
                self._most = max(1, self._most // 2)
                self._pulse.failed(error)
                pause = pause_after(failures, first_seconds=0.05, longest_seconds=_LONGEST_PAUSE_SECONDS)
                reason = {"reason": for_operator(error), "retry_in_seconds": round(pause, 3)}
                if is_the_servers(error):
                    log.warning("outcomes can't be written yet", extra=reason)
                else:
                    log.exception("outcomes can't be written yet", extra=reason)
                self._pausing = True
                try:
                    await asyncio.sleep(pause)
                finally:
                    self._pausing = False

    async def flush(self) -> None:
        """Wait until everything handed over so far is written. Bound it with a timeout."""
        await self._idle.wait()

    async def finish(self, reconnect: Callable[[], Awaitable[None]]) -> None:
        """
        `flush`, of a worker that stops and can't wait for connections that have gone silent.

        When nothing was written for `SILENT_SECONDS`, *reconnect* makes new ones. It may raise what it likes.
        """
        patience = SILENT_SECONDS
        while True:
            unwritten = self._unwritten
            with suppress(TimeoutError):
                await asyncio.wait_for(self.flush(), patience)
                return
            if self._unwritten < unwritten:
                continue
            try:
                await reconnect()
                patience = SILENT_SECONDS
            except Exception as error:  # noqa: BLE001 - whatever it is, the rest of the stop must not end with it
                log.warning("no answer, and no new connection", extra={"reason": for_operator(error)})
                patience = _LONGEST_PAUSE_SECONDS / 4

    async def stop(self) -> None:
        """Give up what is written apart; what `run` does ends with it."""
        await self._apart.stop()

    def _ended_apart(self, attempt: Attempt, outcome: Outcome, status: Status | None) -> None:
        # Apart it was looked up.
        self._doubtful.discard(attempt)
        self.report([(attempt, outcome)], [status])

    async def _write_next(self) -> None:
        if not self._waiting:
            return
        queue_id = next(iter(self._waiting))
        batch = self.take(queue_id)
        try:
            statuses = await self._store.settle(queue_id, [outcome for _, outcome in batch])
        except Exception as error:
            busy = waited_too_long(error)
            if is_outage(error) and not busy:
                self.give_back(queue_id, batch, is_doubtful=True)
                raise
            # Whichever of them it is about, if any: the others are not kept waiting with it.
            self.put_apart(batch)
            if not busy and not is_of_the_value(error):
                raise
            log.warning("outcomes are written apart", extra={"reason": for_operator(error), "outcomes": len(batch)})
        else:
            self.report(batch, statuses)


def _how_many(waiting: list[Ended]) -> int:
    """How many of these go into one statement: at least one, and not too many bytes."""
    total = 0
    for count, (_, outcome) in enumerate(waiting[:BATCH]):
        total += len(outcome.result or b"")
        if total > BATCH_BYTES and count:
            return count
    return BATCH
