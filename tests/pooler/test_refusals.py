"""What a pooler says when it has no connection to give, and what comes of it: never more than "not now"."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from fencepost.errors import DatabaseUnavailable
from fencepost.store import sessions
from fencepost.store.database import Database
from fencepost.store.pooling import Pooler
from tests import pgbouncer
from tests.patience import limit
from tests.store.support import Connection, connect

from .support import opened

pytestmark = [pytest.mark.anyio, pytest.mark.direct]

POOLED = [Pooler.SESSION, Pooler.TRANSACTION]


@pytest.fixture
async def sql(database_url: str) -> AsyncIterator[Connection]:
    """To the server itself."""
    connection = await connect(database_url)
    yield connection
    await connection.close()


@asynccontextmanager
async def taken(url: str) -> AsyncIterator[None]:
    """Somebody else is in a transaction."""
    other = await asyncpg.connect(url, statement_cache_size=0)
    await other.execute("begin")
    yield
    await other.close()


@pytest.mark.slow
async def test_a_wait_that_the_pooler_ends(database_url: str) -> None:
    with pgbouncer.running(database_url, "transaction", pool_size=1, query_wait_timeout="1") as bouncer:
        url = bouncer.url(database_url)
        database = await opened(url)
        async with taken(url):
            calls = [database.fetch("audit") for _ in range(3)]
            for answer in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(answer, DatabaseUnavailable)
                assert "query_wait_timeout" in str(answer)
            with pytest.raises(DatabaseUnavailable, match="query_wait_timeout"):
                await Database(url, pooler=Pooler.TRANSACTION).open()
        assert len(await database.fetch("audit")) == 1
        await database.close()


@pytest.mark.slow
async def test_a_wait_that_nobody_ends(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends when our patience does, and at once: nobody waits for the rollback, or for the connection to close."""
    monkeypatch.setattr(sessions, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(sessions, "CONNECT_SECONDS", 1.0)
    with pgbouncer.running(database_url, "transaction", pool_size=1) as bouncer:
        url = bouncer.url(database_url)
        database = await opened(url)
        async with taken(url):
            began = time.monotonic()
            # One of them has a connection to the pooler already, and the others make theirs.
            calls = [database.fetch("audit") for _ in range(3)]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(answer) for answer in answers] == [DatabaseUnavailable] * 3
            for pooler in POOLED:
                with pytest.raises(DatabaseUnavailable):
                    await Database(url, pooler=pooler).open()
            assert time.monotonic() - began < limit(3 * 1.0 + 2)
        assert len(await database.fetch("audit")) == 1
        await database.close()


@pytest.mark.parametrize("pooler", POOLED)
async def test_no_more_connections_allowed(database_url: str, pooler: Pooler) -> None:
    """It is a matter of time, so a start waits."""
    with pgbouncer.running(database_url, pooler, max_client_conn="2") as bouncer:
        url = bouncer.url(database_url)
        database = Database(url, pooler=pooler, lines=0)
        # In session mode the start compares itself to another.
        await database.open()
        async with taken(url):
            with pytest.raises(DatabaseUnavailable, match="no more connections allowed"):
                await Database(url, pooler=pooler).open()
            calls = [database.fetch("audit") for _ in range(2)]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert sorted(isinstance(answer, DatabaseUnavailable) for answer in answers) == [False, True]
        await Database(url, pooler=Pooler.TRANSACTION).open()
        await database.close()


@pytest.mark.slow
@pytest.mark.parametrize("pooler", POOLED)
async def test_nobody_behind_the_pooler(pooler: Pooler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "CONNECT_SECONDS", 2.0)
    nobody = "postgresql://nobody@127.0.0.1:1/nothing"
    with pgbouncer.running(nobody, pooler) as bouncer, pytest.raises(DatabaseUnavailable):
        await Database(bouncer.url(nobody), pooler=pooler).open()


async def test_a_server_that_restarts_behind_the_pooler(database_url: str, sql: Connection) -> None:
    async def restart() -> None:
        await sql.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()"
        )

    with pgbouncer.running(database_url, "transaction") as bouncer:
        database = await opened(bouncer.url(database_url))
        await restart()
        # Nothing of ours was under way.
        assert len(await database.fetch("audit")) == 1

        async def restarted_within(*, last: bool) -> None:
            async with database.transaction() as session:
                await session.fetch("ensure_queue", name="never")
                await restart()
                if not last:
                    await session.fetch("audit")

        for last in (False, True):
            with pytest.raises(DatabaseUnavailable):
                await restarted_within(last=last)
        # What happened is what is told, and not what came of the rollback.
        with pytest.raises(DatabaseUnavailable, match="closed in the middle of operation"):
            await database.execute("select pg_terminate_backend(pg_backend_pid())")
        assert await database.fetch("find_queue", name="never") == []
        await database.close()


@pytest.mark.parametrize("asking", [False, True], ids=["between", "within"])
@pytest.mark.parametrize("pooler", POOLED)
async def test_a_cancellation_waits_for_nobody(database_url: str, pooler: Pooler, asking: bool) -> None:
    """Neither between two statements of a transaction nor within one, of a pooler, or a server, that is silent."""
    with pgbouncer.running(database_url, pooler) as bouncer:
        database = Database(bouncer.url(database_url), pooler=pooler, lines=0)
        await database.open()
        inside = asyncio.Event()

        async def hold() -> None:
            async with database.transaction() as session:
                await session.fetch("ensure_queue", name="never")
                bouncer.signal(signal.SIGSTOP)
                inside.set()
                if asking:
                    await session.fetch("audit")
                await asyncio.Event().wait()

        call = asyncio.get_running_loop().create_task(hold())
        await inside.wait()
        await asyncio.sleep(0)
        call.cancel()
        _, pending = await asyncio.wait([call], timeout=limit(5))
        bouncer.signal(signal.SIGCONT)
        assert not pending
        assert call.cancelled()
        assert await database.fetch("find_queue", name="never") == []
        await database.close()
