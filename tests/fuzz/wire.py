"""Bare connections, and a reader of answers that forgives nothing."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Self

import msgspec

PATIENCE_SECONDS = 30.0
"""Longest wait for an answer that must come, on a machine with other things to do."""
SILENCE_SECONDS = 0.15
"""How long answers are waited for where it can't be told whether there will be one."""

_STATUS = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [ -~]*")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ([\t -~\x80-\xff]*)")


class Malformed(Exception):
    """What came isn't HTTP/1.1 as this API speaks it."""


class Answer(msgspec.Struct, frozen=True):
    """One answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def closes(self) -> bool:
        """Whether it says that the connection ends with it."""
        return self.headers.get("connection") == "close"


class Line:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, host: str, port: int) -> Self:
        """Connect."""
        return cls(*await asyncio.open_connection(host, port, limit=1 << 20))

    async def send(self, data: bytes, *, pauses: int = 0) -> None:
        """Send bytes, in some pieces. Nothing is raised when the other side has closed: its answer may be there."""
        step = max(1, -(-len(data) // (pauses + 1)))
        with contextlib.suppress(ConnectionError):
            for start in range(0, len(data), step):
                self._writer.write(data[start : start + step])
                if pauses:
                    await asyncio.sleep(0.005)
            await self._writer.drain()

    async def answer(self, *, head: bool = False) -> Answer:
        """Read one answer. Raises Malformed, TimeoutError, and EOFError where the connection ends instead."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                answer = await self._read(head)
                if answer.status >= 200:
                    return answer

    async def answers(self, *, head: bool = False) -> list[Answer]:
        """Read what comes until the other side closes or has nothing more to say. Raises Malformed."""
        found: list[Answer] = []
        with contextlib.suppress(TimeoutError, EOFError, ConnectionError):
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    found.append(await self._read(head))
        return [answer for answer in found if answer.status >= 200]

    async def close(self) -> None:
        """Let go of it."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """Be gone."""
        self._writer.transport.abort()

    async def _read(self, head: bool) -> Answer:
        try:
            text = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise Malformed(f"the connection ended in {error.partial[:200]!r}") from None
            raise EOFError from None
        except asyncio.LimitOverrunError:
            raise Malformed("a head of more than a megabyte") from None
        first, *lines = text[:-4].split(b"\r\n")
        status = _STATUS.fullmatch(first)
        if status is None:
            raise Malformed(f"a status line {first[:200]!r}")
        headers: dict[str, str] = {}
        for line in lines:
            field = _FIELD.fullmatch(line)
            if field is None:
                raise Malformed(f"a header line {line[:200]!r}")
            name = field[1].decode().lower()
            if name in headers and name != "set-cookie":
                raise Malformed(f"the header {name} twice")
            headers[name] = field[2].decode("latin-1")
        return await self._with_body(int(status[1]), headers, head)

    async def _with_body(self, status: int, headers: dict[str, str], head: bool) -> Answer:
        length = headers.get("content-length")
        if status < 200 or status == 204:
            if length not in (None, "0"):
                raise Malformed(f"a {status} with a Content-Length")
            return Answer(status, headers, b"")
        if length is None or not length.isdigit():
            raise Malformed(f"a {status} with the Content-Length {length!r}")
        try:
            body = b"" if head else await self._reader.readexactly(int(length))
        except asyncio.IncompleteReadError as error:
            raise Malformed(f"{len(error.partial)} of {length} bytes of a body") from None
        return Answer(status, headers, body)
