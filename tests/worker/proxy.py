"""A network between a worker and its database that can be cut, or go silent, at will."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

from tests.closing import close_server


class Proxy:
    """
    Passes bytes between a local port and a PostgreSQL. Runs in a thread of its own.

    `cut` closes what is open and refuses what comes; `swallow` keeps everything open and
    passes nothing on, as a firewall does that is stuck; `forget` does so to what is open, and lets new
    ones through; `restore` undoes the first two.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        self._socket_path = f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}" if "host" in query else None
        self._target = (parts.hostname or "", parts.port or 5432)
        self._refuses = False
        self._passes = asyncio.Event()
        self._passes.set()
        self._links: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._finish: asyncio.Event | None = None
        self.port = 0
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._main(),), daemon=True)
        self._thread.start()
        assert self._started.wait(5)
        user = parts.username or ""
        password = f":{parts.password}" if parts.password else ""
        self.url = urlunsplit(parts._replace(netloc=f"{user}{password}@127.0.0.1:{self.port}", query=""))

    def cut(self) -> None:
        self._call(self._cut)

    def swallow(self) -> None:
        self._call(self._passes.clear)

    def forget(self) -> None:
        self._call(self._forget)

    def restore(self) -> None:
        """Let new connections through; those that went silent are gone for good."""
        self._call(self._restore)

    def close(self) -> None:
        def finish() -> None:
            assert self._finish is not None
            self._finish.set()

        self._loop.call_soon_threadsafe(finish)
        self._thread.join(5)
        assert not self._thread.is_alive()
        self._loop.close()

    def _call(self, action: Callable[[], object]) -> None:
        done = threading.Event()

        def act() -> None:
            action()
            done.set()

        self._loop.call_soon_threadsafe(act)
        assert done.wait(5)

    def _cut(self) -> None:
        self._refuses = True
        for link in self._links:
            link.cancel()

    def _forget(self) -> None:
        self._passes.clear()
        self._passes = asyncio.Event()
        self._passes.set()

    def _restore(self) -> None:
        for link in self._links:
            link.cancel()
        self._refuses = False
        self._passes.set()

    async def _main(self) -> None:
        self._finish = asyncio.Event()
        server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._finish.wait()
        await close_server(server)
        self._cut()
        while self._links:
            await asyncio.wait(list(self._links))
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = self._loop.create_task(self._serve(reader, writer))

        def ended(link: asyncio.Task[None]) -> None:
            # Here rather than in the task: one that is cancelled before it has begun closes nothing.
            self._links.discard(link)
            _abort(writer)

        self._links.add(link)
        link.add_done_callback(ended)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: asyncio.StreamWriter | None = None
        passes = self._passes
        try:
            if self._refuses:
                return
            await passes.wait()
            if self._socket_path:
                other, upstream = await asyncio.open_unix_connection(self._socket_path)
            else:
                other, upstream = await asyncio.open_connection(*self._target)
            both = [self._pass(reader, upstream, passes), self._pass(other, writer, passes)]
            tasks = [asyncio.ensure_future(one) for one in both]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        except (asyncio.CancelledError, OSError):
            return
        finally:
            if upstream is not None:
                _abort(upstream)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await passes.wait()
                writer.write(data)
                await writer.drain()


def _abort(writer: asyncio.StreamWriter) -> None:
    transport: Any = writer.transport
    transport.abort()
