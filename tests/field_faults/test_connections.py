"""
Callers that go away, pools that are busy, servers that restart. B41, B43.

More of it is in tests/store/test_database.py, tests/worker/test_worker_outages.py and tests/service/test_service.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from fencepost import DatabaseUnavailable, Fencepost
from fencepost.api.app import Services
from fencepost.embedded import EmbeddedPostgres
from fencepost.settings import Settings
from fencepost.store import database as database_module
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.queues import Queues
from tests.api.support import client_of, serving, with_settings
from tests.conftest import QUICK
from tests.patience import limit
from tests.store.support import Connection, job
from tests.worker.support import wait_until

pytestmark = pytest.mark.anyio


async def settled(sql: Connection) -> None:
    """Wait until none of our sessions is in a transaction, and find none that stays in one."""

    async def idle() -> bool:
        await sql.execute("select pg_stat_clear_snapshot()")
        states = await sql.fetch(
            "select state from pg_stat_activity where datname = current_database() and application_name = 'fencepost'"
        )
        return {row["state"] for row in states} <= {"idle"}

    await wait_until(idle, 10, "our sessions to be idle")


@pytest.mark.parametrize("lines", [0, 2], ids=["pool", "kept connections"])
async def test_five_hundred_callers_who_give_up_cost_no_connection(
    database_url: str, sql: Connection, lines: int
) -> None:
    database = Database(database_url, connections=3 + lines, lines=lines)
    await database.open()
    hints = Hints(database)
    jobs = Jobs(database, Queues(database, hints), hints)
    outcomes: Counter[str] = Counter()

    async def give_up(number: int) -> None:
        try:
            async with asyncio.timeout(random.uniform(0, 0.02)):
                await jobs.enqueue([job()] if number % 3 else [job(), job()])
        except TimeoutError:
            outcomes["gave up"] += 1
        except DatabaseUnavailable:
            # Connections that were given up take a moment to be replaced.
            outcomes["busy"] += 1
        else:
            outcomes["stored"] += 1

    await asyncio.gather(*(give_up(number) for number in range(500)))
    assert outcomes["gave up"]
    # Three at once, so three are there; and no half-made job is.
    async with database.transaction(), database.transaction(), database.transaction():
        pass
    for _ in range(10):
        await asyncio.gather(*(jobs.enqueue([job()]) for _ in range(10)))
    await settled(sql)
    counts = await jobs.audit()
    assert counts["jobs"] == counts["pending"] >= outcomes["stored"] + 100
    await hints.close()
    await database.close()


async def test_clients_that_hang_up_in_the_middle_leave_whole_jobs_or_none(
    services: Services, jobs: Jobs, sql: Connection
) -> None:
    body = b'{"type":"echo","payload":{"text":"' + b"x" * 2_000 + b'"}}'
    head = b"POST /jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    async with serving(with_settings(services, http_port=0)) as served:

        async def hang_up(number: int) -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            whole = head % len(body) + body
            writer.write(whole if number % 2 else whole[: random.randrange(1, len(whole))])
            await writer.drain()
            await asyncio.sleep(random.uniform(0, 0.02))
            writer.transport.abort()

        await asyncio.gather(*(hang_up(number) for number in range(200)))
        async with httpx2.AsyncClient(base_url=served.url, timeout=20) as client:
            answers = await asyncio.gather(*(client.post("/jobs", json={"type": "echo"}) for _ in range(20)))
            assert {answer.status_code for answer in answers} == {201}
            await settled(sql)
            counts = await jobs.audit()
            assert counts["jobs"] == counts["pending"] <= 100 + 20
            assert await sql.fetchval("select count(*) from fencepost.jobs where payload::text <> '{}'") <= 100


async def test_a_pool_that_is_all_in_use_is_a_503_in_time(
    services: Services, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(database_url, connections=3, lines=0)
    await database.open()
    hints = Hints(database)
    busy = Jobs(database, Queues(database, hints), hints)
    replaced: Any = {"database": database, "jobs": busy, "queues": Queues(database, hints)}
    async with client_of(msgspec.structs.replace(services, **replaced)) as client:
        assert (await client.post("/jobs", json={"type": "echo"})).status_code == 201
        async with database.transaction(), database.transaction(), database.transaction():
            with monkeypatch.context() as patched:
                patched.setattr(database_module, "ACQUIRE_SECONDS", 0.3)
                began = time.monotonic()
                answers = await asyncio.gather(*(client.post("/jobs", json={"type": "echo"}) for _ in range(20)))
            assert {answer.status_code for answer in answers} == {503}
            assert time.monotonic() - began < limit(3)
        answers = await asyncio.gather(*(client.post("/jobs", json={"type": "echo"}) for _ in range(20)))
        assert {answer.status_code for answer in answers} == {201}
    assert (await busy.audit())["jobs"] == 21
    await hints.close()
    await database.close()


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    """A server of the test's own, to be restarted."""
    binaries = Path(os.environ["TEST_BINARIES"]) if "TEST_BINARIES" in os.environ else None
    with tempfile.TemporaryDirectory(prefix="fencepost-tests-") as folder:
        Path(folder).chmod(0o711)
        with EmbeddedPostgres(Path(folder) / "data", binaries=binaries, options=QUICK) as server:
            yield server


@pytest.mark.slow
async def test_restarts_of_the_database_cost_no_job_and_no_process(
    server: EmbeddedPostgres, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody here polls within the test, so what runs after a restart was heard of, or looked for after it."""
    app = Fencepost(server.dsn, settings=settings)

    @app.job
    async def work(number: int) -> int:
        await asyncio.sleep(0.01)
        return number

    async def hand_in(number: int) -> Any:
        """As a caller does: with a key, until there is an answer."""
        keyed = work.options(idempotency_key=f"number {number}", max_attempts=20)
        while True:
            try:
                return await keyed.enqueue(number)
            except DatabaseUnavailable:
                await asyncio.sleep(0.05)

    async with app, app.worker(workers=8):
        handles = [await hand_in(number) for number in range(20)]
        for restart in range(3):
            flood = asyncio.gather(
                *(hand_in(number) for number in range(100 * (restart + 1), 100 * (restart + 1) + 50))
            )
            await asyncio.sleep(random.uniform(0, 0.1))
            await asyncio.to_thread(server.stop)
            with pytest.raises(DatabaseUnavailable):
                await work.enqueue(-1)
            await asyncio.to_thread(server.start)
            handles += await flood
            # One more, now that it hears again or has looked.
            assert await (await hand_in(100 * (restart + 1) + 99)).result(timeout=20) == 100 * (restart + 1) + 99
        for handle in handles:
            await handle.result(timeout=20)
        listed = [job async for job in app.jobs()]
        assert {job.status for job in listed} == {"completed"}
        assert len(listed) == 20 + 3 * 51
    # The outages are told of in our own sentences, one a try.
    assert {record.name.partition(".")[0] for record in caplog.records if record.levelno >= logging.WARNING} <= {
        "fencepost"
    }
    assert not any(record.exc_info for record in caplog.records)
