"""What a handler is told through its context, and what it may ask for."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from typing import Any

import asyncpg
import psycopg
import pytest

from fencepost.domain.context import Context, DetachedControl
from fencepost.domain.ids import new_id
from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending
from fencepost.errors import InvalidJob, InvalidSettings, LeaseLost, WrongConnection, WrongStatus
from fencepost.types.jobtype import Kind
from tests.patience import limit

from .process_jobs import TYPES
from .runtimes import job_type, result_of, start_worker
from .support import Bench, Tally, fields_of, wait_until

pytestmark = pytest.mark.anyio


def a_context(**fields: Any) -> Context:
    return Context(
        **{
            "id": new_id(),
            "type": "work",
            "queue": "default",
            "attempt": 2,
            "max_attempts": 3,
            "token": 4,
            "timeout_seconds": 9.0,
            **fields,
        }
    )


def test_a_context_without_a_worker_works() -> None:
    control = DetachedControl(seconds=5)
    context = a_context(control=control, metadata_json='{"t": 1}', tags=("a",))
    context.progress(0.5, "half")
    context.progress(1)
    assert control.reports == [(0.5, "half"), (1.0, None)]
    context.extend(2)
    assert context.remaining_seconds == 7
    seen = [context.cancelled]
    control.interrupted = True
    assert [*seen, context.cancelled] == [False, True]
    assert (context.metadata, context.tags) == ({"t": 1}, ("a",))
    assert a_context().remaining_seconds == math.inf
    assert a_context().metadata == {}
    with pytest.raises(WrongConnection, match="belongs to no attempt"):
        context.complete_in_sync(object())
    with pytest.raises(InvalidSettings, match="no lifespan was opened"):
        context.resource("pool")


def test_two_contexts_of_one_attempt_are_equal() -> None:
    one = a_context()
    again = Context(**{name: getattr(one, name) for name in one.__struct_fields__ if name != "control"})
    assert one == again
    assert hash(one) == hash(again)
    assert one != a_context()
    assert one != "something else"


def test_metadata_is_a_copy_each_time() -> None:
    context = a_context(metadata_json='{"list": [1]}')
    context.metadata["list"].append(2)
    assert context.metadata == {"list": [1]}


@pytest.mark.parametrize("fraction", [-0.1, 1.01, math.nan, "half", None])
def test_progress_is_a_number_from_0_to_1(fraction: Any) -> None:
    with pytest.raises(InvalidJob, match="fraction: must be a number from 0 to 1"):
        a_context().progress(fraction)
    with pytest.raises(InvalidJob, match="message: must be a text"):
        a_context().progress(0.5, b"bytes")  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [0, -1, 24 * 3600 + 1, math.nan, math.inf, "1", None])
def test_more_time_has_bounds(seconds: Any) -> None:
    with pytest.raises(InvalidJob, match="seconds: must be more than 0 seconds and at most 86400"):
        a_context().extend(seconds)


def test_the_loggers_fields_and_the_callers_are_merged(caplog: pytest.LogCaptureFixture) -> None:
    context = a_context()
    caplog.set_level(logging.INFO, "fencepost.job")
    context.logger.info("said %s", "something", extra={"more": 1, "attempt": "mine"})
    context.logger.info("said nothing")
    first, second = caplog.records
    assert (first.name, first.getMessage()) == ("fencepost.job", "said something")
    assert fields_of(first) == {"job_id": str(context.id), "job_type": "work", "attempt": "mine", "more": 1}
    assert fields_of(second) == {"job_id": str(context.id), "job_type": "work", "attempt": 2}


async def test_it_tells_what_the_job_was_enqueued_with(bench: Bench) -> None:
    seen: list[Context] = []

    async def work(context: Context, payload: Any) -> None:
        seen.append(context)
        assert 0 < context.remaining_seconds <= 7
        assert not context.cancelled

    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    job_id = await bench.enqueue(
        "work",
        queue="letters",
        timeout_seconds=7.0,
        tags=("a", "b"),
        metadata=b'{"of": {"whom": 1}}',
        trace_context=traceparent,
    )
    await start_worker(bench, job_type("work", work))
    await bench.ended(job_id)
    (context,) = seen
    assert (context.id, context.queue, context.timeout_seconds) == (job_id, "letters", 7.0)
    assert (context.tags, context.metadata, context.trace_context) == (("a", "b"), {"of": {"whom": 1}}, traceparent)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Kind.ASYNC, Kind.THREAD])
async def test_extending_moves_the_timeout_and_the_lease(bench: Bench, kind: Kind) -> None:
    """A worker with short leases: what is extended must also be renewed for longer."""
    remaining: list[float] = []

    async def of_loop(context: Context, payload: Any) -> str:
        context.extend(30)
        remaining.append(context.remaining_seconds)
        await asyncio.sleep(2)
        return "done"

    def in_thread(context: Context, payload: Any) -> str:
        context.extend(30)
        remaining.append(context.remaining_seconds)
        time.sleep(2)
        return "done"

    tally = Tally()
    handler = of_loop if kind is Kind.ASYNC else in_thread
    await start_worker(bench, job_type("work", handler, kind=kind), events=tally, settings={"lease_seconds": 1.5})
    job_id = await bench.enqueue("work", timeout_seconds=1.0)
    job = await bench.ended(job_id)
    assert (job.status, job.attempts) == (Status.COMPLETED, 1)
    assert 31.0 - limit(0.8) < remaining[0] <= 31.0
    assert await bench.history(job_id) == []


async def test_an_extended_attempt_still_times_out(bench: Bench) -> None:
    async def work(context: Context, payload: Any) -> None:
        context.extend(0.4)
        await asyncio.sleep(30)

    await start_worker(bench, job_type("work", work))
    began = time.monotonic()
    job_id = await bench.enqueue("work", timeout_seconds=0.2, max_attempts=1)
    job = await bench.ended(job_id)
    assert 0.55 < time.monotonic() - began < limit(3)
    assert job.last_error == "the attempt exceeded its timeout of 0.6 seconds"


async def test_extending_comes_too_late_once_it_was_interrupted_or_has_ended(bench: Bench) -> None:
    kept: list[Context] = []
    late: list[str] = []

    async def work(context: Context, payload: Any) -> None:
        kept.append(context)
        try:
            await asyncio.sleep(30)
        finally:
            assert context.cancelled
            assert context.remaining_seconds == 0
            try:
                context.extend(10)
            except WrongStatus as error:
                late.append(str(error))

    await start_worker(bench, job_type("work", work))
    job_id = await bench.enqueue("work", timeout_seconds=0.2, max_attempts=1)
    assert (await bench.ended(job_id)).status is Status.DEAD_LETTER
    assert late == ["this attempt has ended or was interrupted, so it can't be extended any more"]
    with pytest.raises(WrongStatus):
        kept[0].extend(1)
    kept[0].progress(0.5)


async def test_a_thread_learns_that_it_is_not_wanted(bench: Bench) -> None:
    noticed = threading.Event()
    started = threading.Event()

    def work(context: Context, payload: Any) -> None:
        started.set()
        while not context.cancelled:
            time.sleep(0.005)
        noticed.set()

    worker = await start_worker(bench, job_type("work", work, kind=Kind.THREAD))
    job_id = await bench.enqueue("work")
    await wait_until(started.is_set, 3)
    await bench.jobs.cancel(job_id)
    assert (await bench.ended(job_id)).status is Status.CANCELLED
    await wait_until(noticed.is_set, 2)
    await wait_until(lambda: worker.running == 0, 2)


async def test_progress_can_be_seen_while_it_runs(bench: Bench) -> None:
    go_on = threading.Event()

    def work(context: Context, payload: Any) -> None:
        context.progress(0.4, "half way")
        go_on.wait(10)

    await start_worker(bench, job_type("work", work, kind=Kind.THREAD))
    job_id = await bench.enqueue("work")

    async def seen() -> bool:
        return bool(await bench.value("select progress from fencepost.leases where id = $1", job_id))

    await wait_until(seen, 3)
    written = await bench.value("select progress->>'message' from fencepost.leases where id = $1", job_id)
    go_on.set()
    assert written == "half way"
    await bench.ended(job_id)


async def effects(bench: Bench) -> None:
    await bench.sql("create table effects (job uuid not null, attempt int not null)")


ASYNC_SQL = "insert into effects values ($1, $2)"


async def test_completing_in_a_transaction_that_commits(bench: Bench) -> None:
    await effects(bench)

    async def work(context: Context, payload: Any) -> str:
        connection = await asyncpg.connect(bench.dsn)
        try:
            async with connection.transaction():
                await connection.execute(ASYNC_SQL, context.id, context.attempt)
                await context.complete_in(connection, {"kept": True})
        finally:
            await connection.close()
        if payload == "raise":
            raise ValueError("after it was done")
        return "not this one"

    tally = Tally()
    await start_worker(bench, job_type("work", work), events=tally)
    ids = [await bench.enqueue("work", payload) for payload in ("return", "raise")]
    for job in await bench.finished(*ids):
        assert (job.status, job.attempts, result_of(job)) == (Status.COMPLETED, 1, b'{"kept": true}')
        assert await bench.history(job.id) == []
    assert await bench.value("select count(*) from effects") == 2
    await wait_until(lambda: tally.endings == {(Ending.SUCCEEDED, Status.COMPLETED): 2}, 3)
    await bench.audit()


async def test_completing_in_a_transaction_that_rolls_back(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Whether the handler says so or not: the job is tried again, and its effects are there once."""
    await effects(bench)

    async def work(context: Context, payload: Any) -> None:
        connection = await asyncpg.connect(bench.dsn)
        try:
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(ASYNC_SQL, context.id, context.attempt)
            await context.complete_in(connection)
            if context.attempt == 2:
                return await transaction.commit()
            await transaction.rollback()
            if payload == "raise":
                raise ValueError("rolled back")
        finally:
            await connection.close()

    await start_worker(bench, job_type("work", work))
    ids = [await bench.enqueue("work", payload) for payload in ("return", "raise")]
    for job in await bench.finished(*ids):
        assert (job.status, job.attempts) == (Status.COMPLETED, 2)
    told = [(await bench.history(job_id))[0] for job_id in ids]
    assert [(past.outcome, past.error_type) for past in told] == [("failed", "NotCommitted"), ("failed", "ValueError")]
    assert told[0].error == "complete_in was called, but the handler returned before its transaction was committed"
    assert await bench.value("select count(*) from effects") == 2
    await bench.audit()


