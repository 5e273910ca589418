"""
Connections that are kept for short statements, one after the other.

A statement through the driver's pool pays for the pool's bookkeeping and for a timer of
its own: 75 µs of Python, where the rest of a short one takes 50. A line is a connection
outside the pool, with one timer that looks after it for as long as it lives.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

CHECK_SECONDS = 5.0
"""How often the patience with a statement is looked at."""


class Line:
    """
    One connection, made when it is first needed and whenever the last one broke.

    For one caller at a time. *connect* makes it; a statement that takes longer than
    *patience_seconds* loses its connection, and its caller gets the driver's error.
    """

    def __init__(self, connect: Callable[[], Awaitable[Any]], *, patience_seconds: float) -> None:
        self._connect = connect
        self._patience_seconds = patience_seconds
        self._connection: Any = None
        self._deadline: float | None = None
        self._check: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether it has a connection just now."""
        return self._connection is not None and not self._connection.is_closed()

    async def fetch(self, sql: str, arguments: list[object]) -> list[Any]:
        """Run a statement and return its rows. Raises the driver's errors."""
        if not self.is_open:
            self._connection = await self._connect()
            self._watch()
        self._deadline = time.monotonic() + self._patience_seconds
        try:
            rows: list[Any] = await self._connection.fetch(sql, *arguments)
            return rows
        finally:
            self._deadline = None

    def cut(self) -> None:
        """Break the connection off, whatever it is doing. The next statement makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def close(self) -> None:
        """Close the connection, if there is one."""
        if self._check is not None:
            self._check.cancel()
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            await connection.close()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        if self._check is not None:
            self._check.cancel()
        if self._deadline is not None and time.monotonic() > self._deadline:
            self.cut()
        if self.is_open:
            self._check = loop.call_later(CHECK_SECONDS, self._watch)


class Lines:
    """A few lines, and whoever needs one takes the one used last: its statements are prepared and warm."""

    def __init__(self, connect: Callable[[], Awaitable[Any]], *, count: int, patience_seconds: float) -> None:
        self._all = [Line(connect, patience_seconds=patience_seconds) for _ in range(count)]
        self._free = list(self._all)

    def __bool__(self) -> bool:
        """Whether one is free."""
        return bool(self._free)

    @property
    def open_count(self) -> int:
        """How many connections they have."""
        return sum(line.is_open for line in self._all)

    async def fetch(
        self, sql: str, arguments: list[object], *, is_broken: Callable[[BaseException], bool]
    ) -> list[Any]:
        """
        Run a statement on one that is free and return its rows.

        Raises the driver's errors; *is_broken* says which of them cost it its connection.
        """
        line = self._free.pop()
        try:
            return await line.fetch(sql, arguments)
        except BaseException as error:
            if is_broken(error):
                line.cut()
            raise
        finally:
            self._free.append(line)

    def cut(self) -> None:
        """Break off every connection."""
        for line in self._all:
            line.cut()

    async def close(self) -> None:
        """Close every connection."""
        for line in self._all:
            await line.close()
