"""
Many single enqueues, one statement.

A commit costs the same for one job as for hundreds. So callers that enqueue at the same
time in one process share one: while a statement is under way, the next jobs gather. A
lone caller's job is sent at once. Each caller still waits until its own job is committed,
and hears only of what went wrong with its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fencepost.errors import DatabaseUnavailable
from fencepost.store.database import Row

Record = dict[str, Any]
"""A job as `enqueue.sql` reads it."""

BATCH = 500
UNDER_WAY = 2
"""Statements at a time: while the server works on one, this process prepares another."""


class Merger:
    """
    Puts the jobs of concurrent callers into shared statements.

    *insert* stores records, all or none, and returns a row for each that was stored.
    """

    def __init__(self, insert: Callable[[Sequence[Record]], Awaitable[list[Row]]]) -> None:
        self._insert = insert
        self._waiting: list[tuple[Record, asyncio.Future[Row | None]]] = []
        self._flushes: set[asyncio.Task[None]] = set()

    async def put(self, record: Record) -> Row | None:
        """
        Store one job, with whatever others are waiting; None when its idempotency key exists already.

        Raises DatabaseUnavailable when it isn't known whether it was stored.
        """
        stored: asyncio.Future[Row | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((record, stored))
        if len(self._flushes) < UNDER_WAY:
            flush = asyncio.get_running_loop().create_task(self._flush(), name="fencepost-enqueue")
            self._flushes.add(flush)
            flush.add_done_callback(self._flushes.discard)
        return await stored

    async def _flush(self) -> None:
        while self._waiting:
            taken = [(record, stored) for record, stored in self._waiting[:BATCH] if not stored.done()]
            del self._waiting[:BATCH]
            if taken:
                await self._send(taken)

    async def _send(self, taken: list[tuple[Record, asyncio.Future[Row | None]]]) -> None:
        try:
            rows = {row["id"]: row for row in await self._insert([record for record, _ in taken])}
        except DatabaseUnavailable as error:
            for _, stored in taken:
                _fail(stored, error)
        except Exception as error:  # noqa: BLE001 - it is the caller's, who gets it
            if len(taken) == 1:
                _fail(taken[0][1], error)
                return
            # One of them can't be stored; the others must not hear of it.
            for one in taken:
                await self._send([one])
        else:
            for record, stored in taken:
                if not stored.done():
                    stored.set_result(rows.get(record["id"]))


def _fail(stored: asyncio.Future[Row | None], error: Exception) -> None:
    if not stored.done():
        stored.set_exception(error)
