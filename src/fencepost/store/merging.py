"""
Many single enqueues, one statement.

A commit costs the same for one job as for hundreds. So callers that enqueue at the same
time in one process share one: while a statement is under way, the next jobs gather. A
lone caller's job is sent at once. Each caller still waits until its own job is committed,
and hears only of what went wrong with its own. Who has to wait for a key does so apart
(holding.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from fencepost.errors import DatabaseUnavailable
from fencepost.store.failures import is_of_the_value
from fencepost.store.holding import PATIENCE_SECONDS, Caller, Contended, Held
from fencepost.telemetry.pulses import Pulse

Record = TypeVar("Record")
Answer = TypeVar("Answer")

BATCH = 500
UNDER_WAY = 2
"""Statements at a time: while the server works on one, this process prepares another."""
STUCK_SECONDS = 20.0
"""How long jobs may wait to be stored without any statement's ending, before that is told as stuck."""
PARTS = 2
"""Parts at a time of batches that couldn't be stored as they were. Each may hold a connection for a while."""


class Merger(Generic[Record, Answer]):
    """
    Puts the jobs of concurrent callers into shared statements.

    *insert* stores records, all or none, and returns an answer for each, in their order. It
    raises Contended when another transaction holds one of their *keys*.
    """

    def __init__(
        self,
        insert: Callable[[Sequence[Record]], Awaitable[Sequence[Answer]]],
        *,
        keys: Callable[[Record], Iterable[Hashable]] = lambda record: (),
    ) -> None:
        self._insert = insert
        self.pulse = Pulse(
            "enqueue",
            task="stores the jobs that are handed in",
            patience_seconds=STUCK_SECONDS,
            advice="see whether the database answers and isn't overloaded, then restart this process",
            idle=True,
        )
        """Beats with each statement that ends, and rests while there is none."""
        self._waiting: list[Caller[Record, Answer]] = []
        self._held = Held(insert, keys=keys, free=self._take_back)
        self._parts = asyncio.Semaphore(PARTS)
        self._flushes: set[asyncio.Task[None]] = set()
        self._under_way = 0
        """Statements that are being run."""
        self._gathering = False
        """Whether the next one is about to begin."""

    async def put(self, record: Record) -> Answer:
        """
        Store one job, with whatever others are waiting; returns its answer.

        Raises DatabaseUnavailable when it isn't known whether it was stored.
        """
        stored: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        mine = Caller(record, stored, time.monotonic() + PATIENCE_SECONDS)
        if self._held.concerns(record):
            self._held.add(mine)
            return await stored
        self._waiting.append(mine)
        if self._under_way >= UNDER_WAY or self._gathering:
            return await stored
        self._gathering = True
        try:
            # Whoever comes in this very moment is taken along.
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            stored.cancel()
            raise
        finally:
            self._gathering = False
            alone = self._waiting == [mine] and not stored.done()
            if not alone and self._waiting:
                self._begin()
        if not alone:
            return await stored
        # Nobody else, so no task is needed: it would cost a twentieth of the whole call.
        self._waiting.clear()
        self.pulse.wake()
        self._under_way += 1
        try:
            return (await self._insert([record]))[0]
        except Contended:
            self._held.add(mine)
        finally:
            self._end()
        return await stored

    def _take_back(self, callers: list[Caller[Record, Answer]]) -> None:
        """Store those whose key may be free again."""
        self._waiting += callers
        if self._waiting and self._under_way < UNDER_WAY and not self._gathering:
            self._begin()

    def _begin(self) -> None:
        if not self._under_way:
            self.pulse.wake()
        self._under_way += 1
        self._start(self._flush())

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="fencepost-enqueue")
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    def _end(self) -> None:
        self._under_way -= 1
        if self._waiting and not self._gathering:
            self._begin()
        elif not self._under_way:
            self.pulse.rest()

    async def _flush(self) -> None:
        try:
            while self._waiting:
                taken = [caller for caller in self._waiting[:BATCH] if not caller.stored.done()]
                del self._waiting[:BATCH]
                if taken:
                    await self._send(taken)
                    self.pulse.turned_at = time.monotonic()
        finally:
            self._end()

    async def _send(self, taken: list[Caller[Record, Answer]]) -> None:
        try:
            answers = await self._insert([caller.record for caller in taken])
            if len(answers) != len(taken):
                raise DatabaseUnavailable(
                    f"answered for {len(answers)} of {len(taken)} jobs; it isn't known whether they are stored"
                )
        except BaseException as error:
            if isinstance(error, Contended) and len(taken) == 1:
                self._held.add(taken[0])
            elif len(taken) == 1 or not is_of_the_value(error):
                for caller in taken:
                    caller.fail(error)
                if not isinstance(error, Exception):
                    raise
            else:
                # One of them can't be stored, or has to wait; the others must not hear of it. Whoever comes next
                # doesn't wait for it either.
                middle = len(taken) // 2
                for part in (taken[:middle], taken[middle:]):
                    self._start(self._send_part(part))
        else:
            for caller, answer in zip(taken, answers, strict=True):
                caller.answer(answer)

    async def _send_part(self, taken: list[Caller[Record, Answer]]) -> None:
        async with self._parts:
            await self._send(taken)
