"""
Roles with time-outs for everything, roles that commit without waiting, and servers that take no more writes.

The failover of a real standby is in the chaos runs; here a database is made read-only under open connections, which is
all that a client sees of a server that was demoted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import httpx2
import pytest

from fencepost.api.app import Services
from fencepost.domain.context import Context
from fencepost.domain.job import Status
from fencepost.errors import DatabaseUnavailable
from fencepost.store.database import HOT_SESSION, Database
from fencepost.store.migrate import prepare
from tests.store.support import Connection
from tests.worker.support import Bench, wait_until

pytestmark = pytest.mark.anyio

SHORT = {
    "idle_in_transaction_session_timeout": "200ms",
    "statement_timeout": "300ms",
    "lock_timeout": "100ms",
    "idle_session_timeout": "300ms",
}


async def _set(url: str, settings: dict[str, str]) -> None:
    """As an operator does: for the database, so for every session that begins from now on."""
    connection = await asyncpg.connect(url)
    try:
        known = await connection.fetch("select name from pg_settings where name = any($1)", list(settings))
        name = await connection.fetchval("select current_database()")
        for row in known:
            await connection.execute(f"alter database {name} set {row['name']} = '{settings[row['name']]}'")
    finally:
        await connection.close()


@pytest.mark.slow
async def test_a_worker_lives_under_a_role_with_short_time_outs(bench: Bench, database_url: str) -> None:
    """Handlers, idle times, the listener and renewals that all take longer than any limit of the role."""
    await _set(database_url, {**SHORT, "transaction_timeout": "400ms"})
    ran: list[int] = []

    @bench.job("long", payload=int)
    async def long(context: Context, payload: int) -> None:
        await asyncio.sleep(1.0)
        ran.append(payload)

    worker = await bench.start(lease_seconds=1.5, lease_extension=True)
    before = await bench.value("select array_agg(pid order by pid) from pg_stat_activity where backend_type like 'cl%'")
    await bench.finished(*await bench.enqueue_many("long", [1, 2, 3]))
    await asyncio.sleep(0.8)
    await bench.finished(*await bench.enqueue_many("long", [4]))
    assert sorted(ran) == [1, 2, 3, 4]
    open_now = await bench.sql(
        "select pid, state, xact_start from pg_stat_activity where datname = current_database() "
        "and application_name = 'fencepost'"
    )
    # Nobody was cut off: what was there at the start is there now.
    assert set(before) & {row["pid"] for row in open_now}
    assert worker._listener.is_connected


@pytest.mark.slow
async def test_steps_that_take_longer_than_the_roles_limits_end(empty_url: str) -> None:
    """Migrations, retention and a statement of a second: the limits are our own."""
    await _set(empty_url, {**SHORT, "transaction_timeout": "500ms"})
    database = Database(empty_url, connections=2)
    await database.open()
    assert await prepare(database, partition_days=3)
    async with database.transaction() as transaction:
        await transaction.fetch("audit")
        await asyncio.sleep(0.7)
        await transaction.fetch("audit")
    await database.execute("select pg_sleep(0.7)")
    await database.close()


@pytest.mark.parametrize("set_to", ["off", "local", "on", "remote_apply"])
async def test_nothing_of_ours_is_committed_without_waiting(database_url: str, set_to: str) -> None:
    """By any session that writes: a pool's, a line's, a worker's, a migration's. Other choices are left alone."""
    await _set(database_url, {"synchronous_commit": set_to})
    expected = "local" if set_to == "off" else set_to
    for session in (None, HOT_SESSION):
        database = Database(database_url, connections=10, session=session)
        await database.open()
        async with database._acquire() as connection:
            assert await connection.fetchval("show synchronous_commit") == expected
        line = await database.connect()
        assert await line.fetchval("show synchronous_commit") == expected
        await line.close()
        await database.close()


@asynccontextmanager
async def demoted(sql: Connection) -> AsyncIterator[None]:
    """The database takes no writes, for new sessions and, by the reload, for those that are there."""
    name = await sql.fetchval("select current_database()")
    await sql.execute(f"alter database {name} set default_transaction_read_only = on")
    await sql.fetch(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and application_name = 'fencepost'"
    )
    try:
        yield
    finally:
        await sql.execute("set default_transaction_read_only = off")
        await sql.execute(f"alter database {name} reset default_transaction_read_only")


@pytest.mark.slow
async def test_what_was_running_is_saved_when_writes_are_taken_again(bench: Bench, sql: Connection) -> None:
    """Jobs in flight over the whole time: each has run once, and its result is there, without a restart."""
    release = asyncio.Event()
    ran: list[int] = []

    @bench.job("flight", payload=int)
    async def flight(context: Context, payload: int) -> int:
        ran.append(payload)
        await release.wait()
        return payload

    await bench.start(poll_interval_seconds=0.2)
    ids = await bench.enqueue_many("flight", [1, 2, 3])
    await wait_until(lambda: len(ran) == 3, 10)
    async with demoted(sql):
        release.set()
        for _ in range(3):
            with pytest.raises(DatabaseUnavailable):
                await bench.enqueue("flight", 9)
            await asyncio.sleep(0.2)
        assert await sql.fetchval("select count(*) from fencepost.leases") == 3
    jobs = await bench.finished(*ids, seconds=20)
    assert [(one.status, one.attempts, bytes(one.result or b"")) for one in jobs] == [
        (Status.COMPLETED, 1, str(number).encode()) for number in (1, 2, 3)
    ]
    await bench.finished(await bench.enqueue("flight", 4), seconds=20)
    assert sorted(ran) == [1, 2, 3, 4]


async def test_http_says_503_while_no_writes_are_taken(
    api: httpx2.AsyncClient, services: Services, sql: Connection
) -> None:
    assert (await api.post("/jobs", json={"type": "echo"})).status_code == 201
    async with demoted(sql):
        for path, body in (
            ("/jobs", {"type": "echo"}),
            ("/jobs", [{"type": "echo"}] * 2),
            ("/queues/default/pause", None),
        ):
            response = await api.post(path, json=body) if body else await api.post(path)
            assert response.status_code == 503, path
            assert response.headers["retry-after"]
        assert (await api.get("/readyz")).status_code == 503
        assert (await api.get("/healthz")).status_code == 200

    async def again() -> bool:
        return (await api.post("/jobs", json={"type": "echo"})).status_code == 201

    await wait_until(again, 10)


async def test_a_refused_write_costs_the_connection_its_place(database_url: str) -> None:
    """No session was cut, as behind some proxies: what was refused once is not tried again on that connection."""
    database = Database(database_url, connections=1, lines=0)
    await database.open()

    async def refused() -> None:
        async with database._acquire() as connection:
            seen.append(await connection.fetchval("select pg_backend_pid()"))
            await connection.execute("set default_transaction_read_only = on")
            await connection.execute("insert into fencepost.queues (name) values ('never')")

    seen: list[int] = []
    for _ in range(2):
        with pytest.raises(DatabaseUnavailable, match="read-only"):
            await refused()
    assert len(set(seen)) == 2
    await database.fetch("ensure_queue", name="taken")
    await database.close()
