"""Completing a job in somebody else's transaction, progress, and the types of job that are known."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import asyncpg
import msgspec
import pytest

from fencepost.domain.job import Lease, Status
from fencepost.domain.outcome import Ending
from fencepost.store.completion import complete_sql, encode
from fencepost.store.database import Database
from fencepost.store.job_types import JobTypes
from fencepost.store.jobs import Jobs
from fencepost.store.queues import Queues
from fencepost.store.statements import load
from fencepost.store.workers import LeaseBusy, WorkerStore

from .support import Connection, claim, completed, connect, contents, ended, expire, job, waits_for_a_lock

COMPLETE = complete_sql("fencepost").replace(":attempt", "$1")


class Ground:
    """Jobs, a worker's statements, and a handler's own connection."""

    def __init__(self, jobs: Jobs, queues: Queues, store: WorkerStore, sql: Connection, own: Connection) -> None:
        self.jobs, self.queues, self.store, self.sql, self.own = jobs, queues, store, sql, own

    async def leased(self, count: int = 1, **fields: Any) -> list[Lease]:
        await self.jobs.enqueue([job(**fields) for _ in range(count)])
        return await claim(self.store, await self.queues.id_of("default"), slots=count)

    async def complete(self, lease: Lease, result: bytes | None = None) -> bool:
        return bool(await self.own.fetchval(COMPLETE, encode(lease, result)) == "true")

    async def status(self, lease: Lease) -> Status:
        return (await self.jobs.get(lease.id)).status


@pytest.fixture
async def ground(jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection, database_url: str) -> Any:
    own = await connect(database_url)
    yield Ground(jobs, queues, worker_store, sql, own)
    await own.close()
    counts = await jobs.audit()
    assert counts["jobs"] == counts["pending"] + counts["leases"] + counts["finished"]


async def test_it_is_completed_when_the_transaction_commits_and_not_before(ground: Ground) -> None:
    [lease] = await ground.leased()
    transaction = ground.own.transaction()
    await transaction.start()
    await ground.own.execute("create table effect (n int)")
    assert await ground.complete(lease, b'{"a": [1, null]}')
    assert await ground.status(lease) is Status.PROCESSING, "to everybody else it still runs"
    assert await ground.store.completed(lease.queue_id, [(lease.id, lease.token)]) == set()
    await transaction.commit()
    done = await ground.jobs.get(lease.id)
    assert (done.status, done.attempts, done.lease_token) == (Status.COMPLETED, 1, lease.token)
    assert msgspec.json.decode(done.result or b"") == {"a": [1, None]}
    assert done.started_at is not None
    assert done.finished_at is not None
    assert await ground.jobs.attempts(lease.id) == []
    others = [(lease.id, lease.token + 1), (uuid.uuid4(), lease.token)]
    assert await ground.store.completed(lease.queue_id, [(lease.id, lease.token), *others]) == {(lease.id, lease.token)}


async def test_a_rollback_leaves_everything_as_it_was(ground: Ground) -> None:
    [lease] = await ground.leased()
    before = await contents(ground.sql)
    transaction = ground.own.transaction()
    await transaction.start()
    assert await ground.complete(lease)
    await transaction.rollback()
    assert await contents(ground.sql) == before
    assert await ground.store.settle(lease.queue_id, [completed(lease)]) == [Status.COMPLETED]


@pytest.mark.parametrize("result", [None, b"null"])
async def test_no_result_is_no_result(ground: Ground, result: bytes | None) -> None:
    [lease] = await ground.leased()
    assert await ground.complete(lease, result)
    assert (await ground.jobs.get(lease.id)).result is None


async def test_a_lost_lease_is_told_and_the_callers_transaction_goes_on(ground: Ground) -> None:
    [lease] = await ground.leased()
    await expire(ground.sql, lease.id)
    await ground.store.recover(lease.queue_id, after=None, max_rows=10)
    [newer] = await claim(ground.store, lease.queue_id)
    before = await contents(ground.sql)
    async with ground.own.transaction():
        assert not await ground.complete(lease)
        assert await ground.own.fetchval("select 1") == 1
    assert await contents(ground.sql) == before
    assert await ground.complete(newer)
    assert not await ground.complete(newer), "a second time there is nothing left"


async def test_it_works_whatever_the_callers_session_is_like(ground: Ground, database_url: str) -> None:
    [lease] = await ground.leased()
    own = await connect(
        database_url, search_path="nowhere", enable_indexscan="off", DateStyle="SQL, DMY", TimeZone="Asia/Kathmandu"
    )
    await own.execute("create temp table leases (id uuid, attempt jsonb)")
    assert await own.fetchval(COMPLETE, encode(lease, b"1")) == "true"
    await own.close()
    assert await ground.status(lease) is Status.COMPLETED


async def test_a_schema_of_another_name(empty_url: str) -> None:
    statement = complete_sql('odd "name"')
    assert statement == 'select cast("odd ""name""".complete(cast(cast(:attempt as text) as jsonb)) as text)'


