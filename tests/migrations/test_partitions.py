"""Time partitions: made ahead, in use at once, and never in anybody's way."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from fencepost.domain.ids import first_id_at, new_id
from fencepost.domain.job import NewJob, Status
from fencepost.domain.outcome import Ending, Outcome
from fencepost.errors import DatabaseUnavailable, SchemaMismatch
from fencepost.settings import Settings
from fencepost.store import partitions
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.migrate import migrate, prepare
from fencepost.store.partitions import PARTITIONS_AHEAD, TooMuchToMove
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore
from fencepost.worker.worker import Worker
from tests.worker.support import Tally, records, wait_until

pytestmark = pytest.mark.anyio

TABLES = ("jobs", "finished", "attempts")
MONDAY = datetime(2020, 1, 6, tzinfo=UTC)


@pytest.fixture
async def fresh(empty_url: str) -> AsyncIterator[Database]:
    """Migrated, and without any partition but the default ones."""
    database = Database(empty_url, connections=10)
    await migrate(database)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def fresh_jobs(fresh: Database) -> AsyncIterator[Jobs]:
    hints = Hints(fresh)
    yield Jobs(fresh, Queues(fresh, hints), hints)
    await hints.close()


def store_of(database: Database) -> WorkerStore:
    return WorkerStore(database, uuid.uuid4())


async def ranges(sql: Any) -> list[tuple[datetime, datetime]]:
    rows = await sql.fetch("select starts_at, ends_at from fencepost.partitions order by 1")
    return [(row["starts_at"], row["ends_at"]) for row in rows]


async def parts(sql: Any, table: str) -> list[str]:
    """The partitions of a table, with their bounds, as PostgreSQL has them."""
    rows = await sql.fetch(
        "select pg_get_expr(c.relpartbound, c.oid) as bound from pg_inherits i join pg_class c on c.oid = i.inhrelid "
        "where i.inhparent = $1::text::regclass order by 1",
        f"fencepost.{table}",
    )
    return [row["bound"] for row in rows]


async def where(sql: Any, table: str, job_id: UUID) -> str:
    """Which partition a row is in."""
    return str(
        await sql.fetchval(
            f"select c.relname from fencepost.{table} t join pg_class c on c.oid = t.tableoid where t.id = $1", job_id
        )
    )


def id_at(moment: datetime) -> UUID:
    now = int(moment.timestamp() * 1000) * 10**6
    return new_id(now_ns=lambda: now)


async def test_both_sides_agree_on_the_first_id_of_a_moment(fresh: Database, sql: Any) -> None:
    moments = [
        datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 11, 29, 15, 40, 12, 345_678, tzinfo=UTC),
        datetime(2026, 11, 29, 15, 40, 12, 345_000, tzinfo=UTC),
        datetime(2099, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        *(MONDAY + timedelta(seconds=number * 12_345_678.9) for number in range(100)),
    ]  # fmt: skip
    for moment in moments:
        assert await sql.fetchval("select fencepost.first_id_at($1)", moment) == first_id_at(moment), moment


async def test_partitions_are_made_ahead_side_by_side_and_on_the_grid(fresh: Database, sql: Any) -> None:
    made = await store_of(fresh).ensure_partitions(partition_days=3)
    assert made in (PARTITIONS_AHEAD, PARTITIONS_AHEAD + 1)
    found = await ranges(sql)
    now = await sql.fetchval("select clock_timestamp()")
    assert len(found) == made
    assert found[0][0] <= now < found[0][1], "the first is for now"
    assert found[-1][1] >= now + 3 * timedelta(days=PARTITIONS_AHEAD)
    for (_, end), (following, _) in itertools.pairwise(found):
        assert end == following
    for start, end in found:
        assert end - start == timedelta(days=3)
        assert (start - MONDAY) % timedelta(days=3) == timedelta(0)
    for table in TABLES:
        bounds = await parts(sql, table)
        assert len(bounds) == made + 1
        assert bounds[0] == "DEFAULT"
        assert bounds[1:] == [
            f"FOR VALUES FROM ('{first_id_at(start)}') TO ('{first_id_at(end)}')" for start, end in found
        ]
    assert await store_of(fresh).ensure_partitions(partition_days=3) == 0, "nothing to do the second time"


async def test_new_rows_go_where_their_time_is(fresh: Database, fresh_jobs: Jobs, sql: Any) -> None:
    await store_of(fresh).ensure_partitions(partition_days=3)
    found = await ranges(sql)
    made = [NewJob(id=id_at(start + timedelta(hours=1)), type="work", max_attempts=2) for start, _ in found]
    edge = NewJob(id=first_id_at(found[1][0]), type="work", max_attempts=2)
    outside = NewJob(id=id_at(found[-1][1] + timedelta(days=400)), type="work", max_attempts=2)
    await fresh_jobs.enqueue([*made, edge, outside])
    for one, (start, _) in zip([*made, edge], [*found, found[1]], strict=True):
        assert await where(sql, "jobs", one.id) == f"jobs_{start:%Y%m%dt%H%M}"
    assert await where(sql, "jobs", outside.id) == "jobs_default"


async def test_rows_move_out_of_the_default_when_their_range_comes(fresh: Database, fresh_jobs: Jobs, sql: Any) -> None:
    """Before any partition is made, everything lands in the default ones, and is worked on."""
    made = [NewJob(id=new_id(), type="work", max_attempts=1) for _ in range(20)]
    await fresh_jobs.enqueue(made)
    store = store_of(fresh)
    claimed = await store.claim(1, slots=10, cursors={}, lease_seconds=60, aging_seconds=60)
    await store.settle(
        1,
        [
            Outcome(id=one.id, queue_id=1, token=1, ending=Ending.FAILED, status=Status.DEAD_LETTER, error="e")
            for one in claimed.leases
        ],
    )
    before = {one.id: await fresh_jobs.get(one.id) for one in made}
    for table in TABLES:
        assert await sql.fetchval(f"select count(*) from fencepost.{table}_default") == (20 if table == "jobs" else 10)
    await store.ensure_partitions(partition_days=3)
    for table in TABLES:
        assert await sql.fetchval(f"select count(*) from fencepost.{table}_default") == 0
    assert {one.id: await fresh_jobs.get(one.id) for one in made} == before
    await fresh_jobs.retry(claimed.leases[0].id)
    assert await fresh_jobs.audit() == {"jobs": 20, "pending": 11, "leases": 0, "finished": 9}


async def test_much_in_the_default_keeps_nobody_waiting_for_long_and_is_moved_when_asked_for(
    fresh: Database, fresh_jobs: Jobs, sql: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each row takes a moment, as a million do. Unasked that is given up, once; `fencepost migrate` sees it through."""
    monkeypatch.setattr(partitions, "HOLD_SECONDS", 0.1)
    made = [NewJob(id=new_id(), type="work", max_attempts=1) for _ in range(4)]
    await fresh_jobs.enqueue(made)
    await sql.execute(
        "create function public.slow() returns trigger language plpgsql as "
        "$$ begin perform pg_sleep(0.2); return old; end $$; "
        "create trigger slow before delete on fencepost.jobs_default for each row execute function public.slow()"
    )
    with pytest.raises(TooMuchToMove, match="fencepost migrate"):
        await partitions.ensure_in_time(fresh, partition_days=3)
    await prepare(fresh, partition_days=3)
    assert await ranges(sql) == []
    assert await sql.fetchval("select count(*) from fencepost.jobs_default") == 4
    worker = Worker(fresh.dsn, {}, Settings(), Tally())
    await worker.start()
    try:
        await wait_until(lambda: records(caplog, "no partitions were made"), 5)
        assert not [state for state in worker.vitals.look() if state.trouble]
    finally:
        await worker.drain(0)
    assert len(records(caplog, "no partitions were made")) == 1
    assert await partitions.require(fresh, partition_days=3) == 1 + PARTITIONS_AHEAD
    assert await sql.fetchval("select count(*) from fencepost.jobs_default") == 0
    assert {one.id for one in made} == {row["id"] for row in await sql.fetch("select id from fencepost.jobs")}