async def test_completing_from_a_plain_function(bench: Bench) -> None:
    await effects(bench)

    def work(context: Context, payload: Any) -> None:
        with psycopg.connect(bench.dsn) as connection:
            connection.execute("insert into effects values (%s, %s)", (context.id, context.attempt))
            context.complete_in_sync(connection, [1, 2])

    await start_worker(bench, job_type("work", work, kind=Kind.THREAD))
    job = await bench.ended(await bench.enqueue("work"))
    assert (job.status, result_of(job)) == (Status.COMPLETED, b"[1, 2]")
    assert await bench.value("select count(*) from effects") == 1


async def test_completing_from_a_child(bench: Bench) -> None:
    await effects(bench)
    await start_worker(bench, TYPES["completes"])
    jobs = await bench.finished(
        await bench.enqueue("completes", {"dsn": bench.dsn, "rollback": False}),
        await bench.enqueue("completes", {"dsn": bench.dsn, "rollback": True}, max_attempts=1),
        seconds=20,
    )
    assert [(job.status, result_of(job)) for job in jobs] == [(Status.COMPLETED, b'"kept"'), (Status.DEAD_LETTER, None)]
    assert (await bench.history(jobs[1].id))[0].error_type == "NotCommitted"
    assert await bench.value("select count(*) from effects") == 1


