"""Queues, their lanes, pausing, and how full they are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TypeVar

import msgspec

from fencepost.errors import DatabaseUnavailable, QueueNotFound
from fencepost.store.database import Database
from fencepost.store.enqueueing import Record
from fencepost.store.hints import Hints

Answer = TypeVar("Answer")

COUNT_LIMIT = 100_000
"""Where counting a queue's jobs stops: beyond it a depth reads "at least this many"."""


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """How one queue stands."""

    name: str
    paused_at: datetime | None
    created_at: datetime
    depth: int
    """Pending jobs, due or not; exact below `COUNT_LIMIT`."""
    in_flight: int
    """Jobs in processing."""
    oldest_due_seconds: float | None
    """How long the oldest due job has been waiting; None when nothing is due."""


class Queues:
    """The queues of one schema."""

    def __init__(self, database: Database, hints: Hints) -> None:
        self._database = database
        self._hints = hints
        self._ids: dict[str, int] = {}
        self._lanes: set[tuple[int, int]] = set()

    async def ensure(self, name: str, priority: int) -> int:
        """
        Make a queue and its lane known, and return the queue's id.

        Costs a round trip or two the first time a process meets them, nothing later: queues and lanes are never
        removed. Only a database that was put back to an earlier moment lacks some (see `placed`).
        """
        queue_id = self._ids.get(name)
        if queue_id is None:
            # Somebody's open transaction may be making it.
            async with self._database.patience.place():
                rows = await self._database.fetch("ensure_queue", name=name)
            while not rows:  # Made by someone else after this statement's snapshot.
                rows = await self._database.fetch("find_queue", name=name)
            queue_id = self._ids[name] = int(rows[0]["id"])
        if (queue_id, priority) not in self._lanes:
            async with self._database.patience.place():
                await self._database.fetch("ensure_lane", queue_id=queue_id, priority=priority)
            self._lanes.add((queue_id, priority))
        return queue_id

    def forget(self) -> None:
        """Look again which queues and lanes there are: after a restore, or a failover, some may be gone."""
        self._ids.clear()
        self._lanes.clear()

    async def placed(
        self, records: Sequence[Record], send: Callable[[Sequence[Record]], Awaitable[Answer | None]]
    ) -> Answer:
        """
        What *send* answers for *records*, whose queues and lanes were ensured.

        It answers None, and stores nothing, where one of them is gone, or its id is another queue's by now. Then they
        are made again, and sent once more. Raises DatabaseUnavailable when that doesn't do, with nothing stored.
        """
        answer = await send(records)
        if answer is None:
            self.forget()
            ids = {place: await self.ensure(*place) for place in {(one.queue, one.priority) for one in records}}
            again = [msgspec.structs.replace(one, queue_id=ids[one.queue, one.priority]) for one in records]
            answer = await send(again)
        if answer is None:
            raise DatabaseUnavailable("a queue or a lane that was just made is gone again; nothing was stored")
        return answer

    async def id_of(self, name: str) -> int:
        """The id of an existing queue, as it is now. Raises QueueNotFound."""
        rows = await self._database.fetch("find_queue", name=name)
        if not rows:
            raise QueueNotFound(f"there is no queue {name!r}; a queue exists from its first job on")
        return int(rows[0]["id"])

    async def overview(self) -> list[QueueState]:
        """Every queue, by name. Never costs more than counting `COUNT_LIMIT` jobs a queue."""
        return await self._overview(None)

    async def state(self, name: str) -> QueueState:
        """One queue. Raises QueueNotFound."""
        await self.id_of(name)
        return (await self._overview(name))[0]

    async def pause(self, name: str) -> QueueState:
        """Stop claims from a queue until it is resumed, across restarts. Running jobs go on."""
        return await self._set_paused(name, paused=True)

    async def resume(self, name: str) -> QueueState:
        """Allow claims again, and wake the workers."""
        return await self._set_paused(name, paused=False)

    async def _overview(self, name: str | None) -> list[QueueState]:
        rows = await self._database.fetch("queue_overview", name=name, count_limit=COUNT_LIMIT)
        return [QueueState(**dict(row)) for row in rows]

    async def _set_paused(self, name: str, *, paused: bool) -> QueueState:
        queue_id = await self.id_of(name)
        hint = self._hints.immediate({queue_id})
        async with self._database.patience.place():
            await self._hints.fetch("pause_queue", queue_id=queue_id, paused=paused, hint=hint)
        self._hints.committed({queue_id})
        return await self.state(name)
