"""A worker that serves some queues leaves the others alone, however it hears of them."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.domain.context import Context
from fencepost.domain.job import Status, Unique
from fencepost.worker import maintenance
from tests.store.support import connect

from .support import Bench, Claims, wait_until

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


async def test_queues_that_were_restored_are_found_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made again by whoever enqueues first, under another id than the one that the worker knew."""
    monkeypatch.setattr(maintenance, "DECLARATION_SECONDS", 0.05)

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None: ...

    await bench.start(queues=("mail",), poll_interval_seconds=0.02)
    await bench.ended(await bench.enqueue("work", queue="mail"))
    await bench.sql("with lanes as (delete from fencepost.lanes) delete from fencepost.queues")
    await bench.ended(await bench.enqueue("work", queue="mail"))


async def test_a_job_that_somebody_holds_keeps_no_other_lane_waiting(bench: Bench, database_url: str) -> None:
    """
    As many as there are slots, and the most urgent ones; by the pattern that docs/how-to/sql.md has for triggers.

        somebody                                the worker
        asks for what waits already (skipped),
        so holds the row until they commit
                                                counts on the urgent lane, and gets nothing there
                                                looks again without what is held, and runs the others
        commits
                                                runs the urgent ones
    """
    ran: list[str] = []

    @bench.job("work", payload=str)
    async def work(context: Context, payload: str) -> None:
        ran.append(payload)

    urgent = [
        await bench.enqueue("work", f"urgent {number}", priority=9, unique=Unique(key=str(number), until="started"))
        for number in range(2)
    ]
    somebody = await connect(database_url)
    try:
        await somebody.execute("begin")
        for number in range(2):
            await somebody.execute(
                "select fencepost.enqueue('work', '\"x\"', priority => 9, unique_key => $1, unique_until => 'started')",
                str(number),
            )
        others = [await bench.enqueue("work", f"other {number}", priority=number % 2) for number in range(20)]
        worker = await bench.start(workers=2, poll_interval_seconds=30)
        claims = Claims(worker)
        await bench.finished(*others)
        assert sorted(ran) == sorted(f"other {number}" for number in range(20))
        assert len(claims.made) < 80, "it asks again and again"
        await somebody.execute("commit")
        worker.wake([await bench.queue_id("default")])
        await bench.finished(*urgent)
    finally:
        await somebody.close()
