"""
A load generator in a process of its own: `python -m fencepost.cli.bench.load_child`.

Client, API and PostgreSQL share a machine, so this does as little as it can: request
bytes made beforehand, bare protocols, and of an answer only its status and its length.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from fencepost.cli.bench.processes import answering
from fencepost.cli.worker_thread import new_event_loop
from fencepost.errors import FencepostError

_END_OF_HEAD = b"\r\n\r\n"
_LENGTH = b"content-length: "
_CREATED = b"HTTP/1.1 201 "


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """So many requests, over so many connections, each with one request under way at a time."""

    port: int
    connections: int
    requests: int
    body: bytes


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """How it went."""

    seconds: float
    """From the first request until the last answer."""
    delays_ns: list[int]
    """From writing each request until its answer is complete."""
    refused: int
    """Answers other than 201."""


class _Round:
    """One load, while it lasts."""

    def __init__(self, load: Load) -> None:
        self.request = _request(load)
        self.left_to_send = load.requests
        self.left_to_come = load.requests
        self.delays_ns: list[int] = []
        self.refused = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answered(self, status_line: bytes, delay_ns: int) -> None:
        """One more answer is complete."""
        self.delays_ns.append(delay_ns)
        if not status_line.startswith(_CREATED):
            self.refused += 1
        self.left_to_come -= 1
        if not self.left_to_come and not self.done.done():
            self.done.set_result(None)


class _Connection(asyncio.Protocol):
    """One connection: a request, its answer, the next."""

    def __init__(self, load: _Round) -> None:
        self._round = load
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._needed = 0
        self._sent_at = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def send(self) -> None:
        """Send one more, if there is one."""
        if self._round.left_to_send and self._transport is not None:
            self._round.left_to_send -= 1
            self._sent_at = time.perf_counter_ns()
            self._transport.write(self._round.request)

    def data_received(self, data: bytes) -> None:
        self._received = data = self._received + data if self._received else data
        if not self._needed:
            end = data.find(_END_OF_HEAD)
            if end < 0:
                return
            place = data.find(_LENGTH, 0, end) + len(_LENGTH)
            self._needed = end + len(_END_OF_HEAD) + int(data[place : data.index(b"\r", place)])
        if len(data) >= self._needed:
            self._received, self._needed = b"", 0
            self._round.answered(data, time.perf_counter_ns() - self._sent_at)
            self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._round.done.done():
            self._round.done.set_exception(FencepostError(f"the API closed a connection: {exc}"))


def main() -> None:
    """Run the child."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(answering(Load, _run))


async def _run(load: Load) -> Answered:
    this_round = _Round(load)
    loop = asyncio.get_running_loop()
    connections = [
        await loop.create_connection(lambda: _Connection(this_round), "127.0.0.1", load.port)
        for _ in range(load.connections)
    ]
    started_at = time.perf_counter()
    for _, protocol in connections:
        protocol.send()
    await this_round.done
    seconds = time.perf_counter() - started_at
    for transport, _ in connections:
        transport.close()
    return Answered(seconds=seconds, delays_ns=this_round.delays_ns, refused=this_round.refused)


def _request(load: Load) -> bytes:
    return (
        b"POST /jobs HTTP/1.1\r\n"
        b"Host: 127.0.0.1:%d\r\n"
        b"User-Agent: fencepost-bench\r\n"
        b"Accept: */*\r\n"
        b"Content-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b"
    ) % (load.port, len(load.body), load.body)


if __name__ == "__main__":
    main()