async def test_completing_what_is_no_longer_ours(bench: Bench) -> None:
    await effects(bench)
    raised: list[BaseException] = []
    may_go = asyncio.Event()

    async def work(context: Context, payload: Any) -> None:
        if context.attempt == 2:
            return
        await may_go.wait()
        connection = await asyncpg.connect(bench.dsn)
        try:
            async with connection.transaction():
                await connection.execute(ASYNC_SQL, context.id, context.attempt)
                await context.complete_in(connection)
        except LeaseLost as error:
            raised.append(error)
            raise
        finally:
            await connection.close()

    await start_worker(bench, job_type("work", work))
    job_id = await bench.enqueue("work")
    await bench.reached(job_id, Status.PROCESSING)
    await bench.expire(job_id)
    may_go.set()
    await wait_until(lambda: raised, 3)
    await bench.audit()
    assert await bench.value("select count(*) from effects") == 0


async def test_completing_is_refused_before_anything_is_written(bench: Bench) -> None:
    refused: list[tuple[type, str]] = []

    async def work(context: Context, payload: Any) -> str:
        connection = await asyncpg.connect(bench.dsn)
        # Closed first: the outcome is written by then, so the test may end, and cancel this, in the other's closing.
        try:
            with psycopg.connect(bench.dsn) as other:
                for attempt in (
                    context.complete_in(connection),
                    context.complete_in(other),
                    context.complete_in("no connection"),
                ):
                    try:
                        await attempt
                    except WrongConnection as error:
                        refused.append((type(error), str(error)))
            async with connection.transaction():
                try:
                    await context.complete_in(connection, object())
                except InvalidJob as error:
                    refused.append((type(error), str(error)))
                try:
                    await context.complete_in(connection, "x" * 2_000_000)
                except InvalidJob as error:
                    refused.append((type(error), str(error)))
                await context.complete_in(connection, "the first")
                try:
                    await context.complete_in(connection, "the second")
                except WrongStatus as error:
                    refused.append((type(error), str(error)))
        finally:
            await connection.close()
        return "returned"

    await start_worker(bench, job_type("work", work))
    job = await bench.ended(await bench.enqueue("work"))
    assert result_of(job) == b'"the first"', job.last_error
    assert [kind for kind, _ in refused] == [WrongConnection] * 3 + [InvalidJob] * 2 + [WrongStatus]
    words = [text for _, text in refused]
    assert "needs an open transaction" in words[0]
    assert "complete_in_sync" in words[1]
    assert words[3].startswith("result: ")
    assert "the limit is" in words[4]


async def test_a_handler_that_leaves_its_transaction_open_holds_up_nobody(bench: Bench) -> None:
    """Its row is locked, so its outcome waits; those of the others must not."""
    connections: list[Any] = []
    completed = asyncio.Event()

    async def leaves(context: Context, payload: Any) -> None:
        connection = await asyncpg.connect(bench.dsn)
        connections.append(connection)
        await connection.execute("begin")
        await context.complete_in(connection)
        completed.set()

    async def other(context: Context, payload: Any) -> None:
        return None

    await start_worker(bench, job_type("leaves", leaves), job_type("other", other))
    left = await bench.enqueue("leaves")
    await wait_until(completed.is_set, 10)
    try:
        for job in await bench.finished(*[await bench.enqueue("other") for _ in range(20)], seconds=8):
            assert job.status is Status.COMPLETED
        await connections[0].execute("commit")
    finally:
        # What is left open would be reported of a test that has nothing to do with it.
        await connections[0].close()
    job = await bench.ended(left)
    assert (job.status, job.attempts) == (Status.COMPLETED, 1)
