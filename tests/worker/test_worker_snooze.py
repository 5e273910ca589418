"""Handlers whose time hasn't come."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from fencepost.domain.context import Context
from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending
from fencepost.errors import Snooze
from tests.patience import limit

from .support import Bench, Tally, wait_until


@pytest.mark.slow
async def test_a_snooze_costs_no_attempt_and_comes_back_on_time(bench: Bench) -> None:
    starts: list[float] = []
    attempts: list[int] = []
    tally = Tally()

    @bench.job("work")
    async def work(context: Context, payload: Any) -> str:
        starts.append(time.monotonic())
        attempts.append(context.attempt)
        if len(starts) <= 5:
            raise Snooze(0.2)
        return "done"

    await bench.start(events=tally)
    job = await bench.ended(await bench.enqueue("work", max_attempts=1))
    assert (job.status, job.attempts, job.lease_token) == (Status.COMPLETED, 1, 6)
    assert attempts == [1] * 6
    assert await bench.history(job.id) == []
    # Polling is off in these tests: the worker that put it back knows when to come.
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert all(0.19 <= gap <= limit(0.6) for gap in gaps), gaps
    await wait_until(lambda: sum(tally.endings.values()) == 6, 3)
    assert tally.endings[Ending.SNOOZED, Status.PENDING] == 5


async def test_a_cancellation_ends_a_job_that_snoozes(bench: Bench) -> None:
    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        raise Snooze(60)

    await bench.start()
    job_id = await bench.enqueue("work")

    async def snoozes() -> bool:
        job = await bench.get(job_id)
        return job.status is Status.PENDING and job.lease_token == 1

    await wait_until(snoozes, 3)
    assert await bench.jobs.cancel(job_id) is Status.CANCELLED
    assert (await bench.get(job_id)).status is Status.CANCELLED
