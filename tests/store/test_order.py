"""Which job is next: the order of one claim, priorities that age, lanes that merge."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fencepost.store.database import HOT_SESSION, Database
from fencepost.store.jobs import Jobs
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore

from .support import Connection, claim, connect, job

pytestmark = pytest.mark.anyio

WAITED = st.integers(0, 500)
PRIORITY = st.sampled_from([0, 1, 2, 5, 50, 100])


def key(aging: float, priority: int, waited: float) -> tuple[float, float, int]:
    """Sorts the most urgent first: the level gained by waiting, and the priority, both by hand."""
    if aging == 0:
        return (-priority, -waited, 0)
    return (-(priority + waited / aging), -priority, 0)


@contextmanager
def bench(url: str) -> Iterator[tuple[asyncio.Runner, Connection, WorkerStore]]:
    """A loop that outlives the examples of a property."""
    with asyncio.Runner() as runner:
        sql = runner.run(connect(url))
        database = Database(url, connections=1, session=HOT_SESSION)
        runner.run(database.open())
        try:
            yield runner, sql, WorkerStore(database, uuid.uuid4())
        finally:
            runner.run(database.close())
            runner.run(sql.close())


@pytest.mark.slow
def test_a_claim_takes_what_a_sort_would_take(database_url: str) -> None:
    with bench(database_url) as (runner, sql, store):
        runner.run(sql.execute("insert into fencepost.queues (name) values ('q')"))

        @settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(
            waiting=st.lists(st.tuples(PRIORITY, WAITED), min_size=1, max_size=14, unique_by=lambda one: one[1]),
            aging=st.sampled_from([0, 1, 7, 60, 3600]),
            slots=st.integers(1, 6),
            held=st.sets(st.integers(0, 13), max_size=6),
        )
        def check(waiting: list[tuple[int, int]], aging: int, slots: int, held: set[int]) -> None:
            runner.run(_check(sql, store, waiting, aging, slots, held))

        check()


async def _check(
    sql: Connection, store: WorkerStore, waiting: list[tuple[int, int]], aging: int, slots: int, held: set[int]
) -> None:
    """Those at the places in *held* are in somebody's open transaction meanwhile."""
    await sql.execute("delete from fencepost.jobs; delete from fencepost.pending; delete from fencepost.leases")
    await sql.execute("delete from fencepost.lanes")
    ids = {uuid.uuid4(): one for one in waiting}
    await sql.executemany(
        "insert into fencepost.lanes values (1, $1) on conflict do nothing", [(priority,) for priority, _ in waiting]
    )
    await sql.executemany(
        "insert into fencepost.jobs values ($1, 1, 'work', $2, '{}', 3, null, null, null, now())",
        [(job_id, priority) for job_id, (priority, _) in ids.items()],
    )
    await sql.executemany(
        "insert into fencepost.pending "
        "values ($1, 1, $2, 0, 0, timestamptz '2025-01-01 00:00+00' - $3 * interval '1 second')",
        [(job_id, priority, float(waited)) for job_id, (priority, waited) in ids.items()],
    )

    def urgency(job_id: uuid.UUID) -> tuple[float, float, int]:
        return key(aging, *ids[job_id])

    locked = [one for place, one in enumerate(ids) if place in held]
    await sql.execute("begin")
    await sql.execute("select from fencepost.pending where id = any($1) for update", locked)
    left = set(ids) - set(locked)
    while left:
        found = await claim(store, 1, slots=slots, aging_seconds=aging, contended=bool(locked))
        taken = {lease.id for lease in found}
        assert len(taken) == min(slots, len(left))
        chosen = sorted(left, key=urgency)[: len(taken)]
        # Jobs of equal urgency may go in either order.
        assert sorted(urgency(one)[0] for one in taken) == pytest.approx(sorted(urgency(one)[0] for one in chosen))
        left -= taken
    assert await claim(store, 1, slots=slots, aging_seconds=aging, contended=bool(locked)) == []
    await sql.execute("rollback")


