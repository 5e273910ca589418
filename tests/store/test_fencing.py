"""Tokens, attempts and leases: nobody writes for a job that is somebody else's by now."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

import pytest

from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending
from fencepost.store.database import HOT_SESSION, Database
from fencepost.store.jobs import Jobs
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore

from .support import Connection, claim, completed, contents, ended, expire, job, waits_for_a_lock

pytestmark = pytest.mark.anyio


async def test_a_stale_worker_never_overwrites_a_newer_claim(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    made = job()
    await jobs.enqueue([made])
    queue_id = await queues.id_of("default")
    [stale] = await claim(worker_store, queue_id)
    await expire(sql, made.id)
    await worker_store.recover(queue_id, after=None, max_rows=10)
    [newer] = await claim(worker_store, queue_id)
    assert newer.token > stale.token
    before = await contents(sql)
    assert await worker_store.settle(queue_id, [completed(stale)]) == [None]
    assert await worker_store.settle(queue_id, [ended(stale, Ending.FAILED, Status.PENDING)]) == [None]
    assert await worker_store.extend(queue_id, [(made.id, stale.token)], lease_seconds=60) == []
    assert await contents(sql) == before
    assert await worker_store.settle(queue_id, [completed(newer)]) == [Status.COMPLETED]


async def test_not_even_after_a_retry_by_hand_reset_the_attempts(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    made = job(max_attempts=1)
    await jobs.enqueue([made])
    queue_id = await queues.id_of("default")
    [stale] = await claim(worker_store, queue_id)
    await expire(sql, made.id)
    await worker_store.recover(queue_id, after=None, max_rows=10)
    await jobs.retry(made.id)
    [newer] = await claim(worker_store, queue_id)
    assert (newer.attempt, stale.attempt) == (1, 1), "the attempts can't tell them apart"
    before = await contents(sql)
    assert await worker_store.settle(queue_id, [completed(stale)]) == [None]
    assert await contents(sql) == before


async def test_the_token_only_grows(jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection) -> None:
    made = job(max_attempts=2)
    await jobs.enqueue([made])
    queue_id = await queues.id_of("default")
    tokens, attempts = [], []
    for step in ("release", "fail", "release", "expire", "retry", "release", "expire", "dead", "retry", "complete"):
        if step == "retry":
            await jobs.retry(made.id)
            continue
        [lease] = await claim(worker_store, queue_id)
        tokens.append(lease.token)
        attempts.append(lease.attempt)
        if step == "release":
            await worker_store.settle(queue_id, [ended(lease, Ending.RELEASED, Status.PENDING)])
        elif step == "fail":
            await worker_store.settle(queue_id, [ended(lease, Ending.FAILED, Status.PENDING)])
        elif step == "expire":
            await expire(sql, made.id)
            await worker_store.recover(queue_id, after=None, max_rows=10)
        elif step == "dead":
            await worker_store.settle(queue_id, [ended(lease, Ending.FAILED, Status.DEAD_LETTER)])
        else:
            await worker_store.settle(queue_id, [completed(lease)])
    assert tokens == [1, 2, 3, 4, 5, 6, 7, 8]
    assert attempts == [1, 1, 2, 2, 1, 1, 2, 1], "a release gives the attempt back; a retry by hand starts again"
    assert (await jobs.get(made.id)).lease_token == 8


async def test_attempts_are_counted_when_they_start(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    """A job that kills its process each time runs out of attempts all the same."""
    made = job(max_attempts=3)
    await jobs.enqueue([made])
    queue_id = await queues.id_of("default")
    for attempt in (1, 2, 3):
        [lease] = await claim(worker_store, queue_id)
        assert lease.attempt == attempt
        assert (await jobs.get(made.id)).attempts == attempt
        await expire(sql, made.id)
        recovery = await worker_store.recover(queue_id, after=None, max_rows=10)
        assert recovery.jobs == [(made.id, attempt, Status.PENDING if attempt < 3 else Status.DEAD_LETTER)]
    assert await claim(worker_store, queue_id) == []
    assert [one.outcome for one in await jobs.attempts(made.id)] == ["lost"] * 3


async def test_a_hundred_releases_cost_no_attempt(jobs: Jobs, queues: Queues, worker_store: WorkerStore) -> None:
    made = job(max_attempts=1)
    await jobs.enqueue([made])
    queue_id = await queues.id_of("default")
    for _ in range(100):
        [lease] = await claim(worker_store, queue_id)
        assert lease.attempt == 1
        await worker_store.settle(queue_id, [ended(lease, Ending.RELEASED, Status.PENDING)])
    assert (await jobs.get(made.id)).attempts == 0


async def test_a_job_is_never_claimed_while_its_lease_lasts_nor_after_it_ran_out_unrecovered(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    made = job()
    await jobs.enqueue([made])
    queue_id = await queues.id_of("default")
    [lease] = await claim(worker_store, queue_id)
    assert await claim(worker_store, queue_id) == []
    await expire(sql, made.id)
    assert await claim(worker_store, queue_id) == []
    assert await worker_store.settle(queue_id, [completed(lease)]) == [Status.COMPLETED], "late, but nobody else has it"


async def test_a_lease_lasts_as_long_as_was_asked_by_the_databases_clock(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    await jobs.enqueue([job() for _ in range(3)])
    queue_id = await queues.id_of("default")
    before = await sql.fetchval("select clock_timestamp()")
    leases = await claim(worker_store, queue_id, slots=3, lease_seconds=17)
    after = await sql.fetchval("select clock_timestamp()")
    for lease in leases:
        locked_until = (await jobs.get(lease.id)).locked_until
        assert locked_until is not None
        assert before + timedelta(seconds=17) <= locked_until <= after + timedelta(seconds=17)


async def test_a_lease_begins_when_the_job_is_locked_not_when_the_claim_was_sent(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    """
    A claim that had to wait for a table must not hand out leases that have run out.

    The sweep for expired leases rests on it too: it never looks again where it has been.
    """
    await jobs.enqueue([job()])
    queue_id = await queues.id_of("default")
    holder = sql.transaction()
    await holder.start()
    await sql.execute("lock table fencepost.pending in access exclusive mode")
    waiting = asyncio.get_running_loop().create_task(claim(worker_store, queue_id, lease_seconds=0.2))
    await waits_for_a_lock(sql)
    released_at = await sql.fetchval("select clock_timestamp() from pg_sleep(0.3)")
    await holder.commit()
    [lease] = await waiting
    locked_until = (await jobs.get(lease.id)).locked_until
    assert locked_until is not None
    assert locked_until > released_at + timedelta(seconds=0.2)


async def test_tokens_beyond_32_bits(jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection) -> None:
    made = job(max_attempts=1)
    await jobs.enqueue([made])
    queue_id = await queues.id_of("default")
    await sql.execute("update fencepost.pending set token = 1::bigint << 40")
    [lease] = await claim(worker_store, queue_id)
    assert lease.token == (1 << 40) + 1
    assert len(await worker_store.extend(queue_id, [(made.id, lease.token)], lease_seconds=60)) == 1
    assert await worker_store.settle(queue_id, [ended(lease, Ending.FAILED, Status.DEAD_LETTER)])
    await jobs.retry(made.id)
    [lease] = await claim(worker_store, queue_id)
    assert lease.token == (1 << 40) + 2


async def test_concurrent_claims_never_return_one_job_twice(jobs: Jobs, queues: Queues, database_url: str) -> None:
    made = [job(priority=number % 3) for number in range(2_000)]
    await jobs.enqueue(made)
    queue_id = await queues.id_of("default")
    databases = [Database(database_url, connections=1, session=HOT_SESSION) for _ in range(8)]
    for database in databases:
        await database.open()

    async def drain(database: Database) -> list[tuple[uuid.UUID, int]]:
        store, taken, empty = WorkerStore(database, uuid.uuid4()), [], 0
        while empty < 3:
            leases = await claim(store, queue_id, slots=7)
            taken += [(lease.id, lease.token) for lease in leases]
            empty = 0 if leases else empty + 1
        return taken

    try:
        taken = [one for drained in await asyncio.gather(*map(drain, databases)) for one in drained]
    finally:
        for database in databases:
            await database.close()
    assert len(taken) == len(set(taken)) == 2_000
    assert {job_id for job_id, _ in taken} == {one.id for one in made}
    assert (await jobs.audit())["leases"] == 2_000


async def test_settling_a_batch_writes_each_or_tells(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    await jobs.enqueue([job() for _ in range(300)])
    queue_id = await queues.id_of("default")
    leases = await claim(worker_store, queue_id, slots=300)
    lost = {lease.id for lease in leases[::3]}
    for job_id in lost:
        await expire(sql, job_id)
    await worker_store.recover(queue_id, after=None, max_rows=1_000)
    answer = await worker_store.settle(queue_id, [completed(lease, b"1") for lease in leases])
    assert answer == [None if lease.id in lost else Status.COMPLETED for lease in leases]
    assert await jobs.audit() == {"jobs": 300, "pending": 100, "leases": 0, "finished": 200}
