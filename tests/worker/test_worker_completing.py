"""Handlers that complete their jobs in transactions of their own, and what else goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest

from fencepost.domain.context import Context
from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending
from fencepost.errors import LeaseLost
from fencepost.store import sessions
from fencepost.worker import executor as executor_module
from fencepost.worker import worker as worker_module
from fencepost.worker.attempt import Attempt
from tests.patience import TIMER_SECONDS

from .support import Bench, Tally, make_lease, wait_until


@asynccontextmanager
async def connected(bench: Bench) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(bench.dsn)
    try:
        yield connection
    finally:
        connection.terminate()


class Completing:
    """Job type `complete`: completes in a transaction of its own, which stays open until it is told."""

    def __init__(self, bench: Bench) -> None:
        self.completed = asyncio.Event()
        self.finish = asyncio.Event()
        self.starts = 0
        self.error: BaseException | None = None

        @bench.job("complete", payload=str)
        async def complete(context: Context, payload: str) -> str:
            self.starts += 1
            try:
                async with connected(bench) as connection:
                    await self.work(context, payload, connection)
            except BaseException as error:
                self.error = error
                raise
            return "returned"

    async def work(self, context: Context, how: str, connection: Any) -> None:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("select pg_advisory_xact_lock(1)")
        await context.complete_in(connection, "in the transaction")
        self.completed.set()
        await self.finish.wait()
        if how == "commit":
            await transaction.commit()
        elif how == "commit, then raise":
            await transaction.commit()
            raise RuntimeError("after it was committed")
        elif how == "roll back, then go on":
            await transaction.rollback()
            await asyncio.sleep(3.2)
        elif how == "roll back, then raise":
            await transaction.rollback()
            raise RuntimeError("rolled back")


@pytest.mark.parametrize("how", ["commit", "commit, then raise"])
async def test_what_is_committed_is_completed_whatever_the_handler_does_then(bench: Bench, how: str) -> None:
    completing, tally = Completing(bench), Tally()
    completing.finish.set()
    worker = await bench.start(events=tally)
    job = await bench.ended(await bench.enqueue("complete", how))
    assert (job.status, job.attempts, bytes(job.result or b"")) == (Status.COMPLETED, 1, b'"in the transaction"')
    await wait_until(lambda: tally.endings == {(Ending.SUCCEEDED, Status.COMPLETED): 1}, 3)
    assert worker.running == 0
    assert await bench.history(job.id) == []


@pytest.mark.parametrize(
    ("how", "error_type"),
    [("return", "NotCommitted"), ("roll back, then raise", "RuntimeError")],
)
async def test_what_is_not_committed_is_tried_again(bench: Bench, how: str, error_type: str) -> None:
    completing, tally = Completing(bench), Tally()
    completing.finish.set()
    await bench.start(events=tally)
    job = await bench.ended(await bench.enqueue("complete", how, max_attempts=2))
    assert (job.status, job.attempts) == (Status.DEAD_LETTER, 2)
    assert [one.error_type for one in await bench.history(job.id)] == [error_type] * 2
    await wait_until(lambda: sum(tally.endings.values()) == 2, 3)
    assert tally.endings[Ending.SUCCEEDED, Status.COMPLETED] == 0


@pytest.mark.slow
async def test_an_open_transaction_holds_up_no_other_outcome_and_no_other_lease(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A plain function can't be stopped: its time is up, its outcome is to be written, and its transaction is still open.

        its transaction             settler, keeper, recovery
        completes
                                    its time is up: the outcome is written apart, again and again in vain
                                    fifty others are written, and long ones are renewed
        commits
                                    it has completed: that is reported
    """
    monkeypatch.setattr(executor_module, "GRACE_SECONDS", 0.1)
    tally, held, go_on = Tally(), threading.Event(), threading.Event()

    @bench.job("stubborn")
    def stubborn(context: Context, payload: Any) -> None:
        async def work() -> None:
            async with connected(bench) as connection, connection.transaction():
                # As complete_in does it, in a connection that this thread has a loop of its own for.
                context.control.completing = True  # type: ignore[attr-defined]
                statement = "select fencepost.complete($1::text::jsonb)"
                named = f'{{"id": "{context.id}", "queue_id": {queue_id}, "token": {context.token}, "result": 7}}'
                assert await connection.fetchval(statement, named)
                held.set()
                await asyncio.to_thread(go_on.wait)

        asyncio.run(work())

    @bench.job("quick")
    async def quick(context: Context, payload: Any) -> None:
        return

    @bench.job("long")
    async def long(context: Context, payload: Any) -> None:
        await asyncio.sleep(3)

    queue_id = await bench.queues.ensure("default", 0)
    try:
        await bench.start(events=tally, workers=20, lease_seconds=1.5, recovery_interval_seconds=0.2)
        # Time enough to connect and to complete, and for the rest of the test to come after it.
        stuck = await bench.enqueue("stubborn", timeout_seconds=2.0, max_attempts=3)
        await wait_until(held.is_set, 5)
        began = time.monotonic()
        slow = await bench.enqueue_many("long", [None] * 5, max_attempts=1)
        await wait_until(lambda: tally.stuck_ever == 1, 3)
        for _ in range(5):
            ids = await bench.enqueue_many("quick", [None] * 10)
            await bench.finished(*ids, seconds=2)
        jobs = await bench.finished(*slow, seconds=5)
        assert {(job.status, job.attempts) for job in jobs} == {(Status.COMPLETED, 1)}, "their leases were renewed"
        # Longer than a lock may be waited for, and than several leases: nothing has to wait, so nothing gave up.
        await wait_until(lambda: time.monotonic() - began > 15, 16)
        await bench.finished(*await bench.enqueue_many("quick", [None] * 10), seconds=2)
        assert (await bench.get(stuck)).status is Status.PROCESSING
        go_on.set()
        job = await bench.ended(stuck)
        assert (job.status, bytes(job.result or b"")) == (Status.COMPLETED, b"7")
        await wait_until(lambda: sum(tally.endings.values()) == 66, 3)
        assert tally.endings == {(Ending.SUCCEEDED, Status.COMPLETED): 66}
        assert tally.recoveries == 0
        assert await bench.history(stuck) == []
    finally:
        go_on.set()


