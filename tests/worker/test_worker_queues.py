"""A worker that serves some queues leaves the others alone, however it hears of them."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.domain.context import Context
from fencepost.domain.job import Status

from .support import Bench, wait_until

pytestmark = pytest.mark.anyio


async def test_only_the_queues_that_it_serves_are_claimed_from(bench: Bench) -> None:
    ran: list[str] = []

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        ran.append(context.queue)

    waiting = [await bench.enqueue("work", queue=name) for name in ("mail", "other")]
    # Polls often: what isn't served must not be found by polling either.
    worker = await bench.start(queues=("mail", "reports"), poll_interval_seconds=0.02)
    await bench.ended(waiting[0])
    # By notification, and by a wake-up in memory.
    await bench.enqueue("work", queue="other")
    worker.wake([await bench.queue_id("other"), await bench.queue_id("mail")])
    last = await bench.enqueue("work", queue="mail")
    await bench.ended(last)
    assert ran == ["mail", "mail"]
    assert (await bench.get(waiting[1])).status is Status.PENDING


async def test_a_queue_that_has_no_job_yet_can_be_served(bench: Bench) -> None:
    @bench.job("work")
    async def work(context: Context, payload: Any) -> None: ...

    await bench.start(queues=("tomorrow",))
    await bench.ended(await bench.enqueue("work", queue="tomorrow"))


async def test_another_worker_takes_the_rest(bench: Bench) -> None:
    @bench.job("work")
    async def work(context: Context, payload: Any) -> None: ...

    await bench.start(queues=("mail",))
    job = await bench.enqueue("work", queue="other")
    await bench.start(queues=("other",))
    await bench.ended(job)
    await wait_until(lambda: not bench.workers[0].running, 1)
