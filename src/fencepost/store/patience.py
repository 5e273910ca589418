"""How many statements of a process may wait for other transactions' locks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fencepost.errors import DatabaseUnavailable


class Patience:
    """
    Places for statements that may wait for another transaction's lock, each holding a connection meanwhile.

    There are fewer of them than connections, so whoever needs no such lock finds one.
    """

    def __init__(self, places: int, *, wait_seconds: float) -> None:
        self._places = asyncio.Semaphore(places)
        self._wait_seconds = wait_seconds

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Have one for a while. Raises DatabaseUnavailable when none is free in time."""
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._places.acquire()
        except TimeoutError:
            raise DatabaseUnavailable(
                "too many requests of this process wait for rows that other transactions have locked; nothing was done"
            ) from None
        try:
            yield
        finally:
            self._places.release()