@pytest.mark.parametrize("aging", [0.0, 60.0])
async def test_within_a_lane_the_first_due_goes_first(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, aging: float
) -> None:
    made = [job() for _ in range(30)]
    for start in range(0, 30, 10):
        await jobs.enqueue(made[start : start + 10])
    queue_id = await queues.id_of("default")
    taken = [lease.id for _ in range(30) for lease in await claim(worker_store, queue_id, aging_seconds=aging)]
    stored = {one.id: position for position, one in enumerate(made)}
    assert [stored[one] // 10 for one in taken] == [0] * 10 + [1] * 10 + [2] * 10


async def test_strict_priority_without_aging(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    low = [job(priority=0) for _ in range(3)]
    await jobs.enqueue(low)
    await sql.execute("update fencepost.pending set run_at = now() - interval '30 days'")
    high = job(priority=1)
    await jobs.enqueue([high])
    [lease] = await claim(worker_store, await queues.id_of("default"), aging_seconds=0)
    assert lease.id == high.id


async def test_nothing_starves(jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection) -> None:
    """A job of priority 0 waits for those of priority p that come within p agings after it, and for no others."""
    low = job(priority=0)
    await jobs.enqueue([low])
    queue_id = await queues.id_of("default")
    # In minutes, so that the seconds that this takes are nothing.
    aging, priority, overtaken = 600.0, 5, 0
    for minute in range(100):
        # A minute passes: everything that waits has waited a minute longer; then a fresh urgent job comes.
        await sql.execute("update fencepost.pending set run_at = run_at - interval '1 minute'")
        await jobs.enqueue([job(priority=priority)])
        [lease] = await claim(worker_store, queue_id, aging_seconds=aging)
        if lease.id == low.id:
            break
        overtaken += 1
        assert minute < 99
    assert 49 <= overtaken <= 51


async def test_an_urgent_job_passes_a_backlog(jobs: Jobs, queues: Queues, worker_store: WorkerStore) -> None:
    await jobs.enqueue([job(priority=0) for _ in range(5_000)])
    urgent = job(priority=100)
    await jobs.enqueue([urgent])
    [lease] = await claim(worker_store, await queues.id_of("default"))
    assert lease.id == urgent.id


async def test_scheduled_jobs_stand_in_nobodys_way(jobs: Jobs, queues: Queues, worker_store: WorkerStore) -> None:
    later = datetime.now(UTC) + timedelta(days=7)
    await jobs.enqueue([job(priority=number % 3, run_at=later) for number in range(3_000)])
    due = [job(priority=number % 2) for number in range(4)]
    await jobs.enqueue(due)
    queue_id = await queues.id_of("default")
    claimed = await worker_store.claim(queue_id, slots=10, cursors={}, lease_seconds=60, aging_seconds=60)
    assert {lease.id for lease in claimed.leases} == {one.id for one in due}
    assert {lane.next_run_at for lane in claimed.lanes} == {later}, "and it says when to come again"
    assert all(lane.rest is None for lane in claimed.lanes)


async def test_a_scheduled_job_is_due_when_its_time_comes(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    await jobs.enqueue([job(delay_seconds=3600.0)])
    queue_id = await queues.id_of("default")
    assert await claim(worker_store, queue_id) == []
    await sql.execute("update fencepost.pending set run_at = clock_timestamp() + interval '20 milliseconds'")
    claimed = await worker_store.claim(queue_id, slots=1, cursors={}, lease_seconds=60, aging_seconds=60)
    assert claimed.leases == []
    assert claimed.lanes[0].next_run_at is not None
    await sql.fetch(
        "select pg_sleep(greatest(0, extract(epoch from $1 - clock_timestamp())))", claimed.lanes[0].next_run_at
    )
    assert len(await claim(worker_store, queue_id)) == 1


async def test_queues_do_not_touch_each_other(jobs: Jobs, queues: Queues, worker_store: WorkerStore) -> None:
    await jobs.enqueue([job(queue=f"q{number % 3}") for number in range(30)])
    queue_id = await queues.id_of("q1")
    leases = await claim(worker_store, queue_id, slots=100)
    assert {lease.queue for lease in leases} == {"q1"}
    assert len(leases) == 10
    assert (await jobs.audit())["pending"] == 20


async def test_many_lanes_at_once(jobs: Jobs, queues: Queues, worker_store: WorkerStore) -> None:
    made = [job(priority=priority) for priority in range(101) for _ in range(3)]
    random.Random(5).shuffle(made)
    await jobs.enqueue(made)
    priorities = {one.id: one.priority for one in made}
    queue_id = await queues.id_of("default")
    taken: list[Any] = []
    while leases := await claim(worker_store, queue_id, slots=20, aging_seconds=86_400):
        taken += [priorities[lease.id] for lease in leases]
    assert taken == sorted((one.priority for one in made), reverse=True)


async def test_which_queues_have_something_due(jobs: Jobs, queues: Queues, worker_store: WorkerStore) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    await jobs.enqueue([job(queue="due"), job(queue="due", priority=5, run_at=later), job(queue="later", run_at=later)])
    await jobs.enqueue([job(queue="paused"), job(queue="empty")])
    await queues.pause("paused")
    await claim(worker_store, await queues.id_of("empty"))
    snapshot, found = await worker_store.due_queues({})
    names = {await queues.id_of(name): name for name in ("due", "later", "paused", "empty")}
    assert {names[one.queue_id]: (one.due, one.next_run_at) for one in found} == {
        "due": (True, later),
        "later": (False, later),
    }
    assert snapshot.xmax > 0


async def test_the_first_pending_of_each_lane(jobs: Jobs, queues: Queues, worker_store: WorkerStore) -> None:
    stored = await jobs.enqueue([job(priority=priority) for priority in (0, 0, 5)])
    await jobs.enqueue([job(priority=9, delay_seconds=60.0)])
    queue_id = await queues.id_of("default")
    found = await worker_store.first_pending(queue_id, {})
    assert {lane: place.run_at for lane, place in found.items()} == {
        0: min(stored[0].run_at, stored[1].run_at),
        5: stored[2].run_at,
    }
    behind = await worker_store.first_pending(queue_id, {0: max(found.values()), 5: found[5]})
    assert behind.keys() <= {0, 5}
    assert behind[5] == found[5], "the place itself is looked at: ids are all above zero"


async def test_what_was_stored_while_it_is_looked_is_due_to_a_drain(
    jobs: Jobs, database: Database, worker_store: WorkerStore
) -> None:
    """
    drain                           a handler
    begins to look
                                    enqueues a job, due at once; it commits, and ends
    takes its snapshot: the job is
    there, and nothing else is
    """
    async with database.transaction() as session:
        await session.fetch("drain_state", worker_id=worker_store.worker_id, queues=None)
        await jobs.enqueue([job()])
        [state] = await session.fetch("drain_state", worker_id=worker_store.worker_id, queues=None)
    assert state["due"], "it would have stopped with this job left"
