"""Which kind of pooler it is, and what the start says when that isn't what was set."""

from __future__ import annotations

import pytest

from fencepost.errors import DatabaseUnavailable, InvalidSettings
from fencepost.store.database import Database
from fencepost.store.migrate import applied, migrate
from fencepost.store.pooling import Pooler, detect
from tests import pgbouncer
from tests.conftest import with_database

pytestmark = [pytest.mark.anyio, pytest.mark.direct]

DROPPED = (
    "search_path, timezone, statement_timeout, lock_timeout, idle_in_transaction_session_timeout, "
    "idle_session_timeout, default_transaction_isolation, jit, enable_seqscan, plan_cache_mode"
)


async def test_no_pooler(database_url: str) -> None:
    assert await detect(database_url) is Pooler.NONE
    for pooler in Pooler:
        # What is made for less than there is works too.
        database = Database(database_url, pooler=pooler)
        await database.open()
        assert [dict(row) for row in await database.fetch("audit")] == [
            {"jobs": 0, "pending": 0, "leases": 0, "finished": 0}
        ]
        await database.close()


@pytest.mark.parametrize("round_robin", ["0", "1"])
@pytest.mark.parametrize("mode", ["session", "transaction"])
async def test_a_pooler_is_known_by_its_behaviour(database_url: str, mode: str, round_robin: str) -> None:
    with pgbouncer.running(database_url, mode, server_round_robin=round_robin) as bouncer:
        for _ in range(3):
            assert await detect(bouncer.url(database_url)) == mode


async def test_a_full_pool_is_one_of_sessions(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.store.pooling.PATIENCE_SECONDS", 0.5)
    with pgbouncer.running(database_url, "session", pool_size=1) as bouncer:
        assert await detect(bouncer.url(database_url)) is Pooler.SESSION


async def test_nobody_there() -> None:
    with pytest.raises(DatabaseUnavailable):
        await detect("postgresql://nobody@127.0.0.1:1/nothing")


@pytest.mark.parametrize("mode", ["session", "transaction"])
@pytest.mark.parametrize("ignored", ["extra_float_digits", DROPPED], ids=["refusing", "dropping"])
async def test_an_unexpected_pooler_is_explained(database_url: str, mode: str, ignored: str) -> None:
    with pgbouncer.running(database_url, mode, ignore_startup_parameters=ignored) as bouncer:
        url = bouncer.url(database_url)
        database = Database(url)
        with pytest.raises(InvalidSettings, match="set DATABASE_POOLER=transaction") as raised:
            await database.open()
        assert not database.is_open
        assert "DATABASE_URL leads to a pooler" in str(raised.value)
        if ignored != DROPPED:
            assert "unsupported startup parameter: search_path" in str(raised.value)
            for door in (applied, migrate):
                with pytest.raises(InvalidSettings, match="DATABASE_POOLER"):
                    await door(Database(url))


async def test_transactions_where_sessions_were_promised(database_url: str) -> None:
    with pgbouncer.running(database_url, "transaction") as bouncer:
        database = Database(bouncer.url(database_url), pooler=Pooler.SESSION)
        with pytest.raises(InvalidSettings, match=r"DATABASE_POOLER is session.*set DATABASE_POOLER=transaction"):
            await database.open()
        assert not database.is_open


async def test_single_statements_are_not_enough(database_url: str) -> None:
    with pgbouncer.running(database_url, "statement") as bouncer:
        database = Database(bouncer.url(database_url), pooler=Pooler.TRANSACTION)
        with pytest.raises(InvalidSettings, match="pool_mode = transaction"):
            await database.open()


@pytest.mark.parametrize("pooler", [Pooler.SESSION, Pooler.TRANSACTION])
async def test_a_database_that_is_not_there(database_url: str, pooler: Pooler) -> None:
    with pgbouncer.running(database_url, pooler) as bouncer:
        missing = bouncer.url(with_database(database_url, "there_is_no_such_database"))
        with pytest.raises(InvalidSettings, match=r"DATABASE_URL: .*there_is_no_such_database"):
            await Database(missing, pooler=pooler).open()


async def test_a_way_to_listen_that_leads_to_a_pooler(database_url: str) -> None:
    with pgbouncer.running(database_url, "transaction", ignore_startup_parameters=DROPPED) as bouncer:
        url = bouncer.url(database_url)
        database = Database(url, pooler=Pooler.TRANSACTION, listen_dsn=url)
        with pytest.raises(InvalidSettings, match="DATABASE_LISTEN_URL"):
            await database.connect_to_listen()
