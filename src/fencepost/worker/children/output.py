"""What a child prints, line by line into the worker's log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from fencepost.logger import get_logger
from fencepost.worker.children import records

log = get_logger("fencepost.job")

LINE_CHARACTERS = 4_000
LINES = 1_000
"""So many lines of one attempt go into the log, and no more."""
TAIL_BYTES = 2_000


class Output(asyncio.Protocol):
    """Reads one stream of a child, *name*, for its whole life."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._fields: Mapping[str, object] = {}
        self._lines = 0
        self._rest = bytearray()
        self._tail = bytearray()
        self.transport: asyncio.BaseTransport | None = None
        self.closed = asyncio.Event()
        """Set when the other end was closed by everybody who had it."""

    def belongs_to(self, fields: Mapping[str, object]) -> None:
        """What comes from now on is of this attempt."""
        self._write_rest()
        self._fields = fields
        self._lines = 0
        self._tail.clear()

    @property
    def tail(self) -> str:
        """The last of what the attempt has printed."""
        return self._tail.decode(errors="replace").strip()

    def close(self) -> None:
        """Read no more."""
        if self.transport is not None:
            self.transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It can be read."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Log the lines that are complete."""
        self._tail += data
        del self._tail[:-TAIL_BYTES]
        self._rest += data
        *lines, rest = self._rest.split(b"\n")
        # A line that never ends is cut, so that it takes no memory.
        self._rest = rest if len(rest) <= LINE_CHARACTERS else bytearray(rest[:LINE_CHARACTERS])
        for line in lines:
            self._write(line)

    def connection_lost(self, error: Exception | None) -> None:
        """Nobody can write to it any more."""
        self._write_rest()
        self.closed.set()

    def _write_rest(self) -> None:
        if self._rest:
            self._write(self._rest)
            self._rest = bytearray()

    def _write(self, line: bytes | bytearray) -> None:
        self._lines += 1
        if self._lines > LINES + 1:
            return
        text = line[:LINE_CHARACTERS].decode(errors="replace").rstrip()
        if self._lines > LINES:
            text = f"(it prints more than {LINES:,} lines; the rest is left out)"
        if text:
            records.write(log, logging.INFO, text, {**self._fields, "stream": self._name})