async def test_while_it_is_open_nobody_waits_for_it(ground: Ground) -> None:
    """Renewals, progress, sweeps and outcomes written apart pass it over; what else they are told to do, they do."""
    mine, other = await ground.leased(2)
    queue_id = mine.queue_id
    keys = [(mine.id, mine.token), (other.id, other.token)]
    transaction = ground.own.transaction()
    await transaction.start()
    assert await ground.complete(mine)
    async with asyncio.timeout(5):
        extended = {one.id: one.busy for one in await ground.store.extend(queue_id, keys, lease_seconds=0.001)}
        assert extended == {mine.id: True, other.id: False}
        assert await ground.store.write_progress(queue_id, dict.fromkeys(keys, b'{"fraction":0.5}')) == {keys[0]}
        await ground.sql.execute(
            "update fencepost.leases set started_at = now() - interval '1 h', locked_until = now() where id = $1",
            other.id,
        )
        recovery = await ground.store.recover(queue_id, after=None, max_rows=10)
        assert [one for one, _, _ in recovery.jobs] == [other.id]
        with pytest.raises(LeaseBusy):
            await ground.store.settle_apart(queue_id, ended(mine, Ending.TIMED_OUT, Status.PENDING))
    await transaction.rollback()
    assert await ground.store.settle_apart(queue_id, ended(mine, Ending.TIMED_OUT, Status.PENDING)) is Status.PENDING
    assert [one.outcome for one in await ground.jobs.attempts(mine.id)] == ["timed_out"]
    assert await ground.store.settle_apart(queue_id, completed(mine)) is None


async def test_a_sweep_never_gets_past_an_expired_lease_in_an_open_transaction(ground: Ground) -> None:
    [lease] = await ground.leased()
    await expire(ground.sql, lease.id)
    transaction = ground.own.transaction()
    await transaction.start()
    assert await ground.complete(lease)
    first = await ground.store.recover(lease.queue_id, after=None, max_rows=10)
    assert first.jobs == []
    await transaction.rollback()
    second = await ground.store.recover(lease.queue_id, after=first.seen_at, max_rows=10)
    assert second.jobs == [(lease.id, 1, Status.PENDING)]


async def test_a_completion_that_comes_while_a_settlement_is_under_way_waits_and_is_told(
    ground: Ground, hot_database: Database
) -> None:
    [lease] = await ground.leased()
    async with hot_database.transaction() as session:
        await WorkerStore(session, uuid.uuid4()).settle(lease.queue_id, [completed(lease)])  # type: ignore[arg-type]
        completing = asyncio.get_running_loop().create_task(ground.complete(lease))
        await waits_for_a_lock(ground.sql)
    assert not await completing
    assert await ground.status(lease) is Status.COMPLETED


async def test_a_snapshot_from_before_the_claim_has_no_such_lease(ground: Ground) -> None:
    """Repeatable read: the caller hears that the lease is lost, rather than completing what it can't see."""
    transaction = ground.own.transaction(isolation="repeatable_read")
    await transaction.start()
    await ground.own.fetchval("select count(*) from fencepost.jobs")
    [lease] = await ground.leased()
    assert not await ground.complete(lease)
    await transaction.rollback()
    transaction = ground.own.transaction(isolation="repeatable_read")
    await transaction.start()
    await ground.own.fetchval("select count(*) from fencepost.jobs")
    await ground.store.extend(lease.queue_id, [(lease.id, lease.token)], lease_seconds=600)
    with pytest.raises(asyncpg.SerializationError):
        await ground.complete(lease)
    await transaction.rollback()
    assert await ground.status(lease) is Status.PROCESSING


# Progress.


async def test_progress_is_under_the_token_and_goes_with_the_lease(ground: Ground) -> None:
    [lease] = await ground.leased()
    key, word = (lease.id, lease.token), b'{"fraction":0.25,"message":"a quarter"}'
    assert await ground.store.write_progress(lease.queue_id, {(lease.id, lease.token - 1): word}) == set()
    assert await _progress(ground.sql, lease) is None
    both = {key: word, (lease.id, lease.token + 1): b'{"fraction":1}'}
    assert await ground.store.write_progress(lease.queue_id, both) == set()
    assert await _progress(ground.sql, lease) == {"fraction": 0.25, "message": "a quarter"}
    assert await ground.store.write_progress(lease.queue_id + 1, {key: b'{"fraction":1}'}) == set()
    await ground.store.settle(lease.queue_id, [ended(lease, Ending.FAILED, Status.PENDING)])
    [again] = await claim(ground.store, lease.queue_id)
    assert await _progress(ground.sql, again) is None, "the next attempt begins at nothing"
    assert await ground.store.write_progress(lease.queue_id, {key: word}) == set()
    assert await _progress(ground.sql, again) is None


