"""
Many single enqueues, one statement.

A commit costs the same for one job as for hundreds. So callers that enqueue at the same
time in one process share one: while a statement is under way, the next jobs gather. A
lone caller's job is sent at once. Each caller still waits until its own job is committed,
and hears only of what went wrong with its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Generic, TypeVar

from fencepost.errors import DatabaseUnavailable

Record = TypeVar("Record")
Answer = TypeVar("Answer")

BATCH = 500
UNDER_WAY = 2
"""Statements at a time: while the server works on one, this process prepares another."""


class Merger(Generic[Record, Answer]):
    """
    Puts the jobs of concurrent callers into shared statements.

    *insert* stores records, all or none, and returns an answer for each, in their order.
    """

    def __init__(self, insert: Callable[[Sequence[Record]], Awaitable[Sequence[Answer]]]) -> None:
        self._insert = insert
        self._waiting: list[tuple[Record, asyncio.Future[Answer]]] = []
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
        mine = (record, stored)
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
        self._under_way += 1
        try:
            return (await self._insert([record]))[0]
        finally:
            self._end()

    def _begin(self) -> None:
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

    async def _flush(self) -> None:
        try:
            while self._waiting:
                taken = [(record, stored) for record, stored in self._waiting[:BATCH] if not stored.done()]
                del self._waiting[:BATCH]
                if taken:
                    await self._send(taken)
        finally:
            self._end()

    async def _send(self, taken: list[tuple[Record, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._insert([record for record, _ in taken])
        except DatabaseUnavailable as error:
            for _, stored in taken:
                _fail(stored, error)
        except Exception as error:  # noqa: BLE001 - it is the caller's, who gets it
            if len(taken) == 1:
                _fail(taken[0][1], error)
                return
            # One of them can't be stored, or has to wait; the others must not hear of it. Whoever comes next doesn't
            # wait for it either.
            middle = len(taken) // 2
            for part in (taken[:middle], taken[middle:]):
                self._start(self._send(part))
        else:
            for (_, stored), answer in zip(taken, answers, strict=True):
                if not stored.done():
                    stored.set_result(answer)


def _fail(stored: asyncio.Future[Answer], error: Exception) -> None:
    if not stored.done():
        stored.set_exception(error)
