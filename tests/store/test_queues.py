"""Queues and lanes: made by their first job, paused and resumed, counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending
from fencepost.errors import DatabaseUnavailable, QueueNotFound
from fencepost.store import queues as queues_module
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore

from .support import Connection, claim, completed, ended, expire, job

pytestmark = pytest.mark.anyio


@pytest.fixture
async def other_queues(database_url: str) -> AsyncIterator[Queues]:
    """Those of another process."""
    database = Database(database_url, connections=8)
    await database.open()
    hints = Hints(database)
    yield Queues(database, hints)
    await hints.close()
    await database.close()


async def test_one_name_is_one_queue_however_many_make_it(
    queues: Queues, other_queues: Queues, sql: Connection
) -> None:
    ids = await asyncio.gather(
        *(door.ensure("new", priority) for priority in range(8) for door in (queues, other_queues))
    )
    assert len(set(ids)) == 1
    assert await sql.fetchval("select count(*) from fencepost.queues") == 1
    assert await sql.fetchval("select count(*) from fencepost.lanes") == 8


async def test_names_that_only_look_alike_are_different_queues(queues: Queues) -> None:
    names = ["a", "A", "a.b", "a:b", "a-b", "a_b", "x" * 99, "x" * 100, "y" * 63 + "1", "y" * 63 + "2"]
    assert len({await queues.ensure(name, 0) for name in names}) == len(names)
    assert {state.name for state in await queues.overview()} == set(names)


async def test_a_queue_without_a_first_job_is_none(queues: Queues) -> None:
    for operation in (queues.id_of, queues.state, queues.pause, queues.resume):
        with pytest.raises(QueueNotFound, match="'nowhere'"):
            await operation("nowhere")
    assert await queues.overview() == []


async def test_nothing_is_claimed_while_paused(
    jobs: Jobs, queues: Queues, other_queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    """By no door: not new jobs, not retried, recovered or scheduled ones."""
    await jobs.enqueue([job(max_attempts=1), *(job() for _ in range(4))])
    queue_id = await queues.id_of("default")
    running = await claim(worker_store, queue_id, slots=3)
    paused = await queues.pause("default")
    assert paused.paused_at is not None
    await jobs.enqueue([job(), job(delay_seconds=0.001)])
    # Running jobs go on: one fails for good and is retried by hand, one is recovered, one is released.
    dead = next(lease for lease in running if lease.max_attempts == 1)
    one, two = [lease for lease in running if lease is not dead]
    await worker_store.settle(queue_id, [ended(dead, Ending.FAILED, Status.DEAD_LETTER)])
    await jobs.retry(dead.id)
    await expire(sql, one.id)
    await worker_store.recover(queue_id, after=None, max_rows=10)
    await worker_store.settle(queue_id, [ended(two, Ending.RELEASED, Status.PENDING)])
    await sql.fetch("select pg_sleep(0.002)")
    for _ in range(3):
        claimed = await worker_store.claim(queue_id, slots=50, cursors={}, lease_seconds=60, aging_seconds=60)
        assert (claimed.leases, claimed.lanes, claimed.snapshot) == ([], [], None)
    assert (await worker_store.due_queues({}))[1] == []
    assert (await other_queues.state("default")).depth == 7, "another process sees it paused, and full"
    assert (await queues.pause("default")).paused_at == paused.paused_at, "the first time is kept"

    resumed = await other_queues.resume("default")
    assert resumed.paused_at is None
    assert len(await claim(worker_store, queue_id, slots=50)) == 7
    assert (await other_queues.resume("default")).paused_at is None


async def test_pausing_one_queue_leaves_the_others(jobs: Jobs, queues: Queues, worker_store: WorkerStore) -> None:
    await jobs.enqueue([job(queue="a"), job(queue="b")])
    await queues.pause("a")
    assert await claim(worker_store, await queues.id_of("a")) == []
    assert len(await claim(worker_store, await queues.id_of("b"))) == 1


async def test_the_overview_counts(jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection) -> None:
    await jobs.enqueue([job(queue="b", priority=number % 2) for number in range(10)])
    await jobs.enqueue([job(queue="b", delay_seconds=3600.0), job(queue="a", delay_seconds=3600.0)])
    leases = await claim(worker_store, await queues.id_of("b"), slots=4)
    await worker_store.settle(leases[0].queue_id, [completed(leases[0])])
    await sql.execute(
        "update fencepost.pending set run_at = now() - interval '90 seconds' "
        "where id = (select id from fencepost.pending where run_at < now() limit 1)"
    )
    a, b = await queues.overview()
    assert (a.name, a.depth, a.in_flight, a.oldest_due_seconds, a.paused_at) == ("a", 1, 0, None, None)
    assert (b.name, b.depth, b.in_flight) == ("b", 7, 3)
    assert b.oldest_due_seconds is not None
    assert 90 <= b.oldest_due_seconds < 120
    alone = await queues.state("b")
    assert (alone.name, alone.depth, alone.in_flight) == ("b", 7, 3)


async def test_counting_stops_somewhere(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues_module, "COUNT_LIMIT", 20)
    await jobs.enqueue([job() for _ in range(60)])
    await claim(worker_store, await queues.id_of("default"), slots=30)
    state = await queues.state("default")
    assert (state.depth, state.in_flight) == (20, 20)


async def test_the_queues_in_which_something_runs(jobs: Jobs, queues: Queues, worker_store: WorkerStore) -> None:
    await jobs.enqueue([job(queue=f"q{number}") for number in range(5)])
    assert await worker_store.leased_queues() == []
    busy = [await queues.id_of("q1"), await queues.id_of("q4")]
    for queue_id in busy:
        await claim(worker_store, queue_id)
    assert sorted(await worker_store.leased_queues()) == sorted(busy)


async def test_workers_come_and_go(worker_store: WorkerStore, sql: Connection) -> None:
    for _ in range(2):
        await worker_store.heartbeat(host="h", pid=1, version="v", slots=4)
    await sql.execute(
        "insert into fencepost.workers (id, host, pid, version, slots, heartbeat_at) "
        "values (gen_random_uuid(), 'silent', 1, 'v', 1, now() - interval '2 minutes')"
    )
    assert await sql.fetchval("select count(*) from fencepost.workers") == 2
    assert await sql.fetchval("select heartbeat_at > started_at from fencepost.workers where host = 'h'")
    await worker_store.forget(silence_seconds=60)
    assert await sql.fetchval("select count(*) from fencepost.workers") == 0


KEYED: dict[str, Any] = {"idempotency_key": "k"}
ENQUEUES = [[{}], [{}, {}], [KEYED], [KEYED, {}]]


async def restore(sql: Connection, what: str) -> None:
    """Have the database be as it was before "mail" and its lane were made; or another queue be in its place since."""
    queue_id = await sql.fetchval("select id from fencepost.queues where name = 'mail'")
    if what != "queue":
        await sql.execute("delete from fencepost.lanes where queue_id = $1", queue_id)
    if what != "lane":
        await sql.execute("delete from fencepost.queues where id = $1", queue_id)
    if what == "id":
        await sql.execute(
            "insert into fencepost.queues (id, name) overriding system value values ($1, 'other')", queue_id
        )
        await sql.execute("insert into fencepost.lanes (queue_id, priority) values ($1, 0)", queue_id)


@pytest.mark.parametrize("what", ["lane", "queue", "id"])
@pytest.mark.parametrize("fields", ENQUEUES, ids=["one", "plain", "keyed", "several"])
async def test_a_job_is_stored_where_a_claim_looks_although_its_place_is_gone(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection, what: str, fields: list[dict[str, Any]]
) -> None:
    """As after a restore of an earlier backup, beside a process that goes on."""
    await jobs.enqueue([job(queue="mail")])
    await sql.execute("delete from fencepost.pending; delete from fencepost.jobs")
    await restore(sql, what)
    stored = await jobs.enqueue([job(queue="mail", **some) for some in fields])
    claimed = await claim(worker_store, await queues.id_of("mail"), slots=9)
    assert {(one.id, one.queue) for one in claimed} == {(one.id, "mail") for one in stored}
    assert {one.effect for one in stored} == {"created"}
    assert await sql.fetchval("select count(*) from fencepost.jobs") == len(fields)


async def test_many_callers_whose_place_is_gone_all_have_their_jobs_stored(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    await jobs.enqueue([job(queue="mail"), job(queue="other")])
    await sql.execute("delete from fencepost.pending; delete from fencepost.jobs")
    await restore(sql, "lane")
    names = ["mail", "other"] * 50
    await asyncio.gather(
        *(
            jobs.enqueue([job(queue=name, **({"idempotency_key": str(number)} if number % 3 else {}))])
            for number, name in enumerate(names)
        )
    )
    for name in ("mail", "other"):
        assert len(await claim(worker_store, await queues.id_of(name), slots=100)) == 50


async def test_a_single_connection_will_do_where_a_place_is_gone(database_url: str, sql: Connection) -> None:
    database = Database(database_url, connections=1)
    await database.open()
    hints = Hints(database)
    jobs = Jobs(database, Queues(database, hints), hints)
    await jobs.enqueue([job(queue="mail")])
    await restore(sql, "lane")
    await jobs.enqueue([job(queue="mail", **fields) for fields in (KEYED, {})])
    await hints.close()
    await database.close()


@pytest.mark.parametrize("fields", ENQUEUES, ids=["one", "plain", "keyed", "several"])
async def test_a_place_that_goes_again_at_once_is_told(
    jobs: Jobs, sql: Connection, fields: list[dict[str, Any]]
) -> None:
    await jobs.enqueue([job(queue="mail")])
    await sql.execute("create rule no_lane as on insert to fencepost.lanes do instead nothing")
    await restore(sql, "lane")
    with pytest.raises(DatabaseUnavailable, match="nothing was stored"):
        await jobs.enqueue([job(queue="mail", **some) for some in fields])
    assert await sql.fetchval("select count(*) from fencepost.jobs") == 1


async def test_what_is_known_of_a_queue_is_what_the_database_says(queues: Queues, sql: Connection) -> None:
    await queues.ensure("mail", 0)
    await restore(sql, "queue")
    for operation in (queues.id_of, queues.state, queues.pause, queues.resume):
        with pytest.raises(QueueNotFound, match="'mail'"):
            await operation("mail")
