"""Apps against a test's own database; none of them may leave anything behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import msgspec
import pytest

from fencepost import Fencepost, Settings
from tests.worker.support import SETTINGS, wait_until


@pytest.fixture
def settings() -> Settings:
    """Nothing in these tests may lean on polling: an idle worker looks every 30 seconds."""
    return msgspec.structs.replace(SETTINGS, shutdown_timeout_seconds=5.0)


@pytest.fixture
async def app(database_url: str, settings: Settings) -> AsyncIterator[Fencepost]:
    """An app on the test's database; closed at the end, with a look at what it left."""
    tasks_before, threads_before = asyncio.all_tasks(), set(threading.enumerate())
    app = Fencepost(database_url, settings=settings)
    yield app
    await app.close()
    app._producer.stop()

    def threads() -> list[threading.Thread]:
        # The test's own, of asyncio.to_thread, stay for the next.
        found = set(threading.enumerate()) - threads_before
        return [thread for thread in found if not thread.name.startswith("asyncio_")]

    await wait_until(lambda: not threads(), 3, "threads to end")

    def tasks() -> list[asyncio.Task[object]]:
        return [task for task in asyncio.all_tasks() - tasks_before if "TestRunner" not in repr(task.get_coro())]

    await wait_until(lambda: not tasks(), 3, "tasks to end")
