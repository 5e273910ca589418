"""Asking for a job to stop: at once while it waits, promptly while it runs, and never beside the truth."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from fencepost.domain.context import Context
from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending
from fencepost.errors import WrongStatus
from fencepost.store.workers import WorkerStore
from fencepost.worker import executor as executor_module
from tests.patience import limit

from .support import Bench, Tally, wait_until, within

pytestmark = pytest.mark.anyio


async def test_a_pending_job_is_cancelled_at_once_and_never_runs(bench: Bench) -> None:
    ran: list[Any] = []

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        ran.append(context.id)

    now = await bench.enqueue("work")
    later = await bench.enqueue("work", delay_seconds=0.1)
    behind = await bench.enqueue("work")
    assert await bench.jobs.cancel(now) is Status.CANCELLED
    assert await bench.jobs.cancel(later) is Status.CANCELLED
    with pytest.raises(WrongStatus):
        await bench.jobs.cancel(now)
    await bench.start()
    assert (await bench.ended(behind)).status is Status.COMPLETED
    await asyncio.sleep(0.2)
    assert ran == [behind]
    assert (await bench.get(now)).attempts == 0


async def test_a_running_handler_is_cancelled_promptly(bench: Bench) -> None:
    cleaned_up = asyncio.Event()

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        try:
            await asyncio.sleep(30)
        finally:
            cleaned_up.set()

    tally = Tally()
    job_id = await bench.enqueue("work")
    bystander = await bench.enqueue("work")
    worker = await bench.start(events=tally)
    await wait_until(lambda: worker.running == 2 and worker._listener.is_connected, 3)
    asked_at = time.monotonic()
    assert await bench.jobs.cancel(job_id) is Status.PROCESSING
    # Asked again; unless it was so prompt that the job has ended by now.
    with suppress(WrongStatus):
        assert await bench.jobs.cancel(job_id) is Status.PROCESSING
    job = await bench.ended(job_id)
    assert time.monotonic() - asked_at < limit(1)
    assert (job.status, job.attempts) == (Status.CANCELLED, 1)
    assert cleaned_up.is_set()
    assert [past.outcome for past in await bench.history(job_id)] == ["cancelled"]
    await wait_until(lambda: tally.endings == {(Ending.CANCELLED, Status.CANCELLED): 1}, 2)
    assert (await bench.get(bystander)).status is Status.PROCESSING


@pytest.mark.parametrize(
    ("reaction", "status", "past"),
    [("completes", Status.COMPLETED, None), ("raises", Status.CANCELLED, "cancelled")],
)
async def test_what_a_cancelled_handler_does_then(
    bench: Bench, reaction: str, status: Status, past: str | None
) -> None:
    @bench.job("work")
    async def work(context: Context, payload: Any) -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            if reaction == "raises":
                raise OSError("while cleaning up") from None
        return "completed anyway"

    job_id = await bench.enqueue("work")
    worker = await bench.start()
    await wait_until(lambda: worker.running == 1 and worker._listener.is_connected, 3)
    await bench.jobs.cancel(job_id)
    job = await bench.ended(job_id)
    assert job.status is status
    assert [one.outcome for one in await bench.history(job_id)] == ([] if past is None else [past])


async def test_a_job_to_be_cancelled_that_fails_by_itself_is_not_retried(bench: Bench) -> None:
    fail = asyncio.Event()
    runs = 0

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        nonlocal runs
        runs += 1
        await fail.wait()
        raise OSError("by itself")

    tally = Tally()
    job_id = await bench.enqueue("work", max_attempts=5)
    worker = await bench.start(events=tally)
    await bench.reached(job_id, Status.PROCESSING)
    # The hint is lost, and the handler fails before a renewal would tell.
    worker._listener._heard = lambda hint: None
    await bench.jobs.cancel(job_id)
    fail.set()
    job = await bench.ended(job_id)
    assert (job.status, job.attempts) == (Status.CANCELLED, 1)
    assert [past.outcome for past in await bench.history(job_id)] == ["failed"]
    await wait_until(lambda: tally.endings == {(Ending.FAILED, Status.CANCELLED): 1}, 2)
    assert runs == 1


async def test_a_cancellation_whose_hint_is_lost_is_noticed_at_the_renewal(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewals = 0
    extend = WorkerStore.extend

    async def count(self: WorkerStore, *arguments: Any, **named: Any) -> Any:
        nonlocal renewals
        renewals += 1
        return await extend(self, *arguments, **named)

    monkeypatch.setattr(WorkerStore, "extend", count)

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        await asyncio.sleep(30)

    job_id = await bench.enqueue("work")
    worker = await bench.start(lease_seconds=3)
    await bench.reached(job_id, Status.PROCESSING)
    worker._listener._heard = lambda hint: None
    await bench.jobs.cancel(job_id)
    before = renewals
    assert (await bench.ended(job_id)).status is Status.CANCELLED
    # Not more than one that was under way, and the next.
    assert renewals - before <= 2


async def test_a_thread_is_cancelled_on_paper_and_keeps_its_slot(
    bench: Bench, unblock: Callable[[threading.Event], threading.Event]
) -> None:
    let_go = unblock(threading.Event())

    @bench.job("blocking")
    def blocking(context: Context, payload: Any) -> str:
        let_go.wait(20)
        return "too late"

    @bench.job("next")
    async def following(context: Context, payload: Any) -> None:
        pass

    tally = Tally()
    job_id = await bench.enqueue("blocking")
    worker = await bench.start(workers=1, events=tally)
    await wait_until(lambda: worker.running == 1 and worker._listener.is_connected, 3)
    asked_at = time.monotonic()
    await bench.jobs.cancel(job_id)
    job = await bench.ended(job_id)
    assert time.monotonic() - asked_at < limit(1)
    assert job.status is Status.CANCELLED
    assert (worker.running, tally.stuck_now) == (1, 1)
    waiting = await bench.enqueue("next")
    await asyncio.sleep(0.2)
    assert (await bench.get(waiting)).status is Status.PENDING
    let_go.set()
    assert (await bench.ended(waiting)).status is Status.COMPLETED
    assert tally.stuck_now == 0
    assert (await bench.get(job_id)).result is None


async def test_a_handler_that_ignores_it_is_cancelled_on_paper_after_a_grace(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "GRACE_SECONDS", 0.2)
    let_go = asyncio.Event()

    @bench.job("stubborn")
    async def stubborn(context: Context, payload: Any) -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    job_id = await bench.enqueue("stubborn")
    worker = await bench.start()
    await wait_until(lambda: worker.running == 1 and worker._listener.is_connected, 3)
    await bench.jobs.cancel(job_id)
    assert (await bench.ended(job_id)).status is Status.CANCELLED
    assert worker.running == 1
    let_go.set()
    await wait_until(lambda: worker.running == 0, 2)


async def test_a_job_that_waits_for_its_retry_is_cancelled(bench: Bench) -> None:
    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        raise OSError("no")

    job_id = await bench.enqueue("work")
    await bench.start(backoff_base_seconds=60.0, backoff_max_seconds=60.0)
    await bench.reached_after(job_id, 1)
    assert await bench.jobs.cancel(job_id) is Status.CANCELLED
    job = await bench.get(job_id)
    assert (job.status, job.attempts, job.run_at) == (Status.CANCELLED, 1, None)


async def test_a_shutdown_does_not_bring_a_cancelled_job_back(bench: Bench) -> None:
    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        await asyncio.sleep(30)

    job_id = await bench.enqueue("work")
    worker = await bench.start()
    await bench.reached(job_id, Status.PROCESSING)
    worker._listener._heard = lambda hint: None
    await bench.jobs.cancel(job_id)
    await within(5, worker.drain(0))
    assert (await bench.get(job_id)).status is Status.CANCELLED


async def test_the_answer_tells_the_truth_around_start_and_finish(bench: Bench) -> None:
    """A cancellation at any moment: cancelled before the start, asked for while it runs, or too late."""
    generator = random.Random(7)

    @bench.job("work")
    async def work(context: Context, payload: Any) -> str:
        await asyncio.sleep(0.003)
        if generator.random() < 0.3:
            raise OSError("retry me")
        return "done"

    tally = Tally()
    worker = await bench.start(workers=8, events=tally)
    await wait_until(lambda: worker._listener.is_connected, 3)
    answers: dict[Any, Status | None] = {}

    async def one() -> None:
        job_id = await bench.enqueue("work", max_attempts=20)
        await asyncio.sleep(generator.uniform(0, 0.012))
        try:
            answers[job_id] = await bench.jobs.cancel(job_id)
        except WrongStatus:
            answers[job_id] = None

    for _ in range(20):
        await asyncio.gather(*(one() for _ in range(15)))
    jobs = await bench.finished(*answers)
    for job in jobs:
        answer = answers[job.id]
        if answer is None:
            assert job.status is Status.COMPLETED
        elif answer is Status.CANCELLED:
            assert job.status is Status.CANCELLED
        else:
            assert job.status in (Status.CANCELLED, Status.COMPLETED)
    assert len(set(answers.values())) >= 2, "it never raced"
    await bench.audit()
