"""Everything that programs do, through a pooler: serve, workers in processes, the library, callers' transactions."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from fencepost import DatabaseUnavailable, Fencepost, InvalidSettings, Job
from fencepost.settings import Settings
from tests import pgbouncer
from tests.processes.probed import ProbedWorker
from tests.processes.support import QUICK
from tests.service.support import Service
from tests.store.support import until
from tests.worker.support import SETTINGS, wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.direct]

POLLING = msgspec.structs.replace(SETTINGS, poll_interval_seconds=0.2, shutdown_timeout_seconds=5.0)
DEAF = "not listening for hints"


@pytest.fixture
def bouncer(server_url: str) -> Iterator[pgbouncer.PgBouncer]:
    with pgbouncer.running(server_url, "transaction", pool_size=4) as bouncer:
        yield bouncer


@pytest.fixture
def url(bouncer: pgbouncer.PgBouncer, database_url: str) -> str:
    """The test's database, through the pooler."""
    return bouncer.url(database_url)


@pytest.fixture
async def app(url: str) -> AsyncIterator[Fencepost]:
    """An app without a way to listen."""
    app = Fencepost(url, pooler="transaction", settings=POLLING)
    yield app
    await app.close()
    app._producer.stop()


@pytest.fixture
def double(app: Fencepost) -> Job[[int], int]:
    @app.job
    async def double(number: int) -> int:
        return 2 * number

    return double


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["0", "1"])
def test_serve_from_end_to_end(url: str, processes: str) -> None:
    with Service(DATABASE_URL=url, DATABASE_POOLER="transaction", PROCESSES=processes, LOG_FORMAT="json") as service:
        made = [service.post({"type": "sleep", "payload": {"duration": "1ms"}}) for _ in range(20)]
        for record in made:
            assert service.wait_for(record["id"], "completed", "failed", "dead_letter")["status"] == "completed"
        later = service.post({"type": "sleep", "payload": {"duration": "1ms"}, "delay": "1h"})
        assert service.call("POST", f"/jobs/{later['id']}/cancel").status == 200
        assert service.call("GET", "/readyz").status == 200
        service.signal(signal.SIGTERM)
        assert service.wait() == 0
    deaf = [line for line in service.logged if DEAF in line]
    assert len(deaf) == 1, "said once"
    assert not [line for line in service.logged if "prepared statement" in line or '"error"' in line]


def test_a_worker_that_answers_probes(url: str, tmp_path: Path) -> None:
    with ProbedWorker(tmp_path, DATABASE_URL=url, DATABASE_POOLER="transaction") as worker:
        for _ in range(3):
            assert worker.ask("/readyz").status == 200
            assert "queue_depth" in worker.ask("/metrics").body
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0


@pytest.mark.slow
def test_serve_listens_by_another_way(url: str, database_url: str) -> None:
    with Service(
        DATABASE_URL=url,
        DATABASE_POOLER="transaction",
        DATABASE_LISTEN_URL=database_url,
        PROCESSES="1",
        POLL_INTERVAL="60s",
        LOG_FORMAT="json",
        **{name: value for name, value in QUICK.items() if name == "BACKOFF_BASE"},
    ) as service:
        for _ in range(3):
            record = service.post({"type": "sleep", "payload": {"duration": "1ms"}})
            assert service.wait_for(record["id"], "completed")["status"] == "completed"
        service.signal(signal.SIGTERM)
        assert service.wait() == 0
    assert not [line for line in service.logged if DEAF in line]


