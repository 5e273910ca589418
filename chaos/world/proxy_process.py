"""
The proxy's own process: passes bytes between named ports and one server, or does not.

    python proxy_process.py

Takes one JSON command a line on standard input and answers each with one line. Ends when
that input does. See `proxy` for what the commands mean.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
from dataclasses import dataclass, field
from typing import Any

import uvloop

HIGH_WATER = 1 << 20
"""How many bytes may wait for a slow reader before the other side is no longer read from."""
BACKLOG = 512


@dataclass
class Rules:
    """What happens to the bytes of one listener. Directions: `requests` to the server, `answers` from it."""

    swallowed: set[str] = field(default_factory=set)
    """Directions whose bytes are taken and kept until the connection is cut."""
    lost: set[str] = field(default_factory=set)
    """Directions whose bytes are taken and thrown away."""
    delay: float = 0.0
    """Seconds each way."""
    rate: float = 0.0
    """Bytes a second each way; 0 for no limit."""
    cut_after: dict[str, int] = field(default_factory=dict)
    """How many more bytes of a direction pass on each connection before it is cut."""


class Listener:
    """A port, its rules and its connections."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.hub = hub
        self.name = name
        self.target: str | tuple[str, int] | None = None
        """Where it leads, if not to where all do."""
        self.rules = Rules()
        self.links: set[Link] = set()
        self.accepted = 0
        self.passed = {"requests": 0, "answers": 0}
        self._listens = False
        # Found out first, then asked for by number: the kernel keeps only such a port while nobody listens on it.
        with socket.create_server(("127.0.0.1", 0)) as finder:
            self.port: int = finder.getsockname()[1]
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(("127.0.0.1", self.port))
        self.socket.setblocking(False)
        self.open()

    def open(self) -> None:
        """Take connections."""
        if not self._listens:
            self._listens = True
            self.socket.listen(BACKLOG)
            self.hub.loop.add_reader(self.socket, self._accept)

    def shut(self) -> None:
        """Refuse connections: whoever tries gets ECONNREFUSED. The port stays ours."""
        if self._listens:
            self._listens = False
            self.hub.loop.remove_reader(self.socket)
            self.socket.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """End every connection with a reset."""
        for link in list(self.links):
            link.end()

    def _accept(self) -> None:
        try:
            accepted, _ = self.socket.accept()
        except OSError:
            return
        self.accepted += 1
        accepted.setblocking(False)
        link = Link(self)
        link.task = self.hub.loop.create_task(link.join(accepted))


