"""Transaction mode: no statement is left behind, no setting leaks, and nothing of a failed transaction stays."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import asyncpg
import pytest

from fencepost.errors import DatabaseUnavailable, SchemaMismatch
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.migrate import applied, migrate, prepare
from fencepost.store.pooling import Pooler
from fencepost.store.queues import Queues
from fencepost.store.sessions import SESSION
from fencepost.store.steps import steps
from tests import pgbouncer
from tests.store.support import Connection, connect, job, until

from .support import lives, opened

pytestmark = [pytest.mark.anyio, pytest.mark.direct]


@pytest.fixture
def bouncer(server_url: str) -> Iterator[pgbouncer.PgBouncer]:
    """Two connections of the server's for everybody, so that they change hands all the time."""
    with pgbouncer.running(server_url, "transaction", pool_size=2) as bouncer:
        yield bouncer


@pytest.fixture
async def database(bouncer: pgbouncer.PgBouncer, database_url: str) -> AsyncIterator[Database]:
    database = await opened(bouncer.url(database_url), connections=20)
    yield database
    await database.close()


@pytest.fixture
async def sql(database_url: str) -> AsyncIterator[Connection]:
    """To the server itself."""
    connection = await connect(database_url)
    yield connection
    await connection.close()


@pytest.mark.slow
async def test_twenty_callers_on_two_connections(database: Database, sql: Connection) -> None:
    """B44: any error at all would come out of this."""
    await lives(database, callers=20, rounds=3)
    assert (await database.fetch("audit"))[0]["finished"] == 20 * 3 * 2
    assert database.connection_count > 2
    behind = await sql.fetchval(
        "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    )
    assert behind <= 2


async def test_settings_are_there_and_go_with_the_transaction(
    database: Database, bouncer: pgbouncer.PgBouncer, database_url: str
) -> None:
    names = ["search_path", "jit", "enable_seqscan", "enable_hashjoin", "plan_cache_mode", "statement_timeout"]
    question = "select name, setting from pg_settings where name = any($1)"
    async with database._acquire() as connection, database.begun(connection):
        ours = dict(await connection.fetch(question, names))
    # Where another test's clock came first it still does.
    assert ours == {
        "search_path": SESSION["search_path"],
        "jit": "off",
        "enable_seqscan": "off",
        "enable_hashjoin": "off",
        "plan_cache_mode": "force_generic_plan",
        "statement_timeout": "30000",
    }
    await database.close()
    other = await asyncpg.connect(bouncer.url(database_url), statement_cache_size=0)
    theirs = {row["name"]: row["setting"] for row in await other.fetch(question, names)}
    await other.close()
    assert all(theirs[name] != value for name, value in ours.items()), theirs


async def raise_inside(database: Database) -> None:
    """Fail after a write."""
    async with database.transaction() as session:
        await session.fetch("ensure_queue", name="never")
        raise ZeroDivisionError


async def test_a_failed_statement_is_rolled_back(database: Database, sql: Connection) -> None:
    for _ in range(5):
        with pytest.raises(asyncpg.DataError):
            await database.fetch("ensure_lane", queue_id=1, priority=100_000)
        with pytest.raises(asyncpg.UndefinedTableError):
            await database.execute("select * from fencepost.nothing")
        with pytest.raises(ZeroDivisionError):
            await raise_inside(database)
    await database.ping()
    assert await sql.fetchval("select count(*) from fencepost.queues") == 0
    await nothing_left_open(sql)


async def test_a_failure_that_is_passed_over_is_not_taken_for_a_commit(database: Database) -> None:
    async def pass_over() -> None:
        async with database.transaction() as session:
            await session.fetch("ensure_queue", name="never")
            with suppress(asyncpg.DataError):
                await session.fetch("ensure_queue", name="a\x00b")

    with pytest.raises(DatabaseUnavailable, match="rolled back"):
        await pass_over()
    assert await database.fetch("find_queue", name="never") == []


async def test_cancellation_in_the_middle_leaves_nothing(database: Database, sql: Connection) -> None:
    for _ in range(5):
        inside = asyncio.Event()

        async def hold(inside: asyncio.Event = inside) -> None:
            async with database.transaction() as session:
                await session.fetch("ensure_queue", name="never")
                inside.set()
                await asyncio.Event().wait()

        call = asyncio.get_running_loop().create_task(hold())
        await inside.wait()
        call.cancel()
        await asyncio.wait([call])
    await lives(database, callers=4, rounds=1)
    assert await sql.fetchval("select count(*) from fencepost.queues where name = 'never'") == 0
    await nothing_left_open(sql)


async def test_a_snapshot_reads_one_state_and_writes_nothing(database: Database) -> None:
    hints = Hints(database)
    jobs = Jobs(database, Queues(database, hints), hints)
    await jobs.enqueue([job()])
    async with database.transaction(snapshot=True) as session:
        before = [dict(row) for row in await session.fetch("audit")]
        await jobs.enqueue([job()])
        assert [dict(row) for row in await session.fetch("audit")] == before
    with pytest.raises(DatabaseUnavailable):
        async with database.transaction(snapshot=True) as session:
            await session.fetch("ensure_queue", name="q")
    await hints.close()


async def test_a_commit_whose_answer_is_lost_is_no_success(
    database: Database, bouncer: pgbouncer.PgBouncer, sql: Connection
) -> None:
    await sql.execute(
        "create function slow() returns trigger language plpgsql as "
        "'begin perform pg_catalog.pg_sleep(600); return null; end';"
        "create constraint trigger slow after insert on fencepost.queues deferrable initially deferred "
        "for each row execute function slow()"
    )
    call = asyncio.get_running_loop().create_task(database.fetch("ensure_queue", name="q"))

    async def committing() -> bool:
        return bool(
            await sql.fetchval(
                "select count(*) from pg_stat_activity where datname = current_database() and query = 'commit' "
                "and state = 'active'"
            )
        )

    await until(committing, seconds=30)
    bouncer.stop(signal.SIGKILL)
    with pytest.raises(DatabaseUnavailable):
        await call
    await sql.fetch(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
        "where datname = current_database() and query = 'commit' and state = 'active'"
    )
    await sql.execute("drop trigger slow on fencepost.queues")
    bouncer.start()
    assert len(await database.fetch("ensure_queue", name="q")) == 1


async def test_every_caller_recovers_when_the_pooler_comes_back(
    database: Database, bouncer: pgbouncer.PgBouncer
) -> None:
    for number in range(3):
        await lives(database, callers=5, rounds=1, prefix=f"before{number}-")
        bouncer.stop(signal.SIGKILL)
        answers = await asyncio.gather(*(database.fetch("audit") for _ in range(5)), return_exceptions=True)
        assert all(isinstance(one, DatabaseUnavailable) for one in answers)
        bouncer.start()
        await database.ping()


@pytest.mark.slow
async def test_two_installs_and_a_hostile_search_path(empty_url: str, bouncer: pgbouncer.PgBouncer) -> None:
    """B62."""
    owner = await connect(empty_url)
    name = await owner.fetchval("select current_database()")
    await owner.execute("create schema trap")
    for table in ("jobs", "pending", "leases", "finished", "attempts", "queues", "lanes", "workers", "schema_version"):
        await owner.execute(f"create table trap.{table} (boom int check (boom < 0))")
    for signature in ("now()", "clock_timestamp()", "statement_timestamp()"):
        await owner.execute(
            f"create function trap.{signature} returns timestamptz language sql as 'select timestamptz ''1999-01-01'''"
        )
    await owner.execute(f"alter database {name} set search_path = trap, pg_catalog, public")
    url = bouncer.url(empty_url)
    one, two = [await opened(url, schema=schema) for schema in ("fencepost", "Job Queue")]
    await asyncio.gather(*(prepare(database, partition_days=3) for database in (one, two)))
    await asyncio.gather(lives(one, callers=5, rounds=2), lives(two, callers=5, rounds=1))
    assert (await one.fetch("audit"))[0]["finished"] == 20
    assert (await two.fetch("audit"))[0]["finished"] == 10
    overview = await one.fetch("queue_overview", name=None, count_limit=10)
    assert all(row["created_at"].year >= 2025 for row in overview)
    for table in ("jobs", "pending", "queues", "schema_version"):
        assert await owner.fetchval(f"select count(*) from trap.{table}") == 0
    for database in (one, two):
        await database.close()
    await owner.close()


async def test_ten_migrations_at_once(empty_url: str, bouncer: pgbouncer.PgBouncer) -> None:
    """B46: one applies, the others wait; the lock goes with the transaction, whoever's connection that was."""
    url = bouncer.url(empty_url)
    answers = await asyncio.gather(*(migrate(Database(url, pooler=Pooler.TRANSACTION)) for _ in range(10)))
    assert sorted(len(done) for done in answers)[-1] >= 1
    assert sorted(step.number for done in answers for step in done) == [step.number for step in steps()]
    again = await asyncio.gather(*(migrate(Database(url, pooler=Pooler.TRANSACTION)) for _ in range(10)))
    assert again == [[]] * 10
    assert len(await applied(Database(url, pooler=Pooler.TRANSACTION))) == len(steps())
    sql = await connect(empty_url)
    assert await sql.fetchval("select count(*) from pg_locks where locktype = 'advisory'") == 0
    await sql.close()


async def test_a_migration_that_is_killed_strands_no_lock(empty_url: str, bouncer: pgbouncer.PgBouncer) -> None:
    sql = await connect(empty_url)
    # So that it waits, with its lock, in the middle of its first step.
    blocking = sql.transaction()
    await blocking.start()
    await sql.execute("create schema fencepost")
    runner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fencepost", "migrate"),
        env={"DATABASE_URL": bouncer.url(empty_url), "DATABASE_POOLER": "transaction", "PATH": "/usr/bin:/bin"},
    )

    async def locks() -> int:
        return int(
            await sql.fetchval(
                "select count(*) from pg_locks where locktype = 'advisory' and granted "
                "and database = (select oid from pg_database where datname = current_database())"
            )
        )

    async def holds_it() -> bool:
        return await locks() > 0

    await until(holds_it, seconds=60)
    runner.kill()
    await runner.wait()
    await blocking.rollback()

    async def let_go() -> bool:
        return await locks() == 0

    await until(let_go, seconds=30)
    assert len(await migrate(Database(bouncer.url(empty_url), pooler=Pooler.TRANSACTION))) == len(steps())
    await sql.close()


async def test_a_schema_that_is_not_there_is_said_so(empty_url: str, bouncer: pgbouncer.PgBouncer) -> None:
    database = await opened(bouncer.url(empty_url))
    with pytest.raises(SchemaMismatch):
        await database.fetch("audit")
    await database.close()


async def nothing_left_open(sql: Connection) -> None:
    """No transaction stays open at the server; a connection that was cut off takes a moment to end."""

    async def none() -> bool:
        return not await sql.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database() "
            "and state like 'idle in transaction%'"
        )

    await until(none)
