"""
LISTEN and NOTIFY: a queue of notices that is full, and a session that listens on a server which no longer takes writes.

The queue is the server's own, 8 GB by default; here it is made as small as it can be, so that it is really full: some
session listens, has a transaction open, and nothing is removed while that lasts.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import UUID

import asyncpg
import msgspec
import pytest

from fencepost import Fencepost, UniqueBy
from fencepost.domain.job import Status
from fencepost.embedded import EmbeddedPostgres
from fencepost.errors import DatabaseUnavailable
from fencepost.store.bulk import Selection
from fencepost.store.database import Database
from tests.worker.support import SETTINGS, records, wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def cramped_url() -> Iterator[str]:
    """A server with room for half a megabyte of notices."""
    options = {"fsync": "off", "max_notify_queue_pages": "64"}
    with tempfile.TemporaryDirectory(prefix="fencepost-tests-") as folder:
        Path(folder).chmod(0o711)
        with EmbeddedPostgres(Path(folder) / "data", options=options) as server:
            yield server.dsn


@pytest.fixture
async def full(cramped_url: str) -> AsyncIterator[str]:
    """That server, full for as long as the test lasts."""
    app = Fencepost(cramped_url)
    await app.open()
    await app.close()
    app._producer.stop()
    deaf, loud = await asyncpg.connect(cramped_url), await asyncpg.connect(cramped_url)
    await deaf.add_listener("anything", lambda *_: None)
    await deaf.execute("begin")
    await deaf.execute("select 1")
    some = "select pg_notify('anything', repeat('y', 7000) || g) from generate_series(1, 10) g"
    with pytest.raises(asyncpg.ProgramLimitExceededError, match="NOTIFY"):
        await loud.execute(f"do $$ begin for n in 1 .. 100 loop perform * from ({some}) s; commit; end loop; end $$")
    await loud.close()
    yield cramped_url
    await deaf.close()


@pytest.mark.slow
async def test_jobs_are_taken_and_run_while_no_notice_can_be_sent(full: str, caplog: pytest.LogCaptureFixture) -> None:
    """By every door that may leave the hint out: the jobs are found by polling."""
    # Whoever is to be stopped learns of it when its lease is renewed.
    settings = msgspec.structs.replace(SETTINGS, poll_interval_seconds=0.1, lease_seconds=3.0, lease_extension=True)
    app = Fencepost(full, settings=settings)
    ran: list[int] = []
    held = asyncio.Event()

    @app.job
    async def note(number: int) -> int:
        ran.append(number)
        return number

    @app.job
    async def hold() -> None:
        held.set()
        await asyncio.Event().wait()

    @app.job(max_attempts=1)
    async def fail() -> None:
        raise ValueError("no")

    handles = [await note.enqueue(0)]
    handles += await app.enqueue_many([note.call(1), note.call(2)])
    handles.append(await note.options(idempotency_key="k").enqueue(3))
    handles.append(await note.options(unique=UniqueBy("number")).enqueue(4))
    handles += await asyncio.gather(*(note.enqueue(number) for number in range(5, 30)))
    handles.append(await asyncio.to_thread(note.enqueue_sync, 30))
    running, dead = await hold.enqueue(), await fail.enqueue()
    async with app.worker():
        results = await asyncio.gather(*(handle.result(timeout=20) for handle in handles))
        assert results == list(range(31))
        assert sorted(ran) == list(range(31))
        await held.wait()
        clients = await app._producer.client()
        assert (await clients.queues.pause("default")).paused_at is not None
        assert (await clients.queues.resume("default")).paused_at is None
        assert await running.cancel() is Status.PROCESSING
        await wait_until(lambda: _has(app, dead.id, Status.DEAD_LETTER), 10, "a dead letter")
        await dead.retry()
        await wait_until(lambda: _has(app, dead.id, Status.DEAD_LETTER), 10, "another dead letter")
        assert (await app.retry_all(everything=True)).changed == 1
        held.clear()
        second = await hold.enqueue()
        await held.wait()
        assert (await clients.bulk.cancel(Selection(ids=(second.id,)))).requested == 1
    assert records(caplog, "no hint was sent; polling finds what it told")
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]
    await app.close()
    app._producer.stop()


async def _has(app: Fencepost, job_id: UUID, status: Status) -> bool:
    return (await app.get(job_id)).status is status


async def test_a_full_queue_is_told_to_whoever_commits_by_himself(full: str) -> None:
    """In a transaction of the caller's own nothing can be left out afterwards; PostgreSQL's words reach the caller."""
    app = Fencepost(full)
    note = app.declare("note")
    connection = await asyncpg.connect(full)
    with pytest.raises(asyncpg.ProgramLimitExceededError, match="too many notifications in the NOTIFY queue"):
        async with connection.transaction():
            await note.within(connection).enqueue({})
    with pytest.raises(asyncpg.ProgramLimitExceededError, match="too many notifications in the NOTIFY queue"):
        await connection.execute("select fencepost.enqueue('note')")
    # What isn't due soon wakes nobody, and so it can be stored.
    await connection.execute("select fencepost.enqueue('note', delay => '1 hour')")
    await connection.close()
    app._producer.stop()


async def test_a_statement_that_only_notifies_says_what_is_wrong(full: str) -> None:
    database = Database(full)
    await database.open()
    with pytest.raises(DatabaseUnavailable, match="queue of notifications is full"):
        await database.fetch("notify", channel=database.channel, hint="due 1")
    await database.close()
