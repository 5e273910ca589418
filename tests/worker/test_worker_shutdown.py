"""Stopping: nothing new is claimed, what can finish does, the rest is given back, and no attempt is lost."""

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
from fencepost.settings.pooler import Pooler
from fencepost.store import database as database_module
from fencepost.worker import executor as executor_module
from fencepost.worker import settler as settler_module
from fencepost.worker import tasks as tasks_module
from fencepost.worker import worker as worker_module
from tests.patience import limit

from .proxy import Proxy
from .support import Bench, Claims, Tally, wait_until, within

pytestmark = pytest.mark.anyio


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.2 s for a cancelled handler, and for a claim under way."""
    monkeypatch.setattr(executor_module, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(worker_module, "GRACE_SECONDS", 0.2)


async def drained(worker: Any, timeout_seconds: float) -> tuple[int, float]:
    """Drain, and say how many handlers were left and how long it took."""
    began = time.monotonic()
    left = await worker.drain(timeout_seconds)
    return left, time.monotonic() - began


@pytest.mark.parametrize("settled_in", [False, True])
async def test_an_idle_worker_stops_at_once(bench: Bench, settled_in: bool) -> None:
    worker = await bench.start()
    if settled_in:
        await wait_until(lambda: worker._listener.is_connected, 3)
    left, took = await drained(worker, 20)
    assert left == 0
    assert took < limit(1)
    assert await bench.value("select count(*) from fencepost.workers") == 0


async def test_a_worker_that_never_started_can_be_drained(bench: Bench) -> None:
    left, took = await drained(bench.make(), 20)
    assert (left, took < limit(1)) == (0, True)


async def test_running_jobs_finish_and_nothing_new_is_claimed(bench: Bench) -> None:
    @bench.job("work")
    async def work(context: Context, payload: Any) -> str:
        await asyncio.sleep(0.3)
        return "done"

    ids = await bench.enqueue_many("work", [None] * 4)
    worker = bench.make(workers=10, recovery_interval_seconds=0.05)
    claims = Claims(worker)
    await worker.start()
    await wait_until(lambda: worker.running == 4, 3)
    drain = asyncio.create_task(drained(worker, 10))
    await asyncio.sleep(0)
    later = await bench.enqueue_many("work", [None] * 3)
    worker.wake([await bench.queue_id()])
    left, took = await drain
    assert left == 0
    assert took < limit(1)
    assert await bench.statuses(ids) == {"completed": 4}
    assert await bench.statuses(later) == {"pending": 3}
    assert {job.attempts for job in [await bench.get(job_id) for job_id in later]} == {0}
    assert len(claims.leases) == 4


async def test_after_stop_claiming_jobs_go_on_and_their_outcomes_are_written(bench: Bench) -> None:
    release = asyncio.Event()

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        await release.wait()

    job_id = await bench.enqueue("work")
    worker = await bench.start()
    # The database says so before the worker hears of it, which would give it back then.
    await wait_until(lambda: worker.running == 1, 3)
    await within(1, worker.stop_claiming())
    release.set()
    assert (await bench.ended(job_id)).status is Status.COMPLETED
    pending = await bench.enqueue("work")
    await asyncio.sleep(0.1)
    assert (await bench.get(pending)).status is Status.PENDING


async def test_what_still_runs_is_released_without_costing_an_attempt(bench: Bench) -> None:
    cleaned_up = 0

    @bench.job("long")
    async def long(context: Context, payload: Any) -> str:
        nonlocal cleaned_up
        if context.token > 2:
            return f"attempt {context.attempt}"
        try:
            await asyncio.sleep(30)
        finally:
            cleaned_up += 1
        return ""

    tally = Tally()
    ids = await bench.enqueue_many("long", [None] * 3, max_attempts=1)
    for token in (1, 2):
        worker = await bench.start(events=tally)
        await wait_until(lambda: worker.running == 3, 3)  # noqa: B023
        left, took = await drained(worker, 0.1)
        assert left == 0
        assert took < limit(1)
        for job_id in ids:
            job = await bench.get(job_id)
            assert (job.status, job.attempts, job.lease_token) == (Status.PENDING, 0, token)
            assert job.run_at is not None
            history = await bench.history(job_id)
            assert [(past.outcome, past.attempt, past.token) for past in history] == [
                ("released", 1, number) for number in range(1, token + 1)
            ]
            assert job.run_at <= await bench.value("select clock_timestamp()"), "it would have to wait"
    assert cleaned_up == 6
    assert tally.endings == {(Ending.RELEASED, Status.PENDING): 6}
    await bench.start()
    for job in await bench.finished(*ids):
        assert (job.status, job.attempts, job.lease_token) == (Status.COMPLETED, 1, 3)
        assert bytes(job.result or b"") == b'"attempt 1"'


async def test_a_handler_may_finish_its_work_while_it_is_being_stopped(bench: Bench) -> None:
    @bench.job("careful", payload=str)
    async def careful(context: Context, payload: str) -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            if payload == "raises":
                raise OSError("could not save") from None
            return "saved"
        return ""

    saves, raises = await bench.enqueue_many("careful", ["saves", "raises"], max_attempts=1)
    worker = await bench.start()
    await wait_until(lambda: worker.running == 2, 3)
    assert (await drained(worker, 0))[0] == 0
    assert (await bench.get(saves)).status is Status.COMPLETED
    job = await bench.get(raises)
    assert (job.status, job.attempts) == (Status.PENDING, 0), "a shutdown cost an attempt"


async def test_a_handler_that_ignores_its_cancellation_is_released_without_it(bench: Bench, short_grace: None) -> None:
    let_go = asyncio.Event()
    begun, ended = asyncio.Event(), asyncio.Event()

    @bench.job("stubborn")
    async def stubborn(context: Context, payload: Any) -> str:
        begun.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        ended.set()
        return "much too late"

    tally = Tally()
    job_id = await bench.enqueue("stubborn", max_attempts=1)
    worker = await bench.start(events=tally)
    await within(5, begun.wait())
    left, took = await drained(worker, 0.1)
    assert left == 1
    assert took < limit(1)
    job = await bench.get(job_id)
    assert (job.status, job.attempts, job.lease_token) == (Status.PENDING, 0, 1)
    let_go.set()
    await within(1, ended.wait())
    await wait_until(lambda: worker.running == 0, 1)
    assert (await bench.get(job_id)).status is Status.PENDING
    assert tally.endings == {(Ending.RELEASED, Status.PENDING): 1}


async def test_a_thread_that_can_not_be_stopped_is_released_and_left(
    bench: Bench, short_grace: None, unblock: Callable[[threading.Event], threading.Event]
) -> None:
    let_go, begun = unblock(threading.Event()), threading.Event()

    @bench.job("blocking")
    def blocking(context: Context, payload: Any) -> None:
        begun.set()
        let_go.wait(20)

    job_id = await bench.enqueue("blocking", max_attempts=1)
    worker = await bench.start()
    await wait_until(begun.is_set, 5)
    left, took = await drained(worker, 0.1)
    assert left == 1
    assert took < limit(1)
    job = await bench.get(job_id)
    assert (job.status, job.attempts) == (Status.PENDING, 0)
    assert [past.outcome for past in await bench.history(job_id)] == ["released"]
    thread = next(one for one in threading.enumerate() if one.name.startswith("fencepost-job"))
    assert thread.daemon, "the process could not exit"
    let_go.set()
    await wait_until(lambda: worker.running == 0, 2)


async def test_a_thread_gets_its_time_to_finish(bench: Bench) -> None:
    @bench.job("blocking")
    def blocking(context: Context, payload: Any) -> str:
        time.sleep(0.2)
        return "finished"

    job_id = await bench.enqueue("blocking")
    worker = await bench.start()
    await wait_until(lambda: worker.running == 1, 3)
    assert (await drained(worker, 5))[0] == 0
    assert (await bench.get(job_id)).status is Status.COMPLETED


async def test_a_claim_under_way_when_the_signal_comes_is_given_back(bench: Bench) -> None:
    ran = False

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        nonlocal ran
        ran = True

    worker = bench.make()
    claim = worker._store.claim
    claimed, answer = asyncio.Event(), asyncio.Event()

    async def slow(*arguments: Any, **options: Any) -> Any:
        result = await claim(*arguments, **options)
        if result.leases:
            claimed.set()
            await answer.wait()
        return result

    worker._store.claim = slow  # type: ignore[method-assign]
    ids = await bench.enqueue_many("work", [None] * 3, max_attempts=1)
    await worker.start()
    await within(3, claimed.wait())
    drain = asyncio.create_task(drained(worker, 10))
    await asyncio.sleep(0.05)
    assert await bench.statuses(ids) == {"processing": 3}
    answer.set()
    left, took = await drain
    assert (left, took < limit(1), ran) == (0, True, False)
    for job_id in ids:
        job = await bench.get(job_id)
        assert (job.status, job.attempts, job.lease_token) == (Status.PENDING, 0, 1)
        assert [past.outcome for past in await bench.history(job_id)] == ["released"]


async def test_outcomes_survive_the_shutdown(bench: Bench) -> None:
    """The database answers slowly just as the last jobs end."""

    release = asyncio.Event()

    @bench.job("work", payload=int)
    async def work(context: Context, payload: int) -> int:
        await release.wait()
        return payload

    worker = await bench.start(workers=20)
    settle = worker._settler._store.settle

    async def slow(*arguments: Any) -> Any:
        await asyncio.sleep(0.4)
        return await settle(*arguments)

    worker._settler._store.settle = slow  # type: ignore[method-assign]
    ids = await bench.enqueue_many("work", list(range(20)))
    await wait_until(lambda: worker.running == 20, 3)
    release.set()
    left, took = await drained(worker, 0.2)
    assert left == 0
    assert took < limit(3)
    assert await bench.statuses(ids) == {"completed": 20}


@pytest.mark.parametrize("how", ["refused", "silent"])
@pytest.mark.slow
async def test_a_drain_ends_in_time_while_the_database_is_down(
    bench: Bench, proxy: Proxy, short_grace: None, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(worker_module, "OUTCOME_SECONDS", 0.5)
    monkeypatch.setattr(worker_module, "FAREWELL_SECONDS", 0.2)
    # Also what the driver is given to let go of a statement in a connection that has gone silent.
    for module in (tasks_module, database_module):
        monkeypatch.setattr(module, "ACQUIRE_SECONDS", 0.5)
    release = asyncio.Event()

    @bench.job("work", payload=str)
    async def work(context: Context, payload: str) -> None:
        await (release.wait() if payload == "short" else asyncio.sleep(30))

    ids = await bench.enqueue_many("work", ["short", "long", "long"])
    # A poll is always under way or about to be.
    worker = bench.make(dsn=proxy.url, poll_interval_seconds=0.02)
    # Connections that are yet to be made may take longer.
    with monkeypatch.context() as patched:
        patched.setattr(database_module, "ACQUIRE_SECONDS", 5.0)
        await worker.start()
        await wait_until(lambda: worker.running == 3, 3)
    if how == "refused":
        proxy.cut()
    else:
        proxy.swallow()
    release.set()
    await asyncio.sleep(0.1)
    left, took = await drained(worker, 0.3)
    proxy.restore()
    assert left == 0
    # 0.3 for the jobs, 0.2 each for a claim under way, for grace and for the farewell, 0.5 for outcomes; then
    # statements that hang are cancelled, and the pool gives up on what it still has after 5.
    assert took < (2.5 if how == "refused" else 9)
    assert await bench.statuses(ids) == {"processing": 3}, "left to their leases"


@pytest.mark.slow
@pytest.mark.parametrize("pooler", [Pooler.NONE, Pooler.TRANSACTION])
async def test_outcomes_are_written_although_the_connections_have_gone_silent(
    bench: Bench, proxy: Proxy, short_grace: None, monkeypatch: pytest.MonkeyPatch, pooler: Pooler
) -> None:
    """
    A firewall has forgotten them, and new ones pass. The last claim is in one of them, perhaps with an outcome.

    In transaction mode every statement takes one of the pool's.
    """
    monkeypatch.setattr(settler_module, "SILENT_SECONDS", 1.0)
    release = asyncio.Event()

    @bench.job("work", payload=str)
    async def work(context: Context, payload: str) -> str:
        await release.wait()
        return payload

    ids = await bench.enqueue_many("work", ["a", "b", "c"])
    # One slot is left, so that a poll is always under way or about to be.
    worker = await bench.start(dsn=proxy.url, workers=4, poll_interval_seconds=0.02, database_pooler=pooler)
    await wait_until(lambda: worker.running == 3, 3)
    proxy.forget()
    release.set()
    left, took = await drained(worker, 5)
    assert left == 0
    assert took < worker_module.OUTCOME_SECONDS
    assert await bench.statuses(ids) == {"completed": 3}
    assert [(job.attempts, bytes(job.result or b"")) for job in [await bench.get(one) for one in ids]] == [
        (1, b'"a"'), (1, b'"b"'), (1, b'"c"'),
    ]  # fmt: skip


async def test_draining_twice_is_the_same_as_once(bench: Bench) -> None:
    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        await asyncio.sleep(0.2)

    job_id = await bench.enqueue("work")
    worker = await bench.start()
    await wait_until(lambda: worker.running == 1, 3)
    assert (await drained(worker, 5))[0] == 0
    left, took = await drained(worker, 5)
    assert left == 0
    assert took < limit(1)
    assert (await bench.get(job_id)).status is Status.COMPLETED


async def test_a_second_drain_beside_the_first_may_shorten_it(bench: Bench) -> None:
    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        await asyncio.sleep(30)

    job_id = await bench.enqueue("work")
    worker = await bench.start()
    await wait_until(lambda: worker.running == 1, 3)
    patient = asyncio.create_task(drained(worker, 30))
    await asyncio.sleep(0.05)
    assert (await within(2, drained(worker, 0)))[0] == 0
    assert (await within(2, patient))[0] == 0
    job = await bench.get(job_id)
    assert (job.status, job.attempts) == (Status.PENDING, 0)
    assert [past.outcome for past in await bench.history(job_id)] == ["released"]


async def test_a_stopping_worker_recovers_nothing(bench: Bench) -> None:
    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        await asyncio.sleep(0.5)

    await bench.enqueue("work")
    tally = Tally()
    worker = await bench.start(recovery_interval_seconds=0.02, events=tally)
    # Or it would be given back, and claimed below in the orphan's place.
    await wait_until(lambda: worker.running == 1, 3)
    await worker.stop_claiming()
    orphan = await bench.enqueue("work")
    store = worker._store
    await store.claim(await bench.queue_id(), slots=1, cursors={}, lease_seconds=0.05, aging_seconds=0)
    await asyncio.sleep(0.2)
    assert (await bench.get(orphan)).status is Status.PROCESSING
    assert tally.recoveries == 0
