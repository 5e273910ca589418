"""
The connections of producers: one client for each event loop.

A client is made when its loop first needs it, and closed with `Fencepost.close`, or
else when its loop ends in good order, as `asyncio.run` sees to. What is left of a loop
that was just closed goes when the next loop needs a client.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import suppress

from fencepost.client.address import Address
from fencepost.client.forking import forget_in_children
from fencepost.client.orphans import cut_off
from fencepost.client.watching import Watcher
from fencepost.errors import PrivilegeMissing
from fencepost.settings import Settings
from fencepost.store.bulk import Bulk
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from fencepost.store.job_types import JobTypes
from fencepost.store.jobs import Jobs
from fencepost.store.listing import Listing
from fencepost.store.migrate import prepare
from fencepost.store.queues import Queues
from fencepost.telemetry.unconfigured import show_warnings

Wake = Callable[[Iterable[int]], None]


class Client:
    """What a producer has open in one event loop."""

    def __init__(self, dsn: str, settings: Settings, *, wake: Wake) -> None:
        self.database = Database.of(settings, dsn, connections=settings.database_connections)
        self.hints = Hints(self.database, local=wake)
        self.queues = Queues(self.database, self.hints)
        self.jobs = Jobs(self.database, self.queues, self.hints)
        self.listing = Listing(self.database, self.queues)
        self.bulk = Bulk(self.database, self.queues, self.hints)
        self.types = JobTypes(self.database)
        self.watcher = Watcher(self.database)

    async def open(self, *, prepared_days: int | None = None) -> None:
        """Connect; with *prepared_days*, bring the schema up to date first."""
        await self.database.open()
        if prepared_days is not None:
            await self.prepare(prepared_days)

    async def prepare(self, partition_days: int) -> None:
        """Bring the schema up to date. A role that may only enqueue, or read, leaves partitions to the workers."""
        with suppress(PrivilegeMissing):
            await prepare(self.database, partition_days=partition_days)

    async def close(self) -> None:
        """Send what is owed, and close every connection. Safe to call twice."""
        await self.watcher.close()
        if self.database.is_open:
            await self.hints.close()
        await self.database.close()


class Clients:
    """The clients of one app."""

    def __init__(self, address: Address, settings: Callable[[], Settings], *, wake: Wake) -> None:
        self._address = address
        self._settings = settings
        self._wake = wake
        self.forget()
        forget_in_children(self)
        # Whatever may warn of something, a worker too, begins with a client.
        show_warnings()

    def forget(self) -> None:
        """Have no connections: a forked child has no part in its parent's."""
        self._lock = threading.Lock()
        self._open: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Opening] = weakref.WeakKeyDictionary()

    @property
    def are_open(self) -> bool:
        """Whether any loop has one."""
        with self._lock:
            return any(not loop.is_closed() for loop in self._open)

    async def get(self, *, prepared: bool = False) -> Client:
        """The client of the running loop; with *prepared*, the schema is brought up to date first."""
        loop = asyncio.get_running_loop()
        with self._lock:
            opening = self._open.get(loop)
            is_new = opening is None
            if opening is None:
                opening = self._open[loop] = _Opening()
        if is_new:
            self._drop_orphans()
        if opening.client is not None and not prepared:
            return opening.client
        async with opening.turn:
            if opening.client is None:
                opening.client = await self._make()
                opening.closer = _close_with_loop(opening.client)
                await anext(opening.closer)
            if prepared:
                await opening.client.prepare(self._settings().partition_days)
            return opening.client

    def _drop_orphans(self) -> None:
        # A client leads to its loop by way of its connections, so these entries don't go by themselves.
        with self._lock:
            closed = [loop for loop in self._open if loop.is_closed()]
            for loop in closed:
                del self._open[loop]
        for loop in closed:
            cut_off(loop)

    async def _make(self) -> Client:
        settings = self._settings()
        dsn = await self._address.find()
        client = Client(dsn, settings, wake=self._wake)
        try:
            await client.open(prepared_days=settings.partition_days if self._address.is_embedded else None)
        except BaseException:
            await client.close()
            raise
        return client

    async def close(self) -> None:
        """Close the client of the running loop, if it has one."""
        with self._lock:
            opening = self._open.pop(asyncio.get_running_loop(), None)
        if opening is not None and opening.closer is not None:
            await opening.closer.aclose()


class _Opening:
    """A loop's client, or the turn of those who want it to be made."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.client: Client | None = None
        self.closer: AsyncGenerator[None, None] | None = None


async def _close_with_loop(client: Client) -> AsyncGenerator[None, None]:
    """A generator that is never finished: a loop that ends in good order closes those, and so the client."""
    try:
        yield
    finally:
        await client.close()
