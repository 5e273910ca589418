"""When a job starts: at once, on time, and whatever hint was lost. The poll interval is 30 s unless a test says so."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from fencepost.domain.context import Context
from fencepost.domain.ids import new_id
from fencepost.domain.job import Status
from tests.patience import TIMER_SECONDS, limit

from .support import Bench, Claims, wait_until, within

pytestmark = pytest.mark.anyio

PRODUCER = """
import asyncio, json, sys
from fencepost.domain.ids import new_id
from fencepost.domain.job import NewJob
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.queues import Queues

async def main():
    database = Database(sys.argv[1])
    await database.open()
    hints = Hints(database)
    jobs = Jobs(database, Queues(database, hints), hints)
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        job = NewJob(id=new_id(), type="stamp", max_attempts=3, queue=line.strip())
        print(json.dumps(str((await jobs.enqueue([job]))[0].id)), flush=True)
    await hints.close()
    await database.close()

asyncio.run(main())
"""


def stamp_starts(bench: Bench) -> dict[Any, float]:
    """Register a job type `stamp` that notes when each of its jobs started."""
    starts: dict[Any, float] = {}

    async def stamp(context: Context, payload: Any) -> None:
        starts[context.id] = time.monotonic()

    bench.app.register("stamp", stamp)
    return starts


async def idle(bench: Bench, worker: Any) -> None:
    """Wait until a worker listens and has nothing to do."""
    await wait_until(lambda: worker._listener.is_connected, 3)
    probe = await bench.enqueue("stamp", queue="probe")
    await bench.ended(probe)
    await asyncio.sleep(0.05)


async def test_a_scheduled_job_starts_on_time(bench: Bench) -> None:
    starts = stamp_starts(bench)
    worker = await bench.start()
    await idle(bench, worker)
    began = time.monotonic()
    by_delay = await bench.enqueue("stamp", delay_seconds=0.5)
    at = await bench.value("select clock_timestamp() + interval '0.3s'")
    by_moment = await bench.enqueue("stamp", run_at=at, queue="another")
    at_once = await bench.enqueue("stamp")
    await bench.finished(by_delay, by_moment, at_once)
    assert starts[at_once] - began < limit(0.15)
    for job_id, run_at in (
        (by_delay, (await bench.get(by_delay)).created_at + timedelta(seconds=0.5)),
        (by_moment, at),
    ):
        started_at = (await bench.get(job_id)).started_at
        assert started_at is not None
        # `created_at` is read a little before `run_at` is made of the clock.
        assert timedelta(0) <= started_at - run_at <= timedelta(seconds=limit(0.1))
    assert 0.5 <= starts[by_delay] - began < limit(0.7)


async def test_a_worker_that_starts_later_still_meets_the_due_time(bench: Bench) -> None:
    starts = stamp_starts(bench)
    began = time.monotonic()
    job_id = await bench.enqueue("stamp", delay_seconds=0.6)
    enqueued_at = time.monotonic()
    await bench.start()
    await bench.ended(job_id)
    assert starts[job_id] - began >= 0.6 - TIMER_SECONDS
    assert starts[job_id] - enqueued_at <= limit(0.75)


async def test_a_due_time_passes_while_every_slot_is_taken(bench: Bench) -> None:
    starts = stamp_starts(bench)
    release = asyncio.Event()

    @bench.job("block")
    async def block(context: Context, payload: Any) -> None:
        await release.wait()

    blocking = await bench.enqueue("block")
    worker = await bench.start(workers=1)
    await bench.reached(blocking, Status.PROCESSING)
    later = await bench.enqueue("stamp", delay_seconds=0.1)
    await asyncio.sleep(0.3)
    assert later not in starts
    released_at = time.monotonic()
    release.set()
    await bench.ended(later)
    assert starts[later] - released_at < limit(0.2)
    assert worker.running == 0


async def test_a_hint_from_another_process_wakes_an_idle_worker(bench: Bench) -> None:
    starts = stamp_starts(bench)
    worker = await bench.start()
    await idle(bench, worker)
    producer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PRODUCER, bench.dsn, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert producer.stdin is not None
    assert producer.stdout is not None
    assert await within(10, producer.stdout.readline()) == b"ready\n"
    for queue in ("default", "default", "brand-new"):
        began = time.monotonic()
        producer.stdin.write(f"{queue}\n".encode())
        job_id = json.loads(await within(5, producer.stdout.readline()))
        await wait_until(lambda: any(str(one) == job_id for one in starts), 3)  # noqa: B023
        assert max(starts.values()) - began < limit(0.5)
    producer.stdin.close()
    assert await within(5, producer.wait()) == 0


async def insert_unannounced(connection: Any, job_id: Any, queue_id: int) -> None:
    """What an enqueue does, without the hint."""
    await connection.execute(
        "insert into fencepost.jobs (id, queue_id, type, priority, payload, max_attempts, created_at) "
        "values ($1, $2, 'stamp', 0, '{}', 3, clock_timestamp())",
        job_id,
        queue_id,
    )
    await connection.execute(
        "insert into fencepost.pending (id, queue_id, priority, attempts, token, run_at) "
        "values ($1, $2, 0, 0, 0, clock_timestamp())",
        job_id,
        queue_id,
    )


@pytest.mark.slow
async def test_a_job_whose_hint_was_lost_is_found_by_polling(bench: Bench) -> None:
    starts = stamp_starts(bench)
    known = await bench.enqueue("stamp")
    worker = await bench.start(poll_interval_seconds=0.3)
    await bench.ended(known)
    await wait_until(lambda: worker._listener.is_connected, 3)
    for _ in range(3):
        job_id = new_id()
        await insert_unannounced(bench._connection, job_id, await bench.queue_id())
        began = time.monotonic()
        await wait_until(lambda: job_id in starts, 2)  # noqa: B023
        assert starts[job_id] - began < limit(0.3 + 0.2)


@pytest.mark.parametrize("open_for", [0.02, 0.4])
async def test_a_job_committed_behind_the_cursor_runs_promptly(bench: Bench, open_for: float) -> None:
    """Its transaction was open while the worker took later jobs; then it committed, without a hint."""
    starts = stamp_starts(bench)
    worker = await bench.start()
    await idle(bench, worker)
    first = await bench.enqueue("stamp")
    await bench.ended(first)
    late = new_id()
    other = await asyncpg.connect(bench.dsn)
    try:
        async with other.transaction():
            await insert_unannounced(other, late, await bench.queue_id())
            passing = await bench.enqueue_many("stamp", [None] * 5)
            await bench.finished(*passing)
            worker._dispatcher.poll_now()
            await asyncio.sleep(open_for)
            await bench.ended(await bench.enqueue("stamp"))
    finally:
        await other.close()
    # One poll tells that the transaction has ended; the next one, half a minute later, is not waited for.
    worker._dispatcher.poll_now()
    await wait_until(lambda: late in starts, 3)
    assert (await bench.ended(late)).attempts == 1


@pytest.mark.parametrize("held_for", [0.02, 0.4])
async def test_a_job_whose_lock_was_given_back_runs_promptly(bench: Bench, held_for: float) -> None:
    """Somebody held the row while the worker took the jobs after it, and rolled back."""
    starts = stamp_starts(bench)
    worker = await bench.start()
    await idle(bench, worker)
    await bench.queues.ensure("default", 0)
    held = new_id()
    queue_id = await bench.queue_id()
    other = await asyncpg.connect(bench.dsn)
    try:
        await bench.queues.pause("default")
        await insert_unannounced(other, held, queue_id)
        transaction = other.transaction()
        await transaction.start()
        await other.execute("select 1 from fencepost.pending where id = $1 for update", held)
        await bench.queues.resume("default")
        passing = await bench.enqueue_many("stamp", [None] * 5)
        await bench.finished(*passing)
        worker._dispatcher.poll_now()
        await asyncio.sleep(held_for)
        await bench.ended(await bench.enqueue("stamp"))
        assert held not in starts
        await transaction.rollback()
    finally:
        await other.close()
    # One poll finds it; the next one is half a minute later.
    worker._dispatcher.poll_now()
    await wait_until(lambda: held in starts, 3)


async def test_a_paused_queue_starts_nothing_through_any_door(bench: Bench) -> None:
    release = asyncio.Event()
    runs: list[Any] = []
    broken = True

    @bench.job("work", payload=str)
    async def work(context: Context, payload: str) -> None:
        runs.append((context.id, context.attempt))
        if payload == "block":
            await release.wait()
        if payload == "fragile" and broken:
            raise OSError("broken")
        if payload == "stubborn":
            await asyncio.sleep(30)

    # One dead letter, one that will fail while paused, one that runs on, one that will be orphaned.
    dead = await bench.enqueue("work", "fragile", max_attempts=1)
    worker = bench.make(workers=8, recovery_interval_seconds=0.1)
    other = bench.make(workers=8)
    claims = Claims(worker)
    await worker.start()
    await bench.ended(dead)
    running = await bench.enqueue("work", "block")
    failing = await bench.enqueue("work", "block", max_attempts=5)
    orphan = await bench.enqueue("work", "stubborn")
    await wait_until(lambda: {running, failing, orphan} <= {job_id for job_id, _ in runs}, 5)
    queue_id = await bench.queue_id()
    began = time.monotonic()
    await bench.queues.pause("default")
    assert time.monotonic() - began < limit(1)
    started_before = list(runs)

    scheduled = await bench.enqueue("work", "plain", delay_seconds=0.2)
    plain = await bench.enqueue("work", "plain")
    await bench.jobs.retry(dead)
    await bench.expire(orphan)
    # A lease that this worker's own sweep takes back, and wakes the dispatcher for.
    await bench.sql(
        "update fencepost.leases set locked_until = clock_timestamp(), worker_id = gen_random_uuid() where id = $1",
        failing,
    )
    await bench.reached(failing, Status.PENDING)
    await other.start()
    await asyncio.sleep(0.3)
    claim = await claims.one_more(worker, queue_id)
    assert claim.leases == []
    worker._dispatcher.poll_now()
    await claims.one_more(worker, queue_id)
    # It is the queue that is paused, not the worker.
    await bench.ended(await bench.enqueue("work", "plain", queue="another"))
    assert [run for run in runs if run not in started_before] == [(runs[-1][0], 1)]
    assert await bench.statuses([scheduled, plain, dead, orphan, failing]) == {"pending": 5}

    # What runs goes on, and finishes.
    release.set()
    assert (await bench.ended(running)).status is Status.COMPLETED

    broken = False
    resumed_at = time.monotonic()
    await bench.queues.resume("default")
    await bench.finished(scheduled, plain, dead, failing)
    assert time.monotonic() - resumed_at < limit(1)
    await bench.reached(orphan, Status.PROCESSING)
    assert sum(job_id == plain for job_id, _ in runs) == 1


async def test_what_a_stopping_worker_releases_stays_where_it_is_while_paused(bench: Bench) -> None:
    starts = 0

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        nonlocal starts
        starts += 1
        await asyncio.sleep(30 if starts == 1 else 0)

    job_id = await bench.enqueue("work")
    worker = await bench.start()
    other = bench.make(poll_interval_seconds=0.05)
    claims = Claims(other)
    await wait_until(lambda: starts == 1, 5)
    await other.start()
    await bench.queues.pause("default")
    await worker.drain(0)
    assert (await bench.get(job_id)).status is Status.PENDING
    assert (await claims.one_more(other, await bench.queue_id())).leases == []
    assert starts == 1
    await bench.queues.resume("default")
    assert (await bench.ended(job_id)).attempts == 1


@pytest.mark.slow
async def test_a_pause_takes_effect_between_claims(bench: Bench) -> None:
    runs = 0

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        nonlocal runs
        runs += 1
        await asyncio.sleep(0.005)

    ids = await bench.enqueue_many("work", [None] * 400)
    await bench.start(workers=2)
    await wait_until(lambda: runs >= 20, 3)
    await bench.queues.pause("default")

    async def nothing_leased() -> bool:
        return bool(await bench.value("select count(*) from fencepost.leases") == 0)

    await wait_until(nothing_leased, 1)
    known = runs
    await asyncio.sleep(0.1)
    assert runs == known < 400
    await bench.queues.resume("default")
    await bench.finished(*ids)
    assert runs == 400


async def test_a_hint_that_means_nothing_is_ignored(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    starts = stamp_starts(bench)
    worker = await bench.start()
    await idle(bench, worker)
    channel = bench.database.channel
    for hint in (
        "",
        "due",
        "due x",
        "due 999999",
        "due 0,-1",
        "due 99999999999",
        "due 1,2147483648",
        f"due {'9' * 5000}",
        "cancel",
        "cancel 1 nobody",
        f"cancel 1 {new_id()}",
        f"cancel 99999999999 {new_id()}",
        "jump 3",
        "x" * 7000,
    ):
        await bench.value("select pg_notify($1, $2)", channel, hint)
    job_id = await bench.enqueue("stamp")
    await bench.ended(job_id)
    assert job_id in starts
    assert not [record for record in caplog.records if record.exc_info], "nothing was asked of the database"


async def test_a_queue_named_before_it_was_made_keeps_its_name(bench: Bench) -> None:
    """A hint may name a queue's id before there is such a queue."""
    queues: list[str] = []

    @bench.job("where")
    async def where(context: Context, payload: Any) -> None:
        queues.append(context.queue)

    worker = await bench.start()
    claims = Claims(worker)
    await claims.one_more(worker, 777)
    await bench.sql("insert into fencepost.queues (id, name) overriding system value values (777, 'later')")
    job_id = await bench.enqueue("where", queue="later")
    await bench.ended(job_id)
    assert queues == ["later"]
