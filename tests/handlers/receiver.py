"""A receiver of webhooks on loopback that misbehaves as told, and names that lead to it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from uuid import UUID

from fencepost.domain.context import Context
from fencepost.handlers import delivery
from tests.closing import close_server

Respond = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Request:
    """One request as it arrived."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        values = [value for key, value in self.headers if key.lower() == name.lower()]
        assert len(values) < 2, f"{name} was sent twice"
        return values[0] if values else None


@dataclass
class Receiver:
    """What a server saw, and where it listens."""

    port: int = 0
    connections: int = 0
    requests: list[Request] = field(default_factory=list)


async def _read_request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *rest = head.rstrip("\r\n").split("\r\n")
    headers = [(name, value.strip()) for name, _, value in (entry.partition(":") for entry in rest)]
    length = int(next(value for name, value in headers if name.lower() == "content-length"))
    return Request(line, headers, await reader.readexactly(length))


@asynccontextmanager
async def receiving(respond: Respond, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """Serve until left: read a request, let *respond* write what it likes, and again."""
    receiver = Receiver()
    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        receiver.connections += 1
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
                while not writer.is_closing():
                    receiver.requests.append(await _read_request(reader))
                    await respond(writer)
        finally:
            writer.close()
            with suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # One that is cancelled before it has begun closes nothing.
        writers.append(writer)
        tasks.add(asyncio.create_task(converse(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        await delivery.close()
        await close_server(server)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.close()
        await server.wait_closed()
        await asyncio.sleep(0)
        failures = [r for r in results if isinstance(r, Exception)]
        assert not failures, failures


def answering(status: str, body: bytes = b"", *headers: str) -> Respond:
    """Answer properly, and keep the connection."""

    async def respond(writer: asyncio.StreamWriter) -> None:
        head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers])
        writer.write(head.encode("latin-1") + b"\r\n\r\n" + body)
        await writer.drain()

    return respond


def writing(*parts: bytes, then_hang: bool = False) -> Respond:
    """Write raw bytes, then hang until cancelled, or close."""

    async def respond(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if then_hang:
            await asyncio.Event().wait()
        writer.close()

    return respond


@dataclass
class Names:
    """A resolver of our own: gives its answers in turn, the last one for ever."""

    answers: list[list[str]] = field(default_factory=lambda: [["127.0.0.1"]])
    asked: list[str] = field(default_factory=list)

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        return self.answers[min(len(self.asked), len(self.answers)) - 1]


def a_context(*, timeout_seconds: float = 10.0, attempt: int = 3) -> Context:
    return Context(
        id=UUID("0190b8a0-0000-7000-8000-000000000001"),
        type="webhook",
        queue="default",
        attempt=attempt,
        max_attempts=5,
        token=7,
        timeout_seconds=timeout_seconds,
    )
