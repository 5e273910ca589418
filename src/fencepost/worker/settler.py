"""
Write outcomes, as many at a time as have gathered.

While one write is under way the next outcomes gather, so under load a write carries
hundreds and when idle it carries one at once. An outcome that PostgreSQL refuses is
isolated: it never holds up the others it travels with. Attempts that may have completed
their jobs by themselves are written apart (apart.py).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Protocol

from fencepost.domain.job import Status
from fencepost.domain.outcome import Outcome
from fencepost.errors import DatabaseUnavailable
from fencepost.store.failures import waited_too_long
from fencepost.worker.apart import Apart, ApartStore, bare
from fencepost.worker.attempt import Attempt

log = logging.getLogger("fencepost.worker")

BATCH = 500
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
    the lease was lost and nothing was recorded.
    """

    def __init__(self, store: SettlingStore, *, settled: Callable[[Attempt, Outcome, Status | None], None]) -> None:
        self._store = store
        self._settled = settled
        self._waiting: dict[int, list[Ended]] = {}
        self._unwritten = 0
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._apart = Apart(store, ended=self._ended_apart)

    def put(self, attempt: Attempt, outcome: Outcome) -> None:
        """Hand over an outcome; it is written as soon as can be."""
        self._unwritten += 1
        self._idle.clear()
        if attempt.completing:
            self._apart.put(attempt, outcome)
            return
        self._waiting.setdefault(outcome.queue_id, []).append((attempt, outcome))
        self._arrived.set()

    def take(self, queue_id: int) -> list[Ended]:
        """Take a batch to be written by the caller, who then owes a `report` or a `give_back`."""
        waiting = self._waiting.pop(queue_id, [])
        if len(waiting) > BATCH:
            # To the end of the line, so that a busy queue can't hold up the others.
            self._waiting[queue_id] = waiting[BATCH:]
        return waiting[:BATCH]

    def give_back(self, queue_id: int, batch: list[Ended]) -> None:
        """It could not be written, or not like this."""
        if batch:
            self._waiting[queue_id] = batch + self._waiting.get(queue_id, [])
            self._arrived.set()

    def put_apart(self, batch: list[Ended]) -> None:
        """
        Somebody has the lease of one of them locked for long: write each by itself, as soon as its lease is free.

        All together would wait for that one again and again.
        """
        for attempt, outcome in batch:
            self._apart.put(attempt, outcome)

    def report(self, batch: list[Ended], statuses: list[Status | None]) -> None:
        """It was written; *statuses* is what `SettlingStore.settle` answered."""
        for (attempt, outcome), status in zip(batch, statuses, strict=True):
            self._settled(attempt, outcome, status)
        self._unwritten -= len(batch)
        if not self._unwritten:
            self._idle.set()

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
            except DatabaseUnavailable as error:
                failures += 1
                pause = min(0.05 * 2 ** min(failures, 10), _LONGEST_PAUSE_SECONDS) * random.uniform(0.5, 1)
                log.warning("outcomes can't be written yet", extra={"reason": str(error), "retry_in_seconds": pause})
                await asyncio.sleep(pause)

    async def flush(self) -> None:
        """Wait until everything handed over so far is written. Bound it with a timeout."""
        await self._idle.wait()

    async def stop(self) -> None:
        """Give up what is written apart; what `run` does ends with it."""
        await self._apart.stop()

    def _ended_apart(self, attempt: Attempt, outcome: Outcome, status: Status | None) -> None:
        self.report([(attempt, outcome)], [status])

    async def _write_next(self) -> None:
        if not self._waiting:
            return
        queue_id = next(iter(self._waiting))
        batch = self.take(queue_id)
        try:
            statuses = await self._store.settle(queue_id, [outcome for _, outcome in batch])
        except DatabaseUnavailable as error:
            if waited_too_long(error):
                log.warning("outcomes wait for a locked lease; writing them apart", extra={"outcomes": len(batch)})
                self.put_apart(batch)
                return
            self.give_back(queue_id, batch)
            raise
        except Exception:
            log.exception("a batch of outcomes was refused; writing them one by one")
            await self._write_each(queue_id, batch)
        else:
            self.report(batch, statuses)

    async def _write_each(self, queue_id: int, batch: list[Ended]) -> None:
        for done, (attempt, outcome) in enumerate(batch):
            try:
                await self._write_alone(queue_id, attempt, outcome)
            except DatabaseUnavailable as error:
                if waited_too_long(error):
                    self.put_apart(batch[done:])
                    return
                self.give_back(queue_id, batch[done:])
                raise

    async def _write_alone(self, queue_id: int, attempt: Attempt, outcome: Outcome) -> None:
        try:
            self.report([(attempt, outcome)], await self._store.settle(queue_id, [outcome]))
        except DatabaseUnavailable:
            raise
        except Exception:
            log.exception("an outcome was refused; writing it bare", extra={"job_id": str(outcome.id)})
            await self._write_bare(queue_id, attempt, outcome)

    async def _write_bare(self, queue_id: int, attempt: Attempt, outcome: Outcome) -> None:
        """Write an outcome that was refused without what a handler put into it: the ending itself must be kept."""
        stripped = bare(outcome)
        try:
            statuses = await self._store.settle(queue_id, [stripped])
        except DatabaseUnavailable:
            raise
        except Exception:
            log.exception("an outcome can't be written; its lease will expire", extra={"job_id": str(outcome.id)})
            statuses = [None]
        self.report([(attempt, stripped)], statuses)