class Link:
    """One client's connection and its continuation to the server."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.countdown = dict(listener.rules.cut_after)
        self.client = End(self, "requests")
        self.server = End(self, "answers")
        self.client.other, self.server.other = self.server, self.client
        self.task: asyncio.Task[None] | None = None
        self.ended = False
        self.forgotten = False
        """Nothing passes on it any more, neither bytes nor the news of its end."""
        listener.links.add(self)

    async def join(self, accepted: socket.socket) -> None:
        hub = self.listener.hub
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await hub.loop.connect_accepted_socket(lambda: self.client, accepted)
        try:
            target = self.listener.target or hub.target
            if isinstance(target, str):
                await hub.loop.create_unix_connection(lambda: self.server, target)
            else:
                await hub.loop.create_connection(lambda: self.server, *target)
        except OSError:
            self.end()

    def end(self) -> None:
        """Reset both sides, whatever is still under way."""
        if self.ended:
            return
        self.ended = True
        self.listener.links.discard(self)
        for end in (self.client, self.server):
            if end.transport is not None:
                end.reset(end.transport)


class End(asyncio.Protocol):
    """One side of a link; what it receives goes to the *other* one."""

    other: End

    def __init__(self, link: Link, direction: str) -> None:
        self.link = link
        self.direction = direction
        self.transport: Any = None
        self.early: list[bytes] = []
        """What was to be written before there was a connection."""
        self.free_at = 0.0
        """When the line has passed on everything that was received so far."""
        self.waiting = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        if self.link.ended:
            transport.abort()
            return
        transport.set_write_buffer_limits(high=HIGH_WATER)
        for data in self.early:
            transport.write(data)
        self.early.clear()

    def connection_lost(self, error: Exception | None) -> None:
        if self.link.ended or self._is_silent():
            return
        # Bytes that are delayed arrive before the news.
        self.link.listener.hub.loop.call_later(self._lag(), self._end_politely)

    def _is_silent(self) -> bool:
        return self.link.forgotten or self.direction in self.link.listener.rules.swallowed

    def _end_politely(self) -> None:
        link = self.link
        link.ended = True
        link.listener.links.discard(link)
        for end in (link.client, link.server):
            if end.transport is not None:
                end.transport.close()

    def reset(self, transport: Any) -> None:
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family != socket.AF_UNIX:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    def pause_writing(self) -> None:
        self.other.read(on=False)

    def resume_writing(self) -> None:
        self.other.read(on=True)

    def read(self, *, on: bool) -> None:
        """Take more bytes, or leave them where they are until whoever gets them has caught up."""
        if self.transport is None or self.transport.is_closing():
            return
        if on:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        rules = self.link.listener.rules
        if self.link.ended or self._is_silent() or self.direction in rules.lost:
            return
        left = self.link.countdown.get(self.direction)
        if left is not None:
            self.link.countdown[self.direction] = left - len(data)
            if left <= len(data):
                self.deliver(data[: max(0, left)])
                self.link.listener.hub.loop.call_later(0.01, self.link.end)
                return
        if rules.delay or rules.rate or self.waiting:
            self._deliver_later(data, rules)
        else:
            self.deliver(data)

    def _deliver_later(self, data: bytes, rules: Rules) -> None:
        loop = self.link.listener.hub.loop
        begin = max(loop.time(), self.free_at)
        self.free_at = begin + (len(data) / rules.rate if rules.rate else 0.0)
        self.waiting += len(data)
        loop.call_at(self.free_at + rules.delay, self._deliver_now, data)
        if self.waiting > HIGH_WATER:
            self.read(on=False)

    def _deliver_now(self, data: bytes) -> None:
        self.waiting -= len(data)
        if self.waiting <= HIGH_WATER:
            self.read(on=True)
        self.deliver(data)

    def _lag(self) -> float:
        now: float = self.link.listener.hub.loop.time()
        return max(0.0, self.free_at - now) + self.link.listener.rules.delay + 0.001

    def deliver(self, data: bytes) -> None:
        """Hand *data* on, unless it was overtaken by the end or by silence."""
        if self.link.ended or self._is_silent() or self.direction in self.link.listener.rules.lost:
            return
        self.link.listener.passed[self.direction] += len(data)
        if self.other.transport is None:
            self.other.early.append(data)
        elif not self.other.transport.is_closing():
            self.other.transport.write(data)


class Hub:
    """All listeners, and where they lead."""

    def __init__(self) -> None:
        self.loop: Any = asyncio.get_running_loop()
        self.target: str | tuple[str, int] = ""
        self.listeners: dict[str, Listener] = {}

    def obey(self, command: dict[str, Any]) -> object:
        """Carry out one command of `proxy.Proxy`; returns what it answers."""
        what = command["do"]
        if what == "listen":
            name = command["name"]
            if name not in self.listeners:
                self.listeners[name] = Listener(self, name)
                self.listeners[name].target = _place(command["target"])
            return self.listeners[name].port
        if what == "target":
            self.target = _place(command["target"]) or ""
            self._each([name for name, one in self.listeners.items() if one.target is None], "cut", {})
            return None
        if what == "figures":
            return {one.name: [len(one.links), one.accepted, *one.passed.values()] for one in self.listeners.values()}
        self._each(command["names"] or list(self.listeners), what, command)
        return None

    def _each(self, names: list[str], what: str, command: dict[str, Any]) -> None:
        for name in names:
            listener = self.listeners[name]
            if what == "cut":
                listener.cut()
            elif what == "refuse":
                listener.shut()
                listener.cut()
            elif what == "restore":
                _restore(listener)
            elif what == "forget":
                for link in listener.links:
                    link.forgotten = True
            else:
                _change(listener, command)


def _place(told: Any) -> str | tuple[str, int] | None:
    return (told[0], told[1]) if isinstance(told, list) else told


def _restore(listener: Listener) -> None:
    damaged = listener.rules.swallowed or listener.rules.lost or listener.rules.cut_after
    listener.rules = Rules()
    if damaged:  # what was withheld is missing from the stream
        listener.cut()
    listener.open()


def _change(listener: Listener, command: dict[str, Any]) -> None:
    rules = listener.rules
    directions = set(command.get("directions", ()))
    if command["do"] == "swallow":
        rules.swallowed |= directions
    elif command["do"] == "lose":
        rules.lost |= directions
    elif command["do"] == "delay":
        rules.delay = command["seconds"]
    elif command["do"] == "throttle":
        rules.rate = command["rate"]
    elif command["do"] == "cut_after":
        for direction in directions:
            rules.cut_after[direction] = command["bytes"]
            for link in listener.links:
                link.countdown[direction] = command["bytes"]
    else:
        raise ValueError(f"unknown command {command['do']}")


async def main() -> None:
    """Obey until standard input ends."""
    hub = Hub()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        try:
            answer = {"answer": hub.obey(json.loads(line))}
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(main())