async def test_a_row_still_uncommitted_in_the_default_makes_it_wait_for_another_time(
    fresh: Database, fresh_jobs: Jobs, sql: Any, empty_url: str
) -> None:
    """It doesn't see the row, and may not wait for it: it fails at once, whole, and works later."""
    other = await asyncpg.connect(empty_url)
    transaction = other.transaction()
    await transaction.start()
    late = new_id()
    await other.execute("insert into fencepost.jobs values ($1, 1, 'work', 0, '{}', 1, null, null, null, now())", late)
    began = asyncio.get_running_loop().time()
    with pytest.raises(DatabaseUnavailable):
        await store_of(fresh).ensure_partitions(partition_days=3)
    assert asyncio.get_running_loop().time() - began < 3
    assert await ranges(sql) == []
    assert await parts(sql, "jobs") == ["DEFAULT"]
    await transaction.commit()
    await other.close()
    assert await store_of(fresh).ensure_partitions(partition_days=3) > 0
    assert await where(sql, "jobs", late) != "jobs_default"


async def test_inserts_go_on_while_partitions_are_attached(
    fresh: Database, fresh_jobs: Jobs, sql: Any, empty_url: str
) -> None:
    """An insert may be told to try again; none is lost, none is stored twice, none fails otherwise."""
    stored: list[UUID] = []
    finished = asyncio.Event()

    async def produce() -> None:
        while not finished.is_set():
            made = NewJob(id=new_id(), type="work", max_attempts=1)
            with suppress(DatabaseUnavailable):
                await fresh_jobs.enqueue([made])
                stored.append(made.id)
            await asyncio.sleep(0)

    async def ensure(store: WorkerStore, *, days: int) -> int:
        for _ in range(5):
            with suppress(DatabaseUnavailable):
                return await store.ensure_partitions(partition_days=days)
        raise AssertionError("partitions could not be made beside inserts in five tries")

    maintenance = Database(empty_url, connections=1)
    await maintenance.open()
    producers = [asyncio.get_running_loop().create_task(produce()) for _ in range(6)]
    made = 0
    try:
        for days in (1, 1, 2, 5, 9, 20):
            enough = len(stored) + 60
            async with asyncio.timeout(20):
                while len(stored) < enough:  # noqa: ASYNC110 - the producers have no event for each job
                    await asyncio.sleep(0.005)
            made += await ensure(store_of(maintenance), days=days)
    finally:
        finished.set()
        await asyncio.wait(producers)
        await maintenance.close()
    for producer in producers:
        producer.result()
    assert made == len(await ranges(sql)) > 4
    assert await sql.fetchval("select count(*) from fencepost.jobs") == len(stored) == len(set(stored))
    counts = await fresh_jobs.audit()
    assert counts["jobs"] == counts["pending"] == len(stored)


