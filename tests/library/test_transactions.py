"""In the caller's transaction: the job is there from the commit on, and never was after a rollback."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg import rows
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_async
from sqlalchemy.ext.asyncio import create_async_engine

from fencepost import Context, Fencepost, InvalidJob, Job, JobFailed, JobNotFound, KeyConflict, WrongConnection
from fencepost.transactions import adapt
from tests.patience import limit

from .connections import (
    KINDS,
    django_connection,
    engine_of,
    in_transaction,
    of_psycopg,
    of_sqlalchemy,
    of_sqlalchemy_async,
)

SAID: list[str] = []


@pytest.fixture
def say(app: Fencepost) -> Job[[str], str]:
    SAID.clear()

    @app.job
    async def say(word: str) -> str:
        SAID.append(word)
        return word

    return say


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_commit_runs_it_once_and_wakes_the_worker(
    kind: str, app: Fencepost, say: Job[[str], str], database_url: str
) -> None:
    async with app.worker():
        # So that the worker sleeps when the transaction commits; it looks by itself only after 30 seconds.
        await (await say.enqueue("first")).result(timeout=5)
        [handle] = await in_transaction(
            kind, database_url, say, "committed", meanwhile=lambda: SAID.append("before the commit")
        )
        committed = time.monotonic()
        assert await handle.result(timeout=limit(5)) == "committed"
        assert time.monotonic() - committed < limit(2)
        assert SAID == ["first", "before the commit", "committed"]
        job = await handle.get()
        assert (job.status, job.attempts) == ("completed", 1)


@pytest.mark.parametrize("kind", KINDS)
async def test_rollback_never_runs(kind: str, app: Fencepost, say: Job[[str], str], database_url: str) -> None:
    async with app.worker():
        [handle] = await in_transaction(kind, database_url, say, "undoing", undo="all")
        await (await say.enqueue("last")).result(timeout=5)
        with pytest.raises(JobNotFound, match="rolled back"):
            await handle.status()
        assert SAID == ["last"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_savepoint_rollback_never_runs(
    kind: str, app: Fencepost, say: Job[[str], str], database_url: str
) -> None:
    async with app.worker():
        handles = await in_transaction(kind, database_url, say, "one undone two")
        assert await handles[0].result(timeout=5) == "one"
        assert await handles[2].result(timeout=5) == "two"
        with pytest.raises(JobNotFound):
            await handles[1].status()
        assert sorted(SAID) == ["one", "two"]


@pytest.mark.parametrize("kind", KINDS)
async def test_nobody_sees_it_before_the_commit(
    kind: str, app: Fencepost, say: Job[[str], str], database_url: str
) -> None:
    """The worker's loop is blocked by nothing here: it would run the job if it could see it."""
    loop = asyncio.get_running_loop()
    seen: list[Any] = []

    def look() -> None:
        if kind in ("psycopg", "django", "sqlalchemy", "sqlalchemy session"):
            seen.append(asyncio.run_coroutine_threadsafe(count(), loop).result(5))

    async def count() -> int:
        connection = await asyncpg.connect(database_url)
        try:
            return int(await connection.fetchval("select count(*) from fencepost.jobs"))
        finally:
            await connection.close()

    await in_transaction(kind, database_url, say, "hidden", meanwhile=look)
    assert await count() == 1
    assert seen in ([], [0])