async def test_a_timeout_of_an_async_handler_rolls_back_and_is_written(bench: Bench) -> None:
    completing, tally = Completing(bench), Tally()
    await bench.start(events=tally)
    # Time enough to connect and to complete.
    job_id = await bench.enqueue("complete", "commit", timeout_seconds=0.9, max_attempts=1)
    job = await bench.ended(job_id)
    assert completing.completed.is_set()
    assert (job.status, job.attempts) == (Status.DEAD_LETTER, 1)
    assert [one.outcome for one in await bench.history(job_id)] == ["timed_out"]


@pytest.mark.slow
async def test_a_lease_is_kept_while_the_transaction_is_open_and_after_a_rollback(bench: Bench) -> None:
    completing, tally = Completing(bench), Tally()
    await bench.start(events=tally, lease_seconds=2.4, recovery_interval_seconds=0.05)
    job_id = await bench.enqueue("complete", "roll back, then go on", max_attempts=1)
    await wait_until(completing.completed.is_set, 3)
    before = await bench.value("select locked_until from fencepost.leases where id = $1", job_id)
    # A renewal was due after a third of it, and couldn't be had.
    await wait_until(lambda: _nearly(bench, before), 3)
    assert await bench.value("select locked_until from fencepost.leases where id = $1", job_id) == before
    completing.finish.set()
    # It goes on for longer than the lease that it had then.
    job = await bench.ended(job_id)
    assert (completing.starts, job.attempts) == (1, 1)
    assert tally.recoveries == 0
    assert [one.error_type for one in await bench.history(job_id)] == ["NotCommitted"]


async def _nearly(bench: Bench, moment: Any) -> bool:
    return bool(await bench.value("select clock_timestamp() > cast($1 as timestamptz) - interval '1 s'", moment))


