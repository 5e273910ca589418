"""
Processes that fork with connections open, and callers whose keys come in opposite orders.

What a pooler does to sessions, prepared statements and locks is in tests/pooler. The lock of the migrations belongs to
a transaction (tests/migrations), so nothing can strand it.
"""

from __future__ import annotations

import asyncio
import textwrap

import asyncpg
import httpx2
import pytest

from fencepost import Fencepost
from fencepost.store.enqueueing import encode_jobs
from tests.library.test_loops import SCRIPT, count, run
from tests.store.support import Connection, job

pytestmark = pytest.mark.anyio

FORKS = """
import multiprocessing, warnings
warnings.simplefilter('ignore', DeprecationWarning)

def pids():
    async def look():
        client = await app._producer.client()
        async with client.database._acquire() as connection:
            rows = await connection.fetch(
                "select pid from pg_stat_activity where datname = current_database() and application_name = 'fencepost'"
            )
            return {row['pid'] for row in rows}
    return app.wait(look())

def work(name):
    for _ in range(25):
        store.enqueue_sync(name)
    app.wait(app.close())
"""
"""`pids`: the sessions that the parent has; a child that hurt one of them would show."""

WAYS = {
    "os.fork": """
        children = []
        for number in range(4):
            child = os.fork()
            if not child:
                work(f'child')
                os._exit(0)
            children.append(child)
        for _ in range(25):
            store.enqueue_sync('parent')
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    """,
    "multiprocessing": """
        with multiprocessing.get_context('fork').Pool(4) as pool:
            done = pool.map_async(work, ['child'] * 4, chunksize=1)
            for _ in range(25):
                store.enqueue_sync('parent')
            done.get(60)
    """,
    "a child that never uses it": """
        child = os.fork()
        if not child:
            import gc
            gc.collect()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        for _ in range(4):
            work('child')
        for _ in range(25):
            store.enqueue_sync('parent')
    """,
}


@pytest.mark.parametrize("way", WAYS)
async def test_children_and_their_parent_enqueue_side_by_side(way: str, database_url: str) -> None:
    """A child says nothing on its parent's connections, encrypted or not: they are there, and work, afterwards."""
    body = textwrap.dedent(WAYS[way])
    check = "assert before <= pids(), 'a connection of the parent is gone'\n" if "never" not in way else ""
    script = SCRIPT + FORKS + "store.enqueue_sync('parent')\nbefore = pids()\n" + body + check
    await asyncio.to_thread(run, script, database_url)
    assert await count(database_url, "child") == 100
    assert await count(database_url, "parent") == 26


async def test_bulks_with_keys_in_opposite_orders_by_every_door(
    app: Fencepost, api: httpx2.AsyncClient, database_url: str, sql: Connection
) -> None:
    """The same 200 keys, ascending and descending, at the same time: no error, and one job a key, 4 times over."""
    store = app.declare("echo")

    async def by_library(keys: list[str]) -> None:
        await app.enqueue_many([store.options(idempotency_key=key).call({}) for key in keys])

    async def by_http(keys: list[str]) -> None:
        answer = await api.post("/jobs", json=[{"type": "echo", "idempotency_key": key} for key in keys])
        assert answer.status_code in (200, 201), answer.text

    async def by_sql(keys: list[str]) -> None:
        connection = await asyncpg.connect(database_url)
        try:
            jobs = [job(type="echo", payload=b"{}", max_attempts=5, idempotency_key=key) for key in keys]
            await connection.fetchval("select fencepost.enqueue_jobs($1::jsonb)", encode_jobs(jobs))
        finally:
            await connection.close()

    for number in range(4):
        for door in (by_library, by_http, by_sql):
            keys = [f"{number} {door.__name__} {key:03}" for key in range(200)]
            await asyncio.gather(door(keys), door(keys[::-1]))
    assert await sql.fetchval("select count(*) from fencepost.jobs") == 4 * 3 * 200


@pytest.mark.slow
async def test_two_transactions_of_callers_that_meet_head_on(app: Fencepost, database_url: str) -> None:
    """PostgreSQL ends one of them, and says why; the other commits, and its jobs are there."""
    store = app.declare("echo")
    # Neither is to make the queue, which the other would wait for.
    await store.enqueue({})
    one, other = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    first = [(one, "a"), (other, "b")]
    begun = [connection.transaction() for connection, _ in first]
    for transaction in begun:
        await transaction.start()
    for connection, key in first:
        await store.options(idempotency_key=key).within(connection).enqueue({})
    # Each ends its own, whichever is chosen: the other waits for that.
    answers = await asyncio.gather(
        _then_end(store.options(idempotency_key="b").within(one).enqueue({}), begun[0]),
        _then_end(store.options(idempotency_key="a").within(other).enqueue({}), begun[1]),
        return_exceptions=True,
    )
    failed = [answer for answer in answers if isinstance(answer, BaseException)]
    assert [type(error) for error in failed] == [asyncpg.DeadlockDetectedError]
    assert await one.fetchval("select count(*) from fencepost.jobs") == 3
    for connection in (one, other):
        await connection.close()


async def _then_end(work: object, transaction: object) -> object:
    """Await *work* and commit, or roll back, so that whoever waits for it can go on."""
    try:
        answer = await work  # type: ignore[misc]
    except BaseException:
        await transaction.rollback()  # type: ignore[attr-defined]
        raise
    await transaction.commit()  # type: ignore[attr-defined]
    return answer