@pytest.mark.parametrize("command", [["serve"], ["worker"], ["migrate"], ["prune"], ["jobs", "list"]])
def test_a_command_that_was_not_told_explains_itself(url: str, command: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "fencepost", *command],
        env={"DATABASE_URL": url, "HTTP_ADDR": "127.0.0.1:0", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert "DATABASE_POOLER=transaction" in ended.stderr


@pytest.mark.slow
def test_commands_that_were(url: str) -> None:
    for command in (["migrate"], ["migrate", "--status"], ["prune"], ["jobs", "list"]):
        ended = subprocess.run(
            [sys.executable, "-m", "fencepost", *command],
            env={"DATABASE_URL": url, "DATABASE_POOLER": "transaction", "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 0, (command, ended.stderr)


@pytest.mark.slow
async def test_five_hundred_jobs_while_the_pooler_is_killed(
    app: Fencepost, bouncer: pgbouncer.PgBouncer, database_url: str
) -> None:
    seen: Counter[int] = Counter()

    @app.job(max_attempts=20)
    async def count(number: int) -> None:
        seen[number] += 1

    async def enqueue(first: int) -> None:
        for number in range(first, 500, 10):
            while True:
                try:
                    await count.options(idempotency_key=f"n{number}").enqueue(number)
                    break
                except DatabaseUnavailable:
                    await asyncio.sleep(0.05)

    async with app.worker(workers=8):
        producing = asyncio.gather(*(enqueue(first) for first in range(10)))
        for _ in range(2):
            wanted = len(seen) + 50

            def fifty_more(wanted: int = wanted) -> bool:
                return len(seen) >= wanted

            await wait_until(fifty_more, 60, "fifty more jobs")
            bouncer.stop(signal.SIGKILL)
            bouncer.start()
        await producing
        sql = await asyncpg.connect(database_url)

        async def all_finished() -> bool:
            return bool(await sql.fetchval("select count(*) from fencepost.finished") == 500)

        await until(all_finished, seconds=90)
        statuses = await sql.fetch("select status, count(*) from fencepost.finished group by 1")
        assert [tuple(row) for row in statuses] == [("completed", 500)]
        await sql.close()
    assert set(seen) == set(range(500))


async def test_results_by_looking_alone(
    app: Fencepost, double: Job[[int], int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="fencepost.listener"):
        async with app.worker():
            handles = [await double.enqueue(number) for number in range(10)]
            assert await asyncio.gather(*(handle.result(timeout=20) for handle in handles)) == list(range(0, 20, 2))
    assert sum(DEAF in record.getMessage() for record in caplog.records) == 1
    client = await app._producer.client()
    assert client.watcher._listening is None


async def test_results_by_listening_elsewhere(url: str, database_url: str) -> None:
    app = Fencepost(url, pooler="transaction", listen_url=database_url, settings=SETTINGS)

    @app.job
    async def double(number: int) -> int:
        return 2 * number

    async with app.worker():
        # An idle worker of these settings looks every 30 seconds: this one hears.
        assert await (await double.enqueue(1)).result(timeout=10) == 2
        assert await (await double.enqueue(2)).result(timeout=10) == 4
        client = await app._producer.client()
        assert client.watcher._listening is not None
    await app.close()


def test_sync_callers(url: str) -> None:
    app = Fencepost(url, pooler="transaction", settings=POLLING)

    @app.job
    def double(number: int) -> int:
        return 2 * number

    handles = [double.enqueue_sync(number) for number in range(5)]
    assert len({handle.id for handle in handles}) == 5

    async def look() -> list[str]:
        found: list[str] = [await handle.status() for handle in handles]
        await app.close()
        return found

    assert asyncio.run(look()) == ["pending"] * 5
    app._producer.stop()


async def test_callers_own_transactions(app: Fencepost, double: Job[[int], int], url: str) -> None:
    """Through the pooler, with the settings that its users give their drivers; often enough to be prepared."""
    plain: dict[str, Any] = {"statement_cache_size": 0}
    expected = 0
    for _ in range(8):
        connection = await asyncpg.connect(url, **plain)
        async with connection.transaction():
            await double.within(connection).enqueue(1)
        # Without a transaction it commits by itself.
        await double.within(connection).enqueue(2)
        await connection.close()
        async with await psycopg.AsyncConnection.connect(url, prepare_threshold=None) as asynchronous:
            await double.within(asynchronous).enqueue(3)
        with psycopg.connect(url, prepare_threshold=None) as synchronous:
            double.within(synchronous).enqueue_sync(4)
        engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: _psycopg(url))
        with engine.begin() as joined:
            double.within(joined).enqueue_sync(5)
        engine.dispose()
        asynchronous_engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=lambda: asyncpg.connect(url, **plain),
        )
        async with asynchronous_engine.begin() as joined_async:
            await double.within(joined_async).enqueue(6)
        await asynchronous_engine.dispose()
        expected += 6
    client = await app._producer.client()
    assert (await client.database.fetch("audit"))[0]["pending"] == expected


def _psycopg(url: str) -> Any:
    return psycopg.connect(url, prepare_threshold=None)


def test_an_app_says_what_it_goes_through() -> None:
    with pytest.raises(InvalidSettings, match="pooler must be one of none, session, transaction"):
        Fencepost("postgresql://h/d", pooler="statement")
    app = Fencepost(
        "postgresql://h/d", schema="s", pooler="session", listen_url="postgresql://l/d", settings=Settings()
    )
    assert (app.settings.schema, app.settings.database_pooler) == ("s", "session")
    listen_url = app.settings.listen_url
    assert listen_url is not None
    assert listen_url.reveal() == "postgresql://l/d"
    assert set(app.own_address()) == {"database_url", "schema", "database_pooler", "listen_url"}