async def test_a_commit_is_not_taken_for_a_lost_lease(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """The lease is gone, the handler goes on: it isn't stopped."""
    tally, committed, finish = Tally(), asyncio.Event(), asyncio.Event()

    @bench.job("goes_on")
    async def goes_on(context: Context, payload: Any) -> None:
        async with connected(bench) as connection:
            async with connection.transaction():
                await context.complete_in(connection)
            committed.set()
            await finish.wait()

    worker = await bench.start(events=tally, lease_seconds=1.5)
    job_id = await bench.enqueue("goes_on")
    await wait_until(committed.is_set, 3)
    await wait_until(lambda: not worker._keeper._held, 3, "the keeper to part with it")
    assert worker.running == 1
    finish.set()
    await wait_until(lambda: sum(tally.endings.values()) == 1, 3)
    assert tally.endings == {(Ending.SUCCEEDED, Status.COMPLETED): 1}
    assert (await bench.get(job_id)).status is Status.COMPLETED
    assert "lease lost" not in caplog.text


async def test_a_lost_lease_is_told_to_the_handler_and_rolls_its_work_back(bench: Bench) -> None:
    completing, tally = Completing(bench), Tally()
    ready, go_on = asyncio.Event(), asyncio.Event()
    work = completing.work

    async def late(context: Context, how: str, connection: Any) -> None:
        if completing.starts == 1:
            ready.set()
            await go_on.wait()
        await work(context, how, connection)

    completing.work = late  # type: ignore[method-assign]
    completing.finish.set()
    await bench.start(events=tally, workers=1)
    job_id = await bench.enqueue("complete", "commit")
    await wait_until(ready.is_set, 3)
    await bench.expire(job_id)
    go_on.set()
    job = await bench.ended(job_id)
    assert type(completing.error).__name__ == "LeaseLost"
    assert (job.status, job.attempts, completing.starts) == (Status.COMPLETED, 2, 2)
    await wait_until(lambda: sum(tally.endings.values()) == 2, 3)
    assert tally.endings == {(Ending.LOST, None): 1, (Ending.SUCCEEDED, Status.COMPLETED): 1}


async def test_a_drain_waits_a_while_for_an_open_transaction_and_then_lets_go(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "OUTCOME_SECONDS", 0.5)
    left: list[Any] = []

    @bench.job("leaks")
    async def leaks(context: Context, payload: Any) -> None:
        connection = await asyncpg.connect(bench.dsn)
        left.append(connection)
        await connection.execute("begin")
        context.control.completing = True  # type: ignore[attr-defined]
        named = f'{{"id": "{context.id}", "queue_id": {queue_id}, "token": {context.token}}}'
        assert await connection.fetchval("select fencepost.complete($1::text::jsonb)", named)

    queue_id = await bench.queues.ensure("default", 0)
    worker = await bench.start()
    job_id = await bench.enqueue("leaks")
    await wait_until(lambda: left and worker.running == 0, 3)
    began = time.monotonic()
    assert await worker.drain(5) == 0
    assert 0.5 - TIMER_SECONDS <= time.monotonic() - began < 5
    await left[0].execute("commit")
    await left[0].close()
    assert (await bench.get(job_id)).status is Status.COMPLETED


async def test_an_attempt_whose_end_was_decided_can_not_complete_any_more(bench: Bench) -> None:
    """
    Its outcome may be in a batch already, and its transaction would hold up all of that.

        handler, in a thread                worker
                                            its time is up: its outcome is put with the others
        completes: refused
    """
    refused: list[BaseException] = []

    @bench.job("late")
    def late(context: Context, payload: Any) -> None:
        with psycopg.connect(bench.dsn) as connection:
            connection.execute("select 1")
            while not context.control.abandoned:  # type: ignore[attr-defined]
                time.sleep(0.001)
            try:
                context.complete_in_sync(connection, "late")
            except LeaseLost as error:
                refused.append(error)

    worker = await bench.start()
    job_id = await bench.enqueue("late", timeout_seconds=0.1, max_attempts=1)
    job = await bench.ended(job_id)
    assert (job.status, job.result) == (Status.DEAD_LETTER, None)
    await wait_until(lambda: worker.running == 0, 3)
    assert "its end is being written" in str(refused[0])


async def test_nothing_ends_between_the_look_and_the_mark(bench: Bench) -> None:
    """Whoever decides an attempt's end waits for the one who is just marking it, and sees the mark."""
    attempt, seen = Attempt(make_lease()), threading.Event()
    executor = (await bench.start())._executor
    attempt.host = executor._host
    attempt.interruption = Ending.TIMED_OUT
    settled: list[bool] = []
    settle = executor._settle
    executor._settle = lambda attempt, _: settled.append(attempt.completing)

    def abandon() -> None:
        seen.set()
        executor.abandon(attempt)

    thread = threading.Thread(target=abandon)
    with attempt.host.lock:
        thread.start()
        assert seen.wait(3)
        thread.join(0.2)
        assert not attempt.abandoned
        attempt.completing = True
    thread.join(3)
    assert settled == [True]
    executor._settle = settle


@pytest.mark.parametrize("busy", [False, True], ids=["settlement", "along with a claim"])
async def test_a_lease_that_somebody_holds_for_long_holds_up_only_its_own_outcome(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    """Nothing but a handler of ours should have one locked. Whoever has: it costs the others one lock timeout."""
    monkeypatch.setitem(sessions.SESSION, "lock_timeout", "500ms")
    started, go_on = 0, asyncio.Event()

    @bench.job("waits")
    async def waits(context: Context, payload: Any) -> int:
        nonlocal started
        started += 1
        await go_on.wait()
        return 7

    tally = Tally()
    await bench.start(events=tally, workers=5)
    held, *others = await bench.enqueue_many("waits", [None] * (20 if busy else 5))
    await wait_until(lambda: started == 5, 3)
    async with connected(bench) as connection:
        transaction = connection.transaction()
        await transaction.start()
        assert await connection.fetchval("select id from fencepost.leases where id = $1 for update", held) == held
        go_on.set()
        await bench.finished(*others, seconds=6)
        assert (await bench.get(held)).status is Status.PROCESSING
        await transaction.rollback()
        job = await bench.ended(held, seconds=3)
    assert (job.status, job.attempts, bytes(job.result or b"")) == (Status.COMPLETED, 1, b"7")
    await wait_until(lambda: tally.endings == {(Ending.SUCCEEDED, Status.COMPLETED): 1 + len(others)}, 3)


async def test_of_two_calls_at_once_the_loser_changes_nothing(bench: Bench) -> None:
    """
    first                       second
    completes: lease locked
                                waits for the lease
    commits
                                the lease is gone: LeaseLost
    """
    tally, answers = Tally(), []

    @bench.job("twice")
    async def twice(context: Context, payload: Any) -> None:
        async with connected(bench) as first, connected(bench) as second:
            one, two = first.transaction(), second.transaction()
            await one.start()
            await two.start()
            # Both have looked before either is answered.
            calls = [asyncio.create_task(context.complete_in(each, "done")) for each in (first, second)]
            done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            winner = calls.index(next(iter(done)))
            await (one, two)[winner].commit()
            answers.extend(await asyncio.gather(*calls, return_exceptions=True))

    await bench.start(events=tally)
    job = await bench.ended(await bench.enqueue("twice"))
    assert (job.status, bytes(job.result or b"")) == (Status.COMPLETED, b'"done"')
    await wait_until(lambda: sum(tally.endings.values()) == 1, 3)
    assert sorted(type(answer).__name__ for answer in answers) == ["LeaseLost", "NoneType"]
    assert tally.endings == {(Ending.SUCCEEDED, Status.COMPLETED): 1}


@pytest.mark.parametrize("what", ["lease", "progress"])
async def test_an_older_snapshot_can_not_complete_and_nothing_is_lost(bench: Bench, what: str) -> None:
    """
    a handler, in repeatable read           its worker
    looks at something: its snapshot
                                            renews the lease, or writes its progress
    writes its effect, completes:
    serialization failure, rolled back
                                            fails the attempt; the next one does it,
                                            in read committed
    """
    await bench.sql("create table effects (attempt int)")
    version = "select cast(xmin as text) from fencepost.leases where id = $1"

    @bench.job("snapshot")
    async def snapshot(context: Context, payload: Any) -> None:
        isolation = "repeatable_read" if context.attempt == 1 else "read_committed"
        async with (
            connected(bench) as look,
            connected(bench) as connection,
            connection.transaction(isolation=isolation),
        ):
            seen = await connection.fetchval(version, context.id)

            async def changed() -> bool:
                return bool(await look.fetchval(version, context.id) != seen)

            if what == "progress":
                context.progress(0.5)
            await wait_until(changed, 5)
            await connection.execute("insert into effects values ($1)", context.attempt)
            await context.complete_in(connection, "done")

    await bench.start(lease_seconds=1.5 if what == "lease" else 60)
    job = await bench.ended(await bench.enqueue("snapshot"))
    assert (job.status, job.attempts, bytes(job.result or b"")) == (Status.COMPLETED, 2, b'"done"')
    [first] = await bench.history(job.id)
    assert (first.outcome, first.error_type) == ("failed", "SerializationError")
    assert [row["attempt"] for row in await bench.sql("select attempt from effects")] == [2]
