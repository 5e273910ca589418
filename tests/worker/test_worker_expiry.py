"""Jobs that were to start before a certain moment."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending
from fencepost.errors import Snooze

from .support import Bench, Tally, wait_until


async def test_a_job_whose_time_is_over_is_never_started(bench: Bench) -> None:
    ran, tally = [], Tally()

    @bench.job("work", payload=str)
    async def work(context: Any, payload: str) -> None:
        ran.append(payload)

    late = await bench.enqueue("work", "late", expires_at=datetime.now(UTC) - timedelta(seconds=1))
    early = await bench.enqueue("work", "early", expires_at=datetime.now(UTC) + timedelta(hours=1))
    await bench.start(events=tally)
    expired, done = await bench.finished(late, early)
    assert (expired.status, done.status) == (Status.CANCELLED, Status.COMPLETED)
    assert ran == ["early"]
    [attempt] = await bench.history(late)
    assert (attempt.outcome, attempt.error_type) == ("cancelled", "Expired")
    assert expired.last_error == attempt.error
    await wait_until(lambda: sum(tally.endings.values()) == 2, 3)
    assert tally.endings[Ending.CANCELLED, Status.CANCELLED] == 1


async def test_it_counts_when_the_job_is_taken_up_not_when_it_is_due(bench: Bench) -> None:
    """A retry that comes after the job's time is over isn't started either."""
    runs = 0

    @bench.job("work")
    async def work(context: Any, payload: Any) -> None:
        nonlocal runs
        runs += 1
        raise RuntimeError("again, please")

    job_id = await bench.enqueue("work", expires_seconds=3600.0, max_attempts=50)
    await bench.start(backoff_base_seconds=0.2, backoff_max_seconds=0.2)
    await wait_until(lambda: runs > 0, 3)
    await let_time_be_over(bench)
    job = await bench.ended(job_id)
    assert job.status is Status.CANCELLED
    history = await bench.history(job_id)
    assert [one.error_type for one in history] == ["RuntimeError"] * runs + ["Expired"]


async def test_a_flood_of_expired_jobs_holds_up_nothing(bench: Bench) -> None:
    @bench.job("work")
    async def work(context: Any, payload: Any) -> str:
        return "ran"

    past = datetime.now(UTC) - timedelta(hours=1)
    flood = await bench.enqueue_many("work", [None] * 500, expires_at=past)
    wanted = await bench.enqueue("work")
    await bench.start(workers=4)
    assert (await bench.ended(wanted)).status is Status.COMPLETED
    jobs = await bench.finished_quickly(flood)
    assert {job.status for job in jobs} == {Status.CANCELLED}
    await bench.audit()


async def test_a_dead_letter_that_is_retried_by_hand_runs_though_its_time_is_over(bench: Bench) -> None:
    runs = 0

    @bench.job("work")
    async def work(context: Any, payload: Any) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise RuntimeError("broken")

    job_id = await bench.enqueue("work", expires_seconds=3600.0, max_attempts=1)
    await bench.start()
    assert (await bench.ended(job_id)).status is Status.DEAD_LETTER
    await let_time_be_over(bench)
    await bench.jobs.retry(job_id)
    assert (await bench.ended(job_id)).status is Status.COMPLETED
    assert runs == 2


async def test_what_is_given_back_runs_again_though_its_time_is_over_by_then(bench: Bench) -> None:
    """By a snooze, and by a stop of the worker, as at each deployment. Both cost no attempt."""
    starts: list[str] = []
    late = asyncio.Event()

    @bench.job("work", payload=str)
    async def work(context: Any, payload: str) -> None:
        starts.append(payload)
        if starts.count(payload) == 1:
            await late.wait()
            if payload == "snoozes":
                raise Snooze(0)
            await asyncio.Event().wait()

    both = [await bench.enqueue("work", how, expires_seconds=3600.0) for how in ("snoozes", "is stopped")]
    worker = await bench.start(workers=2)
    await wait_until(lambda: len(starts) == 2, 8)
    await let_time_be_over(bench)
    late.set()
    assert (await bench.ended(both[0])).status is Status.COMPLETED
    await worker.drain(0)
    await bench.start()
    assert (await bench.ended(both[1])).status is Status.COMPLETED
    assert sorted(starts) == ["is stopped", "is stopped", "snoozes", "snoozes"]


async def let_time_be_over(bench: Bench) -> None:
    await bench.value("update fencepost.jobs set expires_at = now() - interval '1 second' returning id")
