"""A test database's clock: what follows it, for whom, and what doesn't."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from fencepost import Context, Fencepost, Snooze, Status, UniqueBy
from fencepost.domain.ids import first_id_at
from fencepost.testing import Kit
from tests.worker.support import wait_until, within

from .conftest import MakeKit

pytestmark = pytest.mark.anyio

MOMENT = datetime(2031, 7, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def work(app: Fencepost) -> Any:
    @app.job(unique=None)
    async def work(n: int = 0) -> int:
        return n

    return work


async def times(sql: asyncpg.Connection, query: str) -> set[datetime]:
    return {row[0] for row in await sql.fetch(query)}


async def test_every_time_that_is_stored_is_the_clocks(
    app: Fencepost, work: Any, make_kit: MakeKit, database_url: str
) -> None:
    sql = await asyncpg.connect(database_url)
    async with make_kit(app) as kit:
        assert kit.freeze(MOMENT) == kit.now() == MOMENT
        await work.enqueue(1)
        await work.options(idempotency_key="k").enqueue(2)
        await work.enqueue_many([work.call(3), work.options(queue="other").call(4)])
        await asyncio.to_thread(work.enqueue_sync, 5)
        async with sql.transaction():
            await work.within(sql).enqueue(6)
        await sql.execute("""select fencepost.enqueue('work', '{"n": 7}')""")
        for column in ("pending.run_at", "jobs.created_at", "idempotency_keys.created_at", "queues.created_at"):
            table, name = column.split(".")
            assert await times(sql, f"select {name} from fencepost.{table}") == {MOMENT}, column
        seen: set[datetime] = set()

        async def declared() -> bool:
            return bool(await times(sql, "select declared_at from fencepost.job_types"))

        @app.job
        async def look() -> None:
            # Its worker does that beside its jobs, and leaves it when they are done.
            await wait_until(declared, 5)
            seen.update(await times(sql, "select started_at from fencepost.leases"))
            seen.update(await times(sql, "select heartbeat_at from fencepost.workers"))

        await look.enqueue()
        assert (await kit.drain()).completed == 8
        assert seen == {MOMENT}
        assert await times(sql, "select started_at from fencepost.finished") == {MOMENT}
        assert await times(sql, "select finished_at from fencepost.finished") == {MOMENT}
        assert await times(sql, "select declared_at from fencepost.job_types") == {MOMENT}
    await sql.close()


async def test_ids_and_partitions_keep_the_real_time(
    app: Fencepost, work: Any, make_kit: MakeKit, database_url: str
) -> None:
    sql = await asyncpg.connect(database_url)
    before = await times(sql, "select starts_at from fencepost.partitions")
    async with make_kit(app) as kit:
        kit.freeze(MOMENT)
        handle = await work.enqueue(1)
        in_sql = await sql.fetchval("select fencepost.enqueue('work', '{}')")
        assert (await kit.drain()).completed == 2
        now = datetime.now(UTC)
        for one in (handle.id, in_sql):
            assert first_id_at(now - timedelta(minutes=1)) < one < first_id_at(now + timedelta(minutes=1))
        assert await times(sql, "select starts_at from fencepost.partitions") == before
        assert await sql.fetchval("select count(*) from fencepost.jobs_default") == 0
    await sql.close()


async def test_delays_snoozes_and_moments_come_when_the_clock_says(
    app: Fencepost, work: Any, make_kit: MakeKit
) -> None:
    @app.job
    async def patient(context: Context) -> int:
        if kit.now() < MOMENT + timedelta(hours=3):
            raise Snooze(3600)
        return context.attempt

    async with make_kit(app) as kit:
        kit.freeze(MOMENT)
        delayed = await work.options(delay=timedelta(hours=2)).enqueue(1)
        at = await work.options(run_at=MOMENT + timedelta(days=30)).enqueue(2)
        snoozing = await patient.enqueue()
        assert (await kit.drain()).snoozed == 1
        kit.travel(hours=1, minutes=59, seconds=59, milliseconds=999)
        assert (await kit.drain()).completed == 0
        kit.travel(milliseconds=1)
        report = await kit.drain()
        assert (report.completed, report.snoozed) == (1, 0)
        assert await delayed.status() is Status.COMPLETED
        kit.travel(hours=1)
        await kit.drain()
        assert await snoozing.result(timeout=5) == 1
        kit.travel(days=29)
        assert (await kit.drain()).completed == 0
        kit.travel(days=1)
        assert (await kit.drain()).completed == 1
        assert await at.result(timeout=5) == 2


async def test_expiry_and_unique_periods_pass(app: Fencepost, make_kit: MakeKit) -> None:
    @app.job(unique=UniqueBy("n", until="period", period=3600))
    async def rarely(n: int) -> None: ...

    @app.job(expires=600)
    async def soon() -> None: ...

    async with make_kit(app) as kit:
        kit.freeze()
        first = await rarely.enqueue(1)
        expiring = await soon.enqueue()
        assert (await rarely.enqueue(1)).effect == "skipped"
        kit.travel(minutes=59)
        assert (await rarely.enqueue(1)).id == first.id
        report = await kit.drain()
        assert (report.completed, report.cancelled) == (1, 1)
        assert await expiring.status() is Status.CANCELLED
        kit.travel(minutes=2)
        assert (await rarely.enqueue(1)).effect == "created"


async def test_a_lease_runs_out_and_its_job_is_taken_back(
    app: Fencepost, work: Any, make_kit: MakeKit, database_url: str
) -> None:
    """A worker that died in another process: its lease is in the past after some travel."""
    sql = await asyncpg.connect(database_url)
    async with make_kit(app) as kit:
        kit.freeze()
        handle = await work.enqueue(1)
        await sql.execute(
            "with gone as (delete from fencepost.pending p returning p.*) "
            "insert into fencepost.leases "
            "(id, queue_id, priority, attempt, token, worker_id, started_at, locked_until) "
            "select g.id, g.queue_id, g.priority, 1, 1, gen_random_uuid(), $1, $2 from gone g",
            kit.now(),
            kit.now() + timedelta(minutes=1),
        )
        assert (await kit.drain()).attempts == ()
        kit.travel(minutes=2)
        [ran] = (await kit.drain()).attempts
        assert (ran.attempt, ran.status) == (2, Status.COMPLETED)
        assert await handle.status() is Status.COMPLETED
    await sql.close()


async def test_what_ended_stays_however_far_the_clock_goes(app: Fencepost, work: Any, make_kit: MakeKit) -> None:
    async with make_kit(app) as kit:
        kit.freeze()
        handle = await work.enqueue(1)
        await kit.drain()
        kit.travel(days=400)
        await work.enqueue(2)
        assert (await kit.drain()).completed == 1
        assert kit.job(handle.id).status is Status.COMPLETED


async def test_a_clock_that_was_put_forward_runs_on_and_one_that_stands_does_not(
    app: Fencepost, work: Any, make_kit: MakeKit
) -> None:
    async with make_kit(app) as kit:
        ahead = kit.travel(days=2)
        assert timedelta(0) < kit.now() - ahead < timedelta(minutes=1)
        assert timedelta(days=1, hours=23) < ahead - datetime.now(UTC) < timedelta(days=2, minutes=1)
        frozen = kit.freeze()
        assert kit.now() == frozen >= ahead
        kit.travel(seconds=5)
        assert kit.now() == frozen + timedelta(seconds=5)
        back = kit.freeze(MOMENT - timedelta(days=3650))
        assert back == MOMENT - timedelta(days=3650), "freeze may also go back"
        await work.enqueue(1)
        assert (await kit.drain()).completed == 1
        kit.unfreeze()
        assert abs(kit.now() - datetime.now(UTC)) < timedelta(minutes=1)


async def test_moments_that_cannot_be_meant_are_refused(app: Fencepost, make_kit: MakeKit) -> None:
    async with make_kit(app) as kit:
        with pytest.raises(ValueError, match="no time zone"):
            kit.freeze(datetime(2030, 1, 1))
        with pytest.raises(ValueError, match="positive time"):
            kit.travel(hours=-1)
        assert abs(kit.now() - datetime.now(UTC)) < timedelta(minutes=1)


async def test_connections_that_were_open_before_follow(app: Fencepost, work: Any, make_kit: MakeKit) -> None:
    """Prepared statements of the app's pool, and of a worker that runs all the time."""
    async with make_kit(app) as kit:
        for _ in range(10):
            await work.enqueue(1)
        async with app.worker():
            kit.freeze(MOMENT)
            handle = await work.options(delay=3600).enqueue(2)
            [waiting] = kit.enqueued(work, 2)
            assert waiting.run_at == MOMENT + timedelta(hours=1)
            kit.travel(hours=1)
            # The worker sleeps until its poll, as it would for a clock that jumps.
            await within(10, handle.result())


async def test_two_schemas_of_one_database_share_a_clock(database_url: str, make_kit: MakeKit) -> None:
    one, two = (Fencepost("postgresql://nobody@127.0.0.1:1/nowhere", schema=name) for name in ("fencepost", "second"))

    @two.job
    async def work() -> None: ...

    async with make_kit(one) as kit:
        kit.freeze(MOMENT)
        async with Kit(two, database_url) as other:
            await work.enqueue()
            assert [waiting.run_at for waiting in other.enqueued()] == [MOMENT]
            assert (await other.drain()).completed == 1
