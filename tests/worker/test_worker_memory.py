"""Many jobs later: as many tasks, threads, attempts and big objects as before."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest

from fencepost.domain.context import Context
from fencepost.domain.job import Status

from .support import Bench, wait_until

pytestmark = pytest.mark.anyio


class Big:
    """Stands for much memory in a handler's locals."""

    def __init__(self) -> None:
        self.data = bytearray(200_000)


@pytest.mark.slow
async def test_three_thousand_jobs_leave_nothing_behind(bench: Bench) -> None:
    alive: weakref.WeakSet[Big] = weakref.WeakSet()
    most_alive = 0

    def fail(context: Context, number: int) -> None:
        nonlocal most_alive
        big = Big()
        alive.add(big)
        most_alive = max(most_alive, len(alive))
        if number % 20 == 0 and context.attempt == 1:
            raise ValueError(f"{len(big.data)} bytes in my frame")

    @bench.job("async", payload=int)
    async def in_loop(context: Context, payload: int) -> None:
        fail(context, payload)

    @bench.job("sync", payload=int)
    def in_thread(context: Context, payload: int) -> None:
        fail(context, payload)

    worker = await bench.start(workers=8)
    gc.collect()

    def taken() -> tuple[int, int, int]:
        return len(asyncio.all_tasks()), threading.active_count(), len(worker._dispatcher._cursors)

    async def round_of(count: int) -> tuple[int, int, int]:
        ids = await bench.enqueue_many("async", list(range(count)))
        ids += await bench.enqueue_many("sync", list(range(count // 10)))
        assert {job.status for job in await bench.finished_quickly(ids)} == {Status.COMPLETED}
        await wait_until(lambda: worker.running == 0 and not worker._keeper._held, 3)
        await wait_until(lambda: not any("-job-" in thread.name for thread in threading.enumerate()), 3)
        await wait_until(lambda: not alive, 1, "the handlers' locals to be gone")
        return taken()

    gc.disable()
    try:
        first = await round_of(300)
        for _ in range(5):
            # Less than at first is fine: something of the start was still on its way out.
            await round_of(500)
            # Nor does a look at something that happens to be under way add up.
            await wait_until(lambda: all(now <= then for now, then in zip(taken(), first, strict=True)), 3)
    finally:
        gc.enable()
    # Those in flight, and a thread each that is just about to go.
    assert most_alive <= 8 + 8
    gc.collect()
    attempts = [found for found in gc.get_objects() if type(found).__name__ == "Attempt"]
    assert len(attempts) <= 8
    await bench.audit()


@pytest.mark.slow
async def test_payloads_of_finished_jobs_are_let_go(bench: Bench) -> None:
    marker = "x" * 100_000

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        if payload["fails"]:
            await asyncio.sleep(30)

    ids = await bench.enqueue_many("work", [{"fails": number % 2, "pad": marker} for number in range(20)])
    worker = await bench.start(workers=20)
    await wait_until(lambda: worker.running == 10 and worker._listener.is_connected, 5)
    for job_id in ids[1::2]:
        await bench.jobs.cancel(job_id)
    await bench.finished(*ids)
    await wait_until(lambda: worker.running == 0, 3)

    def held() -> list[Any]:
        gc.collect()
        return [found for found in gc.get_objects() if type(found).__name__ in ("Lease", "Attempt")]

    # The worker lets go of the last of them when it hears that their outcomes are written.
    await wait_until(lambda: not held(), 3)
