"""Jobs whose end somebody waits for: told at once, by whichever worker ends them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from fencepost.domain.context import Context
from fencepost.domain.ids import new_id
from fencepost.domain.job import NewJob, Status
from fencepost.errors import DatabaseUnavailable
from fencepost.store.hints import MOST_DONE, done_hint, done_ids, watch_hint
from fencepost.worker.watching import WATCHED_SECONDS, Watching

from .support import Bench, wait_until


class Ear:
    """A waiter's own connection: what it hears, and when."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.heard: list[str] = []
        self.done: dict[UUID, float] = {}

    def take(self, *call: Any) -> None:
        self.heard.append(call[-1])
        self.done.update(dict.fromkeys(done_ids(call[-1]), time.monotonic()))

    async def watch(self, queue_id: int, *ids: UUID) -> None:
        for job_id in ids:
            await self.connection.execute("select pg_notify('fencepost:fencepost', $1)", watch_hint(queue_id, job_id))


@pytest.fixture
async def ear(database_url: str) -> AsyncIterator[Ear]:
    connection = await asyncpg.connect(database_url)
    ear = Ear(connection)
    await connection.add_listener("fencepost:fencepost", ear.take)
    yield ear
    await connection.close()


async def test_the_end_of_a_watched_job_is_told_at_once_and_of_no_other(bench: Bench, ear: Ear) -> None:
    go_on = asyncio.Event()

    @bench.job("work", payload=str)
    async def work(context: Context, payload: str) -> None:
        await go_on.wait()
        if payload == "fail":
            raise RuntimeError("no")

    worker = await bench.start(workers=10)
    others = [await bench.start(workers=1) for _ in range(2)]
    await wait_until(lambda: all(one._listener.is_connected for one in (worker, *others)), 3)
    ids = await bench.enqueue_many("work", ["", "fail", "", ""], max_attempts=1)
    queue_id = await bench.queue_id()
    await ear.watch(queue_id, *ids[:2])
    await wait_until(lambda: all(len(one._watching) == 2 for one in (worker, *others)), 3)
    go_on.set()
    await bench.finished(*ids)
    await wait_until(lambda: len(ear.done) == 2, 2)
    assert set(ear.done) == set(ids[:2])
    assert sum(one.startswith("done") for one in ear.heard) <= 2


async def test_a_retry_is_not_an_end(bench: Bench, ear: Ear) -> None:
    go_on = asyncio.Event()

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        if context.attempt < 3:
            raise RuntimeError("not yet")
        await go_on.wait()

    worker = await bench.start()
    await wait_until(lambda: worker._listener.is_connected, 3)
    await ear.watch(await bench.queues.ensure("default", 0), job_id := new_id())
    await wait_until(lambda: len(worker._watching) == 1, 3)
    await bench.jobs.enqueue([NewJob(id=job_id, type="work", max_attempts=3)])
    await wait_until(lambda: worker.running == 1, 3)

    async def third() -> bool:
        return (await bench.get(job_id)).attempts == 3

    await wait_until(third, 3)
    assert ear.done == {}
    go_on.set()
    await wait_until(lambda: job_id in ear.done, 2)


async def test_a_job_that_recovery_ends_is_told(bench: Bench, ear: Ear) -> None:
    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        return

    worker = await bench.start(recovery_interval_seconds=0.1)
    await wait_until(lambda: worker._listener.is_connected, 3)
    await bench.queues.ensure("default", 0)
    await bench.queues.pause("default")
    job_id = await bench.enqueue("work", max_attempts=1)
    queue_id = await bench.queue_id()
    await ear.watch(queue_id, job_id)
    await wait_until(lambda: len(worker._watching) == 1, 3)
    # As if another worker had claimed it and died.
    await bench.sql(
        "with gone as (delete from fencepost.pending where id = $1 returning *) insert into fencepost.leases "
        "(id, queue_id, priority, attempt, token, worker_id, started_at, locked_until) "
        "select id, queue_id, priority, 1, 1, gen_random_uuid(), now() - interval '1 h', now() from gone",
        job_id,
    )
    await wait_until(lambda: job_id in ear.done, 5)
    assert (await bench.get(job_id)).status is Status.DEAD_LETTER


class Notes:
    def __init__(self) -> None:
        self.sent: list[str] = []
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None

    async def notify(self, hint: str) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.sent.append(hint)


async def test_nothing_is_looked_up_or_run_while_nothing_is_watched() -> None:
    notes = Notes()
    watching, before = Watching(notes.notify), asyncio.all_tasks()
    for _ in range(1_000):
        watching.ended(new_id())
    assert asyncio.all_tasks() == before
    watching.watch(new_id())
    watching.ended(new_id())
    assert asyncio.all_tasks() == before
    assert notes.sent == []
    await watching.stop()


async def test_a_watch_ends_after_a_while_unless_it_is_renewed() -> None:
    notes, now = Notes(), 0.0
    watching = Watching(notes.notify, clock=lambda: now)
    kept, forgotten, later = new_id(), new_id(), new_id()
    watching.watch(kept)
    watching.watch(forgotten)
    now = WATCHED_SECONDS - 1
    watching.watch(kept)
    now = WATCHED_SECONDS + 1
    watching.ended(forgotten)
    watching.watch(later)
    assert len(watching) == 2
    watching.ended(kept)
    await wait_until(lambda: notes.sent, 2)
    assert [done_ids(one) for one in notes.sent] == [{kept}]
    await watching.stop()


async def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    notes = Notes()
    watching = Watching(notes.notify, most=100)
    ids = [new_id() for _ in range(250)]
    for one in ids:
        watching.watch(one)
    assert len(watching) == 100
    for one in ids:
        watching.ended(one)
    await wait_until(lambda: len(watching) == 0 and notes.sent, 2)
    await watching.stop()
    assert frozenset().union(*map(done_ids, notes.sent)) == set(ids[150:])


async def test_ends_that_come_together_are_told_together_in_payloads_that_fit() -> None:
    notes = Notes()
    notes.gate = asyncio.Event()
    watching = Watching(notes.notify)
    ids = [new_id() for _ in range(3 * MOST_DONE)]
    for one in ids:
        watching.watch(one)
        watching.ended(one)
    notes.gate.set()
    await wait_until(lambda: frozenset().union(*map(done_ids, notes.sent)) == set(ids), 2)
    assert len(notes.sent) == 3
    assert all(len(hint) < 8_000 for hint in notes.sent)
    await watching.stop()


async def test_it_survives_the_database() -> None:
    notes = Notes()
    notes.error = DatabaseUnavailable("away")
    watching = Watching(notes.notify)
    first, second = new_id(), new_id()
    for one in (first, second):
        watching.watch(one)
    watching.ended(first)
    await asyncio.sleep(0.02)
    notes.error = None
    watching.ended(second)
    await wait_until(lambda: notes.sent, 2)
    assert [done_ids(one) for one in notes.sent] == [{second}]
    await watching.stop()


def test_the_wording_of_the_hints() -> None:
    one, two = UUID(int=1), UUID(int=2)
    assert watch_hint(3, one) == "watch 3 00000000-0000-0000-0000-000000000001"
    assert done_ids(done_hint([one, two])) == {one, two}
    assert done_ids("due 3,4") == frozenset()
    with pytest.raises(ValueError, match="badly formed"):
        done_ids("done nonsense")