async def test_result_waits_for_the_commit(app: Fencepost, say: Job[[str], str], database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    async with app.worker():
        transaction = connection.transaction()
        await transaction.start()
        handle = await say.within(connection).enqueue("waited for")
        waiting = asyncio.create_task(handle.result(timeout=10))
        with pytest.raises(JobNotFound, match="isn't committed"):
            await handle.status()
        assert not waiting.done()
        await transaction.commit()
        assert await waiting == "waited for"
    await connection.close()


async def test_what_the_caller_has_set_doesnt_matter(app: Fencepost, say: Job[[str], str], database_url: str) -> None:
    """Codecs of JSON, row factories and classes of cursors are the caller's, and do nothing to ours."""
    words = 'a "word" with : colons, %s percents, $1 and \\ Zoë'
    connection = await asyncpg.connect(database_url)
    for kind in ("json", "jsonb"):
        await connection.set_type_codec(kind, schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    await say.within(connection).enqueue(words)
    await connection.close()

    def sync() -> None:
        options: list[dict[str, Any]] = [{"row_factory": rows.dict_row}, {"cursor_factory": psycopg.RawCursor}]
        for option in options:
            with psycopg.connect(database_url, **option) as connection:
                say.within(connection).enqueue_sync(words)
        with of_sqlalchemy(database_url) as connection:
            say.within(connection).enqueue_sync(words)

    await asyncio.to_thread(sync)
    async with await psycopg.AsyncConnection.connect(database_url, row_factory=rows.dict_row) as other:
        await say.within(other).enqueue(words)
    async with app.worker():
        async for job in app.jobs():
            assert await app.handle(job.id).result(timeout=5) == words
    assert [words] * 5 == SAID


async def test_a_key_conflict_leaves_the_callers_transaction_alive(
    app: Fencepost, say: Job[[str], str], database_url: str
) -> None:
    keyed = say.options(idempotency_key="once")
    async with of_sqlalchemy_async(database_url) as connection:
        first = await keyed.within(connection).enqueue("one")
        again = await keyed.within(connection).enqueue("one")
        assert (again.id, again.effect) == (first.id, "replayed")
        with pytest.raises(KeyConflict):
            await keyed.within(connection).enqueue("another")
        await connection.execute(sqlalchemy.text("create table done (id int)"))
    assert await first.status() == "pending"


async def test_several_types_in_one_transaction(app: Fencepost, say: Job[[str], str], database_url: str) -> None:
    @app.job
    async def add(a: int, b: int = 1) -> int:
        return a + b

    async with app.worker():
        async with of_sqlalchemy_async(database_url) as connection:
            handles = await app.enqueue_many([say.call("x"), add.options(priority=3).call(1)], within=connection)
        assert [await handle.result(timeout=5) for handle in handles] == ["x", 2]

        def sync() -> list[Any]:
            with of_psycopg(database_url) as connection:
                return list(app.enqueue_many_sync([add.call(1, b=5), say.call("y")], within=connection))

        assert [await handle.result(timeout=5) for handle in await asyncio.to_thread(sync)] == [6, "y"]


async def test_without_a_transaction_it_is_stored_at_once(
    app: Fencepost, say: Job[[str], str], database_url: str
) -> None:
    connection = await asyncpg.connect(database_url)
    handles = [await say.within(connection).enqueue("asyncpg")]
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as other:
        handles.append(await say.within(other).enqueue("psycopg async"))
        assert await handles[-1].status() == "pending"

    def sync() -> None:
        with psycopg.connect(database_url, autocommit=True) as sync_connection:
            handles.append(say.within(sync_connection).enqueue_sync("psycopg"))
            # Nothing is left to be committed or rolled back.
            sync_connection.rollback()
        with django_connection(database_url) as of_a_view:
            handles.append(say.within(of_a_view).enqueue_sync("django"))
            of_a_view.close()

    await asyncio.to_thread(sync)
    assert [await handle.status() for handle in handles] == ["pending"] * 4
    async with app.worker():
        results = [await handle.result(timeout=5) for handle in handles]
    assert results == ["asyncpg", "psycopg async", "psycopg", "django"]
    await connection.close()


async def test_an_error_of_the_driver_passes_through(say: Job[[str], str], database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    transaction = connection.transaction()
    await transaction.start()
    with pytest.raises(asyncpg.PostgresSyntaxError):
        await connection.execute("nonsense")
    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        await say.within(connection).enqueue("x")
    await transaction.rollback()
    await connection.close()


async def test_a_wrong_argument_touches_nothing(say: Job[[str], str], database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    async with connection.transaction():
        with pytest.raises(InvalidJob, match="word: must be a string"):
            await say.within(connection).enqueue(7)  # type: ignore[arg-type]
        assert await connection.fetchval("select 1") == 1
    await connection.close()


async def test_async_and_sync_taken_for_each_other(say: Job[[str], str], database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    with pytest.raises(WrongConnection, match=r"asyncpg connection is async: use `await"):
        say.within(connection).enqueue_sync("x")
    await connection.close()
    with of_psycopg(database_url) as other, pytest.raises(WrongConnection, match="not async: use enqueue_sync"):
        await say.within(other).enqueue("x")


class _Pool:
    pass


def test_what_is_no_connection_is_refused_with_advice(database_url: str) -> None:
    sqlite = sqlalchemy.create_engine("sqlite://")
    with sqlite.connect() as connection, pytest.raises(WrongConnection, match="to sqlite can't be used"):
        adapt(connection)
    with pytest.raises(WrongConnection, match=r"engine\.begin\(\) as connection"):
        adapt(sqlite)
    sqlite.dispose()
    with pytest.raises(WrongConnection, match=r"async with engine\.begin"):
        adapt(create_async_engine("postgresql+asyncpg://"))
    with of_psycopg(database_url) as connection:
        assert adapt(connection).in_transaction is False
        with connection.cursor() as cursor, pytest.raises(WrongConnection, match="cursor's connection"):
            adapt(cursor)
        connection.execute("select 1")
        assert adapt(connection).in_transaction is True
    with django_connection(database_url) as connection:
        with connection.cursor() as cursor, pytest.raises(WrongConnection, match=r"django\.db\.connection"):
            adapt(cursor)
        assert adapt(connection).in_transaction is False
    from django.db.backends.sqlite3.base import DatabaseWrapper

    with pytest.raises(WrongConnection, match="Django connection to sqlite"):
        adapt(DatabaseWrapper({"NAME": ":memory:"}, "lite"))
    for nothing in (None, "postgresql://x", 3, _Pool()):
        with pytest.raises(WrongConnection, match="pass an asyncpg or psycopg 3"):
            adapt(nothing)


async def test_a_pool_is_refused_with_advice(database_url: str) -> None:
    async with asyncpg.create_pool(database_url, min_size=1, max_size=1) as pool:
        with pytest.raises(WrongConnection, match=r"pool\.acquire"):
            adapt(pool)


async def test_autocommit_is_no_transaction_whatever_sqlalchemy_calls_it(database_url: str) -> None:
    """`complete_in` asks: what is written after it must be undone with it."""
    engine = sqlalchemy_async.create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(database_url)
    )
    for level, expected in (("AUTOCOMMIT", False), ("READ COMMITTED", True), ("SERIALIZABLE", True)):
        async with engine.connect() as connection:
            assert await adapt(connection).has_transaction() is False
            await connection.execution_options(isolation_level=level)
            async with connection.begin():
                assert await adapt(connection).has_transaction() is expected
        set_engine = engine.execution_options(isolation_level=level)
        session = sqlalchemy_async.AsyncSession(set_engine)
        assert await adapt(session).has_transaction() is False
        async with session, session.begin():
            assert await adapt(session).has_transaction() is expected
        scoped = sqlalchemy_async.async_scoped_session(
            sqlalchemy_async.async_sessionmaker(set_engine), asyncio.current_task
        )
        async with scoped.begin():
            assert await adapt(scoped).has_transaction() is expected
        await scoped.remove()
    await engine.dispose()
    psycopg_async = sqlalchemy_async.create_async_engine(
        "postgresql+psycopg://", async_creator=lambda: psycopg.AsyncConnection.connect(database_url, autocommit=True)
    )
    async with psycopg_async.begin() as connection:
        assert await adapt(connection).has_transaction() is False
    await psycopg_async.dispose()


def test_autocommit_is_no_transaction_in_a_sync_connection_either(database_url: str) -> None:
    engine = engine_of(database_url)
    for level, expected in (("AUTOCOMMIT", False), ("READ COMMITTED", True)):
        with engine.connect().execution_options(isolation_level=level) as connection:
            assert adapt(connection).has_transaction_sync() is False
            with connection.begin():
                assert adapt(connection).has_transaction_sync() is expected
        set_engine = engine.execution_options(isolation_level=level)
        with orm.Session(set_engine) as session, session.begin():
            assert adapt(session).has_transaction_sync() is expected
        scoped = orm.scoped_session(orm.sessionmaker(set_engine))
        with scoped.begin():
            assert adapt(scoped).has_transaction_sync() is expected
        scoped.remove()
    engine.dispose()
    # Nobody told SQLAlchemy.
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(database_url, autocommit=True)
    )
    with engine.begin() as connection:
        assert adapt(connection).has_transaction_sync() is False
    engine.dispose()
    with of_psycopg(database_url) as connection:
        assert adapt(connection).has_transaction_sync() is False
        connection.execute("select 1")
        assert adapt(connection).has_transaction_sync() is True


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "READ COMMITTED"])
async def test_a_job_is_not_completed_in_autocommit(app: Fencepost, database_url: str, level: str) -> None:
    engine = engine_of(database_url)
    refused: list[str] = []

    @app.job(max_attempts=1)
    def work(context: Context) -> None:
        with engine.connect().execution_options(isolation_level=level) as connection, connection.begin():
            try:
                context.complete_in_sync(connection, level)
            except WrongConnection as error:
                refused.append(str(error))
                raise

    async with app.worker():
        handle = await work.enqueue()
        if level == "AUTOCOMMIT":
            with pytest.raises(JobFailed):
                await handle.result(timeout=5)
            assert "isn't in autocommit" in refused[0]
        else:
            await handle.result(timeout=5)
            job = await handle.get()
            assert (job.status, bytes(job.result or b"")) == ("completed", b'"READ COMMITTED"')
    engine.dispose()
