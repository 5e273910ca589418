"""Plain functions run in threads: they hold up nobody, and what can't be stopped stays counted."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from fencepost.domain.context import Context
from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending
from tests.patience import limit

from .support import Bench, Overlap, Tally, wait_until

pytestmark = pytest.mark.anyio


def job_threads() -> int:
    return sum(thread.name.startswith("fencepost-job") for thread in threading.enumerate())


async def test_a_blocking_function_does_not_hold_up_the_loop(bench: Bench) -> None:
    let_go = threading.Event()
    main = threading.get_ident()
    idents: list[int] = []

    @bench.job("blocking")
    def blocking(context: Context, payload: Any) -> str:
        idents.append(threading.get_ident())
        assert let_go.wait(10)
        return "unblocked"

    @bench.job("quick")
    async def quick(context: Context, payload: Any) -> None:
        await asyncio.sleep(0.001)

    blocked = await bench.enqueue_many("blocking", [None] * 3)
    worker = await bench.start(workers=4)
    await wait_until(lambda: len(idents) == 3, 3)
    quick_ones = await bench.enqueue_many("quick", [None] * 50)
    assert {job.status for job in await bench.finished(*quick_ones)} == {Status.COMPLETED}
    assert worker.running == 3
    let_go.set()
    assert {bytes(job.result or b"") for job in await bench.finished(*blocked)} == {b'"unblocked"'}
    assert main not in idents
    await wait_until(lambda: job_threads() == 0, 2)


async def test_a_thread_that_outlives_its_time_out_keeps_its_slot(
    bench: Bench, unblock: Callable[[threading.Event], threading.Event]
) -> None:
    let_go = unblock(threading.Event())

    @bench.job("blocking")
    def blocking(context: Context, payload: Any) -> str:
        if context.attempt == 1:
            let_go.wait(20)
            raise OSError("much too late")
        return "second attempt"

    tally = Tally()
    job_id = await bench.enqueue("blocking", timeout_seconds=0.2)
    worker = await bench.start(workers=2, events=tally)
    began = time.monotonic()
    await wait_until(lambda: tally.endings[Ending.TIMED_OUT, Status.PENDING] == 1, 3)
    assert time.monotonic() - began < limit(0.2 + 0.5), "the outcome waited for the thread"
    job = await bench.ended(job_id)
    assert (job.status, job.attempts) == (Status.COMPLETED, 2)
    # The second one's thread may have a last step to go.
    await wait_until(lambda: (worker.running, tally.stuck_now, job_threads()) == (1, 1, 1), 2)
    let_go.set()
    await wait_until(lambda: worker.running == 0 and job_threads() == 0, 2)
    assert tally.stuck_now == 0
    assert (await bench.get(job_id)).status is Status.COMPLETED
    assert [past.outcome for past in await bench.history(job_id)] == ["timed_out"]


async def test_the_number_of_threads_is_bounded_by_the_slots(
    bench: Bench, unblock: Callable[[threading.Event], threading.Event]
) -> None:
    let_go = unblock(threading.Event())
    overlap = Overlap()

    @bench.job("blocking")
    def blocking(context: Context, payload: Any) -> None:
        with overlap:
            let_go.wait(20)

    tally = Tally()
    # Once they are let go, any of them may happen to take longer than its time.
    ids = await bench.enqueue_many("blocking", [None] * 20, timeout_seconds=0.05, max_attempts=20)
    worker = await bench.start(workers=4, events=tally)
    await wait_until(lambda: (tally.stuck_now, overlap.now) == (4, 4), 3)
    await asyncio.sleep(0.3)
    assert (worker.running, job_threads(), overlap.most, tally.starts) == (4, 4, 4, 4)
    let_go.set()
    assert {job.status for job in await bench.finished(*ids)} == {Status.COMPLETED}
    assert overlap.most == 4
    await wait_until(lambda: tally.stuck_now == 0, 2)