async def test_progress_touches_no_index(ground: Ground) -> None:
    """Once the rows have spread over pages with room for their next versions."""
    leases = await ground.leased(100)

    async def write(steps: int, total: int) -> tuple[int, int]:
        for step in range(steps):
            words = {(lease.id, lease.token): msgspec.json.encode({"fraction": step / steps}) for lease in leases}
            assert await ground.store.write_progress(leases[0].queue_id, words) == set()
        async with asyncio.timeout(10):
            while (counts := await updates())[0] < total:  # noqa: ASYNC110 - the server counts a little later
                await asyncio.sleep(0.02)
        return counts

    async def updates() -> tuple[int, int]:
        # In the connections that write: one that is left alone keeps its counts to itself for ten seconds.
        lines = ground.store.database._lines
        await asyncio.gather(*(lines.fetch(flush, [], is_broken=lambda _: False) for _ in range(lines.open_count)))
        await ground.sql.execute("select pg_stat_clear_snapshot()")
        row = await ground.sql.fetchrow(
            "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'fencepost.leases'::regclass"
        )
        return row["n_tup_upd"], row["n_tup_hot_upd"]

    # An older server's connections tell what they counted with their next statement, half a second later.
    version = await ground.sql.fetchval("select current_setting('server_version_num')::int")
    flush = "select pg_stat_force_next_flush()" if version >= 150000 else "select 1"
    _, hot_before = await write(20, 2_000)
    all_updates, hot = await write(50, 7_000)
    assert all_updates == 7_000
    assert hot - hot_before > 0.98 * 5_000, f"{5_000 - hot + hot_before} of 5,000 updates wrote to the indexes"


async def _progress(sql: Connection, lease: Lease) -> Any:
    text = await sql.fetchval("select progress from fencepost.leases where id = $1", lease.id)
    return None if text is None else msgspec.json.decode(text)


# Job types.


async def test_a_declared_type_is_known_for_a_while(database: Database, sql: Connection) -> None:
    types = JobTypes(database)
    assert not await types.is_declared("a", within_seconds=3600)
    await types.declare(["b", "a", "a"])
    assert await types.declared(within_seconds=3600) == {"a", "b"}
    assert await types.is_declared("a", within_seconds=3600)
    await sql.execute("update fencepost.job_types set declared_at = now() - interval '61 minutes' where name = 'a'")
    assert await types.declared(within_seconds=3600) == {"b"}
    await types.declare(["a"])
    assert await types.is_declared("a", within_seconds=10)


async def test_declaring_again_at_once_writes_nothing(database: Database, sql: Connection) -> None:
    types = JobTypes(database)
    await types.declare(["a", "b"])
    query = "select array_agg(xmin::text || ctid::text order by name) from fencepost.job_types"
    before = await sql.fetchval(query)
    for _ in range(10):
        await types.declare(["a", "b"])
    assert await sql.fetchval(query) == before


async def test_what_nobody_declared_for_a_day_is_removed_but_not_what_is_declared_just_now(
    database: Database, sql: Connection
) -> None:
    types = JobTypes(database)
    await types.declare(["old", "kept", "mine"])
    await sql.execute("update fencepost.job_types set declared_at = now() - interval '25 h' where name <> 'kept'")
    await types.declare(["mine"])
    assert await types.declared(within_seconds=1e6) == {"kept", "mine"}


async def test_many_declare_at_once(database_url: str) -> None:
    """In any order of their names, without a deadlock."""
    names = [f"type-{number}" for number in range(40)]
    databases = [Database(database_url, connections=1) for _ in range(8)]
    for database in databases:
        await database.open()
    try:
        await asyncio.gather(
            *(JobTypes(one).declare(names[place:] + names[:place]) for place, one in enumerate(databases))
        )
        assert len(await JobTypes(databases[0]).declared(within_seconds=60)) == 40
    finally:
        for database in databases:
            await database.close()


async def test_declaring_nothing(database: Database) -> None:
    await JobTypes(database).declare([])
    assert load("declare_types", "fencepost").parameters == ("names", "fresh_seconds", "kept_seconds")
