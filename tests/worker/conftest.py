"""Workers against a test's own database; none of them may leave anything behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress

import asyncpg
import pytest

from fencepost.store.database import Database
from fencepost.store.jobs import Jobs
from fencepost.store.queues import Queues

from .proxy import Proxy
from .support import Bench, wait_until


@pytest.fixture
async def bench(database_url: str, database: Database, jobs: Jobs, queues: Queues) -> AsyncIterator[Bench]:
    """Starts workers; at the end drains them, and looks for tasks, threads and connections they left."""
    connection = await asyncpg.connect(database_url, server_settings={"application_name": "bench"})
    bench = Bench(database_url, database, jobs, queues, connection)
    tasks_before = asyncio.all_tasks()
    threads_before = set(threading.enumerate())
    try:
        yield bench
    finally:
        await asyncio.gather(*(worker.drain(0) for worker in bench.workers))
        try:
            await _check_nothing_left(bench, database, tasks_before, threads_before)
        finally:
            await connection.close()


async def _check_nothing_left(
    bench: Bench,
    database: Database,
    tasks_before: set[asyncio.Task[object]],
    threads_before: set[threading.Thread],
) -> None:
    def tasks() -> set[asyncio.Task[object]]:
        return {
            task
            for task in asyncio.all_tasks() - tasks_before
            # The producer's, and the one in which anyio runs this very fixture.
            if task.get_name() != "fencepost-hints" and "TestRunner" not in repr(task.get_coro())
        }

    with suppress(AssertionError):
        await wait_until(lambda: not tasks(), 2)
    assert not tasks()
    with suppress(AssertionError):
        await wait_until(lambda: set(threading.enumerate()) <= threads_before, 2, "threads to end")
    assert set(threading.enumerate()) <= threads_before

    async def connections_closed() -> bool:
        ours = await bench.value(
            "select count(*) from pg_stat_activity "
            "where datname = current_database() and application_name = 'fencepost'"
        )
        # What the test's own pool has open; it closes after this.
        return bool(ours <= database.connection_count)

    await wait_until(connections_closed, 3, "the workers' connections to close")


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    """A way to the test's database that can be cut."""
    proxy = Proxy(database_url)
    yield proxy
    proxy.close()


@pytest.fixture
def unblock() -> Iterator[Callable[[threading.Event], threading.Event]]:
    """Registers events that stuck handlers wait for; they are set at the end, so that no thread stays."""
    events: list[threading.Event] = []

    def register(event: threading.Event) -> threading.Event:
        events.append(event)
        return event

    yield register
    for event in events:
        event.set()
