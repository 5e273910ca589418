"""How many jobs run at once, which, and in what order."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from fencepost.domain.context import Context
from fencepost.domain.job import Status
from tests.patience import limit

from .support import Bench, Claims, Overlap, wait_until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_no_more_than_workers_jobs_run_at_once(bench: Bench, kind: str) -> None:
    overlap = Overlap()

    async def in_loop(context: Context, payload: Any) -> None:
        with overlap:
            await asyncio.sleep(0.002)

    def in_thread(context: Context, payload: Any) -> None:
        with overlap:
            time.sleep(0.002)

    bench.app.register("work", in_loop if kind == "async" else in_thread)
    ids = await bench.enqueue_many("work", [None] * 150)
    await bench.start(workers=3)
    jobs = await bench.finished(*ids, seconds=15)
    assert {(job.status, job.attempts) for job in jobs} == {(Status.COMPLETED, 1)}
    assert (overlap.most, overlap.entered, overlap.now) == (3, 150, 0)


async def test_every_lease_is_a_job_that_runs(bench: Bench) -> None:
    """Nothing is claimed ahead: a lease that waits in memory runs down for nothing."""
    running: set[Any] = set()
    release = asyncio.Semaphore(0)

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        running.add(context.id)
        await release.acquire()
        running.discard(context.id)

    worker = bench.make(workers=3)
    claims = Claims(worker)
    ids = await bench.enqueue_many("work", [None] * 12)
    await worker.start()
    done = 0
    while done < len(ids):
        expected = min(3, len(ids) - done)
        await wait_until(lambda: len(running) == expected, 3)  # noqa: B023
        leased = {row["id"] for row in await bench.sql("select id from fencepost.leases")}
        # One that has just returned may have its lease for as long as its outcome is being written.
        assert running <= leased
        assert len(leased) <= 3 + 2
        for _, slots, claim in claims.made:
            assert len(claim.leases) <= slots <= 3
        release.release()
        release.release()
        done += 2
        await wait_until(lambda: bench._count_finished(ids, done), 3)  # noqa: B023
    for _ in range(3):
        release.release()
    await bench.finished(*ids)
    assert Counter(lease.id for lease in claims.leases) == Counter(ids)


async def test_three_workers_run_two_hundred_jobs_exactly_once_each(bench: Bench) -> None:
    runs: list[Any] = []
    overlap = Overlap()
    everybody = asyncio.Event()

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        with overlap:
            runs.append(context.id)
            await everybody.wait()
            await asyncio.sleep(0.003)

    workers = [bench.make(workers=4) for _ in range(3)]
    claims = [Claims(worker) for worker in workers]
    await asyncio.gather(*(worker.start() for worker in workers))
    # One that doesn't hear yet may come when all is done.
    await wait_until(lambda: all(worker._listener.is_connected for worker in workers), 3)
    batches = await asyncio.gather(*(bench.enqueue_many("work", [None] * 20) for _ in range(10)))
    ids = [job_id for batch in batches for job_id in batch]
    # If one of them did nothing, this would prove little.
    await wait_until(lambda: all(one.leases for one in claims), 5, "each worker to have some")
    everybody.set()
    jobs = await bench.finished(*ids, seconds=15)
    assert {(job.status, job.attempts, job.lease_token) for job in jobs} == {(Status.COMPLETED, 1, 1)}
    assert Counter(runs) == Counter(ids)
    assert Counter(lease.id for one in claims for lease in one.leases) == Counter(ids)
    assert overlap.most <= 12
    await bench.audit()


async def test_queues_share_the_slots_and_none_starves(bench: Bench) -> None:
    order: list[str] = []

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        order.append(context.queue)
        await asyncio.sleep(0.001)

    busy = await bench.enqueue_many("work", [None] * 300, queue="busy")
    quiet = [
        job_id
        for number in range(5)
        for job_id in await bench.enqueue_many("work", [None] * 4, queue=f"quiet-{number}")
    ]
    await bench.start(workers=4)
    await bench.finished(*busy, *quiet, seconds=15)
    last_quiet = max(place for place, queue in enumerate(order) if queue != "busy")
    # In fair turns the quiet ones take 20 of about the first 6 × 4 starts of each.
    assert last_quiet < 80, f"the last job of a quiet queue started as number {last_quiet}"
    assert Counter(order)["busy"] == 300


async def test_more_queues_than_slots_all_get_their_turn(bench: Bench) -> None:
    started: list[str] = []

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        started.append(context.queue)

    ids = [await bench.enqueue("work", queue=f"q{number}") for number in range(40)]
    await bench.start(workers=2)
    await bench.finished(*ids)
    assert sorted(started) == sorted(f"q{number}" for number in range(40))


async def test_the_most_urgent_goes_first(bench: Bench) -> None:
    order: list[str] = []

    @bench.job("work", payload=str)
    async def work(context: Context, payload: str) -> None:
        order.append(payload)

    ids = []
    for name, priority in (("low 1", 0), ("high 1", 9), ("middle", 5), ("low 2", 0), ("high 2", 9), ("top", 100)):
        ids.append(await bench.enqueue("work", name, priority=priority))
    await bench.start(workers=1)
    await bench.finished(*ids)
    assert order == ["top", "high 1", "high 2", "middle", "low 1", "low 2"]


async def test_with_several_slots_the_most_urgent_starts_first_too(bench: Bench) -> None:
    order: list[int] = []

    @bench.job("work", payload=int)
    async def work(context: Context, payload: int) -> None:
        order.append(payload)
        await asyncio.sleep(0.02)

    ids = [await bench.enqueue("work", priority, priority=priority) for priority in (1, 7, 3, 5, 9, 2)]
    await bench.start(workers=3)
    await bench.finished(*ids)
    assert order[:3] == [9, 7, 5]
    assert order[3:] == [3, 2, 1]


@pytest.mark.parametrize(("aging", "first"), [(60.0, "waited"), (0.0, "urgent")])
async def test_a_job_that_waited_gains_priority(bench: Bench, aging: float, first: str) -> None:
    order: list[str] = []

    @bench.job("work", payload=str)
    async def work(context: Context, payload: str) -> None:
        order.append(payload)

    waited = await bench.enqueue("work", "waited", priority=0)
    await bench.sql("update fencepost.pending set run_at = run_at - interval '11 minutes' where id = $1", waited)
    urgent = await bench.enqueue("work", "urgent", priority=10)
    await bench.start(workers=1, priority_aging_seconds=aging)
    await bench.finished(waited, urgent)
    assert order[0] == first


@pytest.mark.slow
async def test_a_steady_stream_of_urgent_jobs_does_not_starve_the_others(bench: Bench) -> None:
    order: list[str] = []
    stop = False

    @bench.job("urgent")
    async def urgent(context: Context, payload: Any) -> None:
        order.append("urgent")
        await asyncio.sleep(0.005)
        if not stop:
            await bench.enqueue("urgent", priority=3)

    @bench.job("low")
    async def low(context: Context, payload: Any) -> None:
        order.append("low")

    # It runs before they come: they would gain on the others while it starts.
    worker = await bench.start(workers=1, priority_aging_seconds=0.4)
    await wait_until(lambda: worker._listener.is_connected, 3)
    await bench.enqueue_many("urgent", [None] * 5, priority=3)
    began = time.monotonic()
    # 3 levels at 0.4 s each: after 1.2 s the low ones are ahead of what came later.
    lows = await bench.enqueue_many("low", [None] * 5, priority=0)
    await bench.finished(*lows, seconds=5)
    took = time.monotonic() - began
    stop = True
    assert 0.9 <= took <= limit(2.5)
    assert order.index("low") > 5, "the stream was not urgent at all"


async def test_zero_workers_is_refused_nowhere_and_runs_nothing(bench: Bench) -> None:
    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        pass

    job_id = await bench.enqueue("work")
    worker = bench.make(workers=0)
    claims = Claims(worker)
    await worker.start()
    worker.wake([await bench.queue_id()])
    await asyncio.sleep(0.05)
    assert claims.made == []
    assert (await bench.get(job_id)).status is Status.PENDING