async def test_the_width_may_change(fresh: Database, sql: Any) -> None:
    """Ranges that are there stay as they are; new ones begin where they end, and are back on the new grid soon."""
    store = store_of(fresh)
    await store.ensure_partitions(partition_days=3)
    first = await ranges(sql)
    await store.ensure_partitions(partition_days=7)
    second = await ranges(sql)
    assert second[: len(first)] == first
    await store.ensure_partitions(partition_days=1)
    assert await ranges(sql) == second, "there is enough ahead"
    await store.ensure_partitions(partition_days=30)
    found = await ranges(sql)
    assert found[: len(second)] == second
    for (_, end), (following, _) in itertools.pairwise(found):
        assert end == following
    for start, end in found[len(first) + 1 : len(second)]:
        assert end - start == timedelta(days=7)
        assert (start - MONDAY) % timedelta(days=7) == timedelta(0)
    for table in TABLES:
        assert len(await parts(sql, table)) == len(found) + 1


async def struck(sql: Any, *tables: str) -> tuple[datetime, datetime]:
    """Take the range of this moment off the list, and drop its partitions of some tables."""
    start, end = (await ranges(sql))[0]
    for table in tables:
        await sql.execute(f"drop table fencepost.{table}_{start:%Y%m%dt%H%M}")
    await sql.execute("delete from fencepost.partitions where starts_at = $1", start)
    return start, end


async def everything(sql: Any) -> list[Any]:
    """The list of ranges, and what is attached."""
    return [await ranges(sql), *[await parts(sql, table) for table in TABLES]]


@pytest.mark.parametrize("gone", [("jobs",), ("finished", "attempts"), TABLES])
async def test_a_range_that_was_struck_off_the_list_is_made_whole(
    fresh: Database, fresh_jobs: Jobs, sql: Any, gone: tuple[str, ...]
) -> None:
    """Whatever is left of its partitions, and though a later range is there."""
    store = store_of(fresh)
    await store.ensure_partitions(partition_days=3)
    before = await everything(sql)
    await struck(sql, *gone)
    late = NewJob(id=new_id(), type="work", max_attempts=1)
    await fresh_jobs.enqueue([late])
    assert await store.ensure_partitions(partition_days=3) == 1
    assert await everything(sql) == before
    assert await where(sql, "jobs", late.id) == f"jobs_{before[0][0][0]:%Y%m%dt%H%M}"
    assert await store.ensure_partitions(partition_days=3) == 0


