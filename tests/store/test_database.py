"""The pool under fire: cancelled calls, cut connections, hostile settings, a server that is busy."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import asyncpg
import pytest

from fencepost.domain.job import Status
from fencepost.errors import DatabaseUnavailable, InvalidSettings
from fencepost.settings.pooler import Pooler
from fencepost.store import database as database_module
from fencepost.store import pooling, sessions
from fencepost.store.database import HOT_SESSION, Database
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.listing import Filter, Listing
from fencepost.store.migrate import migrate, prepare
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore
from tests.conftest import with_database

from .support import Connection, claim, completed, job, until

pytestmark = pytest.mark.anyio


async def run_a_job(database: Database) -> None:
    """The whole life of a job, through every part of the store."""
    hints = Hints(database)
    queues = Queues(database, hints)
    jobs = Jobs(database, queues, hints)
    store = WorkerStore(database, uuid.uuid4())
    made = job(payload=b'{"a": [1, null]}', idempotency_key=uuid.uuid4().hex, run_at=datetime(2020, 1, 1, tzinfo=UTC))
    await jobs.enqueue([made])
    queue_id = await queues.id_of("default")
    [lease] = await claim(store, queue_id)
    assert lease.id == made.id
    await store.extend(queue_id, [(lease.id, lease.token)], lease_seconds=60)
    await store.recover(queue_id, after=None, max_rows=10)
    await store.settle(queue_id, [completed(lease, b'"\xc3\xa9"')])
    read = await jobs.get(made.id)
    assert (read.status, bytes(read.result or b"")) == (Status.COMPLETED, b'"\xc3\xa9"')
    assert [one.id for one in (await Listing(database, queues).page(Filter(), limit=1)).jobs] == [made.id]
    await queues.pause("default")
    await queues.resume("default")
    await store.heartbeat(host="h", pid=1, version="v", slots=1)
    await hints.close()


@contextmanager
def only_noise_of_cut_short_connects() -> Iterator[None]:
    """
    Nothing but the driver's own complaint may reach the loop's handler.

    A call that is cancelled while its connection is being made leaves a future behind that nobody asks.
    """
    loop = asyncio.get_running_loop()
    handler, found = loop.get_exception_handler(), list[str]()
    loop.set_exception_handler(lambda _, context: found.append(str(context.get("exception"))))
    try:
        yield
        gc.collect()
    finally:
        loop.set_exception_handler(handler)
    assert set(found) <= {"unexpected connection_lost() call"}


async def test_two_hundred_cancelled_calls_cost_no_connection(database: Database, sql: Connection) -> None:
    rolls = random.Random(1)

    async def called_off() -> None:
        call = asyncio.get_running_loop().create_task(run_a_job(database))
        await asyncio.sleep(rolls.uniform(0, 0.02))
        call.cancel()
        await asyncio.wait([call])

    with only_noise_of_cut_short_connects():
        for _ in range(10):
            await asyncio.gather(*(called_off() for _ in range(20)))
    await asyncio.gather(*(database.fetch("audit") for _ in range(30)))
    await run_a_job_alone(database)
    open_transactions = await sql.fetchval(
        "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'"
    )
    assert open_transactions == 0


async def run_a_job_alone(database: Database) -> None:
    """After whatever others left behind."""
    await database.execute("delete from fencepost.pending; delete from fencepost.leases; delete from fencepost.jobs")
    await database.execute("delete from fencepost.finished")
    await run_a_job(database)


async def test_a_cancelled_transaction_is_rolled_back(database: Database, sql: Connection) -> None:
    inside = asyncio.Event()

    async def hold() -> None:
        async with database.transaction() as session:
            await session.fetch("ensure_queue", name="never")
            inside.set()
            await asyncio.Event().wait()

    call = asyncio.get_running_loop().create_task(hold())
    await inside.wait()
    call.cancel()
    await asyncio.wait([call])
    assert await sql.fetchval("select count(*) from fencepost.queues") == 0
    await database.fetch("ensure_queue", name="never")


@pytest.mark.slow
async def test_cut_connections_are_replaced(database: Database, sql: Connection) -> None:
    for _ in range(5):
        await asyncio.gather(*(database.fetch("audit") for _ in range(10)))
        await sql.fetch(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()"
        )
        answers = await asyncio.gather(*(database.fetch("audit") for _ in range(10)), return_exceptions=True)
        assert all(not isinstance(one, BaseException) or isinstance(one, DatabaseUnavailable) for one in answers)
    await run_a_job(database)


async def test_a_connection_cut_in_the_middle_of_a_statement(database: Database, sql: Connection) -> None:
    call = asyncio.get_running_loop().create_task(database.execute("select pg_sleep(30)"))

    async def cut() -> bool:
        return bool(
            await sql.fetchval(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and query = 'select pg_sleep(30)' and state = 'active'"
            )
        )

    await until(cut)
    with pytest.raises(DatabaseUnavailable, match="the database is not available"):
        await call
    await database.ping()


@pytest.mark.parametrize(
    ("url", "reason", "place"),
    [
        ("postgresql://me:secret@127.0.0.1:1/shop", "Connection refused", "127.0.0.1:1"),
        ("postgresql://me@127.0.0.1:1,127.0.0.1:2/shop", "Connection refused", "127.0.0.1:1,127.0.0.1:2"),
        ("postgresql:///shop?host=/nowhere&port=7&password=secret", "No such file or directory", "/nowhere, port 7"),
        ("postgresql://me:s%40cret@[::1]:1/shop", None, "[::1]:1"),
        ("postgresql://nowhere.invalid/shop", None, "nowhere.invalid"),
    ],
)
async def test_where_nobody_answers(url: str, reason: str | None, place: str) -> None:
    """Told to whoever runs it, who may have several; not in the message, which /readyz shows to anybody."""
    for way in (Database(url).open(), migrate(Database(url)), pooling.detect(url)):
        with pytest.raises(DatabaseUnavailable) as caught:
            await way
        assert caught.value.place == place
        assert caught.value.for_operator() == f"{caught.value} ({place})"
        assert place not in str(caught.value)
        assert "secret" not in "".join(traceback.format_exception(caught.value)).replace(url, "")
        if reason is not None:
            assert str(caught.value) == f"the database is not available: {reason}"


async def test_a_server_that_says_nothing_is_no_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "CONNECT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(DatabaseUnavailable) as caught:
            await Database(f"postgresql://me@{place}/shop").open()
    assert caught.value.for_operator() == f"the database is not available: no answer in time ({place})"


async def test_a_busy_pool_says_so_in_time(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(database_url, connections=2)
    await database.open()
    async with database.transaction(), database.transaction():
        # Not before: one that is yet to be made would have to be there within this, too.
        with monkeypatch.context() as patched:
            patched.setattr(database_module, "ACQUIRE_SECONDS", 0.05)
            with pytest.raises(DatabaseUnavailable) as caught:
                await database.fetch("audit")
    assert str(caught.value) == ("all 2 connections of this process's pool are in use, and none came free within 0.05s")
    await database.fetch("audit")
    await database.close()


async def test_a_server_that_doesnt_answer_is_no_busy_pool(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(database_url, connections=2)
    await database.open()

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    async with database.transaction():
        # No longer than this: the database is removed by way of it, too.
        with monkeypatch.context() as patched:
            patched.setattr("asyncpg.connect", never)
            patched.setattr(database_module, "ACQUIRE_SECONDS", 0.05)
            with pytest.raises(DatabaseUnavailable, match="the database is not available"):
                await database.fetch("audit")
    await database.close()


async def test_a_server_that_takes_no_writes_is_told_as_that(database_url: str, sql: Connection) -> None:
    name = await sql.fetchval("select quote_ident(current_database())")
    await sql.execute(f"alter database {name} set default_transaction_read_only = on")
    said = (
        "the server takes no writes, since it is a standby, or read-only by default; see what `fencepost doctor` says"
    )
    for pooler in Pooler:
        with pytest.raises(DatabaseUnavailable) as caught:
            await Database(database_url, pooler=pooler).open()
        assert str(caught.value) == f"the database is not available: {said}"
    listening = Database(database_url, pooler=Pooler.TRANSACTION, listen_dsn=database_url)
    with pytest.raises(DatabaseUnavailable) as caught:
        await listening.connect_to_listen()
    assert str(caught.value) == f"DATABASE_LISTEN_URL: {said}"


async def test_a_server_that_is_not_there(database_url: str) -> None:
    nowhere = Database("postgresql://nobody@127.0.0.1:1/nothing")
    with pytest.raises(DatabaseUnavailable):
        await nowhere.open()
    assert not nowhere.is_open
    for call in (nowhere.ping(), nowhere.fetch("audit"), nowhere.execute("select 1"), migrate(nowhere)):
        with pytest.raises(DatabaseUnavailable):
            await call
    await nowhere.close()
    missing = Database(with_database(database_url, "there_is_no_such_database"))
    with pytest.raises(InvalidSettings, match=r"DATABASE_URL.*there_is_no_such_database"):
        await missing.open()
    with pytest.raises(InvalidSettings, match="DATABASE_URL"):
        await Database("this is no URL").open()


async def test_a_closed_pool_says_so(database_url: str) -> None:
    database = Database(database_url)
    await database.open()
    await database.ping()
    await database.close()
    await database.close()
    with pytest.raises(DatabaseUnavailable, match="not open"):
        await database.fetch("audit")


@pytest.mark.direct  # A pooler keeps its connections to the server.
@pytest.mark.parametrize("lines", [0, 2])
async def test_reopened_it_has_new_connections_and_the_old_ones_are_gone(
    database_url: str, sql: Connection, lines: int
) -> None:
    """Also when it is reopened twice at once, or closed meanwhile."""
    database = Database(database_url, connections=5, lines=lines, session={"application_name": "reopened"})

    async def active() -> dict[int, bool]:
        rows = await sql.fetch(
            "select pid, state = 'active' as works from pg_stat_activity "
            "where datname = current_database() and application_name = 'reopened'"
        )
        return {row["pid"]: row["works"] for row in rows}

    async def works() -> bool:
        return any((await active()).values())

    async def old_are_gone() -> bool:
        return not old.keys() & (await active()).keys()

    async def all_are_gone() -> bool:
        return not await active()

    await database.open()
    await database.fetch("audit")
    waiting = asyncio.create_task(database.execute("select pg_sleep(30)"))
    await until(works)
    old = await active()
    await asyncio.gather(database.reopen(), database.reopen())
    with pytest.raises(DatabaseUnavailable):
        await waiting
    for pid in [pid for pid, is_working in old.items() if is_working]:
        # It sleeps on, as a server does that has not heard that its client is gone.
        await sql.execute("select pg_terminate_backend($1)", pid)
    await until(old_are_gone)
    await database.fetch("audit")
    old = await active()
    assert old
    reopening = asyncio.create_task(database.reopen())
    await asyncio.sleep(0)
    await database.close()
    await reopening
    await until(all_are_gone)
    with pytest.raises(DatabaseUnavailable, match="not open"):
        await database.fetch("audit")


async def test_a_wrong_statement_is_no_outage(database: Database) -> None:
    with pytest.raises(asyncpg.UndefinedTableError):
        await database.execute("select * from fencepost.nothing")
    with pytest.raises(asyncpg.DataError):
        await database.fetch("find_queue", name="a\x00b")
    with pytest.raises(asyncpg.DataError):
        await database.fetch("ensure_lane", queue_id=1, priority=100_000)
    await database.ping()


async def test_a_statement_that_takes_too_long_is_an_outage(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sessions.SESSION, "statement_timeout", "50ms")
    database = Database(database_url, connections=1)
    await database.open()
    with pytest.raises(DatabaseUnavailable, match="statement timeout"):
        await database.execute("select pg_sleep(5)")
    await database.ping()
    await database.close()


async def test_a_snapshot_reads_one_state_and_writes_nothing(database: Database, jobs: Jobs, listing: Listing) -> None:
    await jobs.enqueue([job()])
    async with database.transaction(snapshot=True) as session:
        before = await session.fetch("audit")
        await jobs.enqueue([job()])
        assert await session.fetch("audit") == before
    with pytest.raises(DatabaseUnavailable):
        async with database.transaction(snapshot=True) as session:
            await session.fetch("ensure_queue", name="q")
    assert (await database.fetch("audit"))[0]["jobs"] == 2


HOSTILE = {
    "idle_in_transaction_session_timeout": "1s",
    "statement_timeout": "2s",
    "lock_timeout": "500ms",
    "idle_session_timeout": "3s",
    "default_transaction_isolation": "serializable",
    "search_path": "''",
    "timezone": "Asia/Kathmandu",
    "datestyle": "SQL, DMY",
    "intervalstyle": "sql_standard",
    "bytea_output": "escape",
    "standard_conforming_strings": "off",
    "enable_indexscan": "off",
    "lc_numeric": "C",
    "extra_float_digits": "-15",
    "synchronous_commit": "on",
    "plan_cache_mode": "force_custom_plan",
}


@pytest.mark.slow
async def test_the_roles_settings_do_not_matter(empty_url: str) -> None:
    owner = await asyncpg.connect(empty_url)
    name = await owner.fetchval("select current_database()")
    hostile = dict(HOSTILE)
    if await owner.fetchval("select current_setting('server_version_num')::int") >= 170000:
        hostile["transaction_timeout"] = "3s"
    for setting, value in hostile.items():
        quoted = value if value == "''" else "'" + value + "'"
        await owner.execute(f"alter database {name} set {setting} = {quoted}")
    await owner.close()
    database = Database(empty_url, connections=3)
    await database.open()
    await prepare(database, partition_days=3)
    await run_a_job(database)
    mine = {
        row["name"]: row["setting"]
        for row in await fetch_settings(database, ["statement_timeout", "lock_timeout", "idle_session_timeout"])
    }
    assert mine == {"statement_timeout": "30000", "lock_timeout": "10000", "idle_session_timeout": "0"}
    # Longer than the role's limits on statements and on idle sessions: both are ours.
    await database.execute("select pg_sleep(2.2)")
    await database.execute("select pg_sleep(1)")
    await run_a_job(database)
    hot = Database(empty_url, connections=1, session=HOT_SESSION)
    await hot.open()
    await run_a_job(hot)
    await hot.close()
    await database.close()


async def fetch_settings(database: Database, names: list[str]) -> list[asyncpg.Record]:
    """What a session of the pool really has."""
    async with database._acquire() as connection, database.begun(connection):
        rows: list[asyncpg.Record] = await connection.fetch(
            "select name, setting from pg_settings where name = any($1)", names
        )
        return rows


async def test_a_hostile_search_path_with_tables_of_the_same_names(empty_url: str) -> None:
    owner = await asyncpg.connect(empty_url)
    name = await owner.fetchval("select current_database()")
    await owner.execute("create schema trap")
    for table in ("jobs", "pending", "leases", "finished", "attempts", "queues", "lanes", "workers", "schema_version"):
        await owner.execute(f"create table trap.{table} (boom int check (boom < 0))")
    for signature in ("now()", "clock_timestamp()", "statement_timestamp()"):
        await owner.execute(
            f"create function trap.{signature} returns timestamptz language sql as 'select timestamptz ''1999-01-01'''"
        )
    await owner.execute(
        "create function trap.greatest_of(a timestamptz, b timestamptz) returns bool language sql as 'select true'"
    )
    await owner.execute(
        "create operator trap.> (leftarg = timestamptz, rightarg = timestamptz, function = trap.greatest_of)"
    )
    await owner.execute(f"alter database {name} set search_path = trap, pg_catalog, public")
    database = Database(empty_url, connections=2)
    await database.open()
    await prepare(database, partition_days=3)
    await run_a_job(database)
    read = await database.fetch("queue_overview", name=None, count_limit=10)
    assert read[0]["created_at"].year >= 2025
    for table in ("jobs", "pending", "queues"):
        assert await owner.fetchval(f"select count(*) from trap.{table}") == 0
    await database.close()
    await owner.close()


@pytest.mark.parametrize("schema", ["Job Queue", 'a"b', "é", "select", "x" * 50, "back\\slash"])
async def test_a_schema_of_any_name(empty_url: str, schema: str) -> None:
    database = Database(empty_url, schema=schema, connections=3)
    await database.open()
    assert len(await prepare(database, partition_days=3)) >= 1
    assert await prepare(database, partition_days=3) == []
    hints = Hints(database)
    queues = Queues(database, hints)
    jobs = Jobs(database, queues, hints)
    await jobs.enqueue([job() for _ in range(3)])
    store = WorkerStore(database, uuid.uuid4())
    leases = await claim(store, await queues.id_of("default"), slots=2)
    await store.settle(1, [completed(lease) for lease in leases])
    assert await jobs.audit() == {"jobs": 3, "pending": 1, "leases": 0, "finished": 2}
    await hints.close()
    await database.close()


async def test_two_installs_in_one_database_never_see_each_other(empty_url: str) -> None:
    doors = []
    for schema in ("fencepost", "Job Queue"):
        database = Database(empty_url, schema=schema, connections=3)
        await database.open()
        await prepare(database, partition_days=3)
        hints = Hints(database)
        queues = Queues(database, hints)
        doors.append((database, hints, queues, Jobs(database, queues, hints)))
    (one, hints_one, _, jobs_one), (two, hints_two, queues_two, jobs_two) = doors
    made = job(idempotency_key="k")
    await jobs_one.enqueue([made])
    [answer] = await jobs_two.enqueue([job(idempotency_key="k", priority=5)])
    assert not answer.replayed
    assert (await jobs_one.audit())["jobs"] == (await jobs_two.audit())["jobs"] == 1
    await queues_two.pause("default")
    assert len(await claim(WorkerStore(one, uuid.uuid4()), 1)) == 1
    assert await claim(WorkerStore(two, uuid.uuid4()), 1) == []
    for hints in (hints_one, hints_two):
        await hints.close()
    for database in (one, two):
        await database.close()
