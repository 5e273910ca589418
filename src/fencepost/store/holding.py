"""
Jobs whose key is in the hands of another transaction, and how long they wait for it.

Somebody may hold a key for as long as their transaction is open. Whoever asks for that key has to
wait; nobody else must. So those who wait are kept here, in memory, and one of them at a time tries
again, which holds a single connection for a tenth of a second. Whoever comes with a key that is
known to be held joins them, instead of holding up a statement that others share.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

import msgspec

from fencepost.errors import DatabaseUnavailable

Record = TypeVar("Record")
Answer = TypeVar("Answer")

PATIENCE_SECONDS = 10.0
"""How long a key that another transaction holds is waited for."""


class Contended(Exception):
    """A key of one of the records is in the hands of another transaction; none of them was stored."""


class Caller(msgspec.Struct, Generic[Record, Answer], eq=False):
    """Someone who waits for their own job to be stored."""

    record: Record
    stored: asyncio.Future[Answer]
    gives_up_at: float
    """By the monotonic clock."""

    def answer(self, answer: Answer) -> None:
        """Tell what became of the job."""
        if not self.stored.done():
            self.stored.set_result(answer)

    def fail(self, error: BaseException) -> None:
        """Tell that it went wrong."""
        if self.stored.done():
            return
        if isinstance(error, Exception):
            self.stored.set_exception(error)
        else:
            self.stored.set_exception(DatabaseUnavailable("broken off; it isn't known whether the job is stored"))


class Held(Generic[Record, Answer]):
    """
    The callers who wait for a key.

    *insert* stores one record, or raises Contended. *keys* are those of a record. *free* gets the callers whose key
    may be free now, since one with the same key was answered.
    """

    def __init__(
        self,
        insert: Callable[[Sequence[Record]], Awaitable[Sequence[Answer]]],
        *,
        keys: Callable[[Record], Iterable[Hashable]],
        free: Callable[[list[Caller[Record, Answer]]], None],
    ) -> None:
        self._insert = insert
        self._keys = keys
        self._free = free
        self._callers: list[Caller[Record, Answer]] = []
        self._held: set[Hashable] = set()
        self._trying: asyncio.Task[None] | None = None

    def concerns(self, record: Record) -> bool:
        """Whether somebody waits for a key of this record already."""
        return bool(self._held) and not self._held.isdisjoint(self._keys(record))

    def add(self, caller: Caller[Record, Answer]) -> None:
        """Let a caller wait."""
        self._callers.append(caller)
        self._held.update(self._keys(caller.record))
        if self._trying is None or self._trying.done():
            self._trying = asyncio.get_running_loop().create_task(self._try(), name="fencepost-held")

    async def _try(self) -> None:
        """In rounds, the first of each key; until nobody waits."""
        while self._callers:
            seen: set[Hashable] = set()
            for caller in list(self._callers):
                keys = set(self._keys(caller.record))
                if caller.stored.done():
                    self._remove([caller])
                elif seen.isdisjoint(keys):
                    await self._try_one(caller, keys)
                seen |= keys

    async def _try_one(self, caller: Caller[Record, Answer], keys: set[Hashable]) -> None:
        try:
            [answer] = await self._insert([caller.record])
        except Contended:
            if time.monotonic() >= caller.gives_up_at:
                self._remove([caller])
                caller.fail(
                    DatabaseUnavailable(
                        f"another transaction has held this job's key for {PATIENCE_SECONDS:g} s; nothing was stored"
                    )
                )
            return
        except BaseException as error:
            self._remove([caller])
            caller.fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            caller.answer(answer)
        followers = [one for one in self._callers if one is not caller and not keys.isdisjoint(self._keys(one.record))]
        self._remove([caller, *followers])
        self._free(followers)

    def _remove(self, callers: list[Caller[Record, Answer]]) -> None:
        self._callers = [one for one in self._callers if one not in callers]
        self._held = {key for one in self._callers for key in self._keys(one.record)}