async def test_a_partition_that_was_detached_is_attached_with_what_came_since(
    fresh: Database, fresh_jobs: Jobs, sql: Any
) -> None:
    store = store_of(fresh)
    await store.ensure_partitions(partition_days=3)
    before = await everything(sql)
    made = [NewJob(id=new_id(), type="work", max_attempts=1) for _ in range(6)]
    await fresh_jobs.enqueue(made[:3])
    start, _ = await struck(sql)
    part = f"jobs_{start:%Y%m%dt%H%M}"
    await sql.execute(f"alter table fencepost.jobs detach partition fencepost.{part}")
    await fresh_jobs.enqueue(made[3:])
    assert await store.ensure_partitions(partition_days=3) == 1
    assert await everything(sql) == before
    assert {await where(sql, "jobs", one.id) for one in made} == {part}


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ("create table {0} (id uuid, mine text)", "its columns aren't those of jobs"),
        ("create table {0} (like fencepost.jobs); alter table {0} owner to pg_monitor", "it belongs to another role"),
        (
            "create table {0} (like fencepost.jobs including constraints); insert into {0} values "
            "('00000000-0000-7000-8000-000000000001', 1, 'work', 0, '1', 1, null, null, null, now())",
            "is violated by some row",
        ),
        (
            "create table {0} partition of fencepost.jobs for values from ('{1}') to "
            "('ffffffff-0000-7000-8000-000000000001')",
            "is already a partition",
        ),
        ("create sequence {0}", "its columns aren't those of jobs"),
    ],
)
async def test_a_table_in_the_way_is_named_and_left_alone(fresh: Database, sql: Any, spoil: str, reason: str) -> None:
    store = store_of(fresh)
    await store.ensure_partitions(partition_days=3)
    [start, _], *others = await ranges(sql)
    for begin in (start, *(one for one, _ in others)):
        for table in TABLES:
            await sql.execute(f"drop table fencepost.{table}_{begin:%Y%m%dt%H%M}")
    await sql.execute("delete from fencepost.partitions")
    part = f"jobs_{start:%Y%m%dt%H%M}"
    await sql.execute(spoil.format(f"fencepost.{part}", first_id_at(start)))
    with pytest.raises(SchemaMismatch, match=f"partition {part} can't be attached: .*{reason}"):
        await prepare(fresh, partition_days=3)
    assert await ranges(sql) == []
    if reason == "is already a partition":
        await sql.execute(f"alter table fencepost.jobs detach partition fencepost.{part}")
    await sql.execute(f"alter table fencepost.{part} rename to seen")
    assert await prepare(fresh, partition_days=3) == []
    assert len(await ranges(sql)) > 0


async def test_a_gap_before_a_later_range_is_filled_exactly(fresh: Database, sql: Any) -> None:
    """Whatever the width is by now."""
    store = store_of(fresh)
    await sql.fetchval("select fencepost.ensure_partitions(interval '5 days', 4)")
    before = await ranges(sql)
    for table in TABLES:
        for start, _ in before[:2]:
            await sql.execute(f"drop table fencepost.{table}_{start:%Y%m%dt%H%M}")
    await sql.execute("delete from fencepost.partitions where starts_at < $1", before[2][0])
    assert await store.ensure_partitions(partition_days=2) > 0
    await sql.fetchval("select fencepost.ensure_partitions(interval '2 days', 12)")
    found = await ranges(sql)
    now = await sql.fetchval("select clock_timestamp()")
    assert found[0][0] <= now < found[0][1]
    for (_, end), (following, _) in itertools.pairwise(found):
        assert end == following
    for start, end in found:
        assert (start, end) in before or end - start <= timedelta(days=2)
    assert set(before[2:]) < set(found)


async def test_ten_at_once_make_each_range_once(fresh: Database, sql: Any) -> None:
    async def ensure() -> int:
        for _ in range(40):
            try:
                return await store_of(fresh).ensure_partitions(partition_days=3)
            except DatabaseUnavailable:
                continue
        raise AssertionError("forty tries were not enough")

    made = await asyncio.gather(*(ensure() for _ in range(10)))
    assert sum(made) == len(await ranges(sql)) == max(made)
    assert await sql.fetchval("select count(*) from pg_locks where locktype = 'advisory'") == 0


async def test_partitions_have_every_index_and_constraint_of_their_table(fresh: Database, sql: Any) -> None:
    await store_of(fresh).ensure_partitions(partition_days=3)
    for table in TABLES:
        rows = await sql.fetch(
            "select c.relname, (select count(*) from pg_index x where x.indrelid = c.oid) as indexes, "
            "(select count(*) from pg_constraint k where k.conrelid = c.oid and k.contype in ('p', 'c')) "
            "as constraints "
            "from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = $1::text::regclass",
            f"fencepost.{table}",
        )
        assert len({(row["indexes"], row["constraints"]) for row in rows}) == 1, table
        assert rows[0]["indexes"] >= 1
