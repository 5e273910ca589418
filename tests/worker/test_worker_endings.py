"""The ways an attempt ends, told apart in its history, in the log and in what is counted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fencepost.domain.context import Context
from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending
from fencepost.errors import Cancel, Snooze
from fencepost.types.jobtype import Kind

from .process_jobs import TYPES
from .runtimes import job_type, result_of, start_worker
from .support import Bench, Tally, fields_of, records, wait_until, within

pytestmark = pytest.mark.anyio

KINDS = [Kind.ASYNC, Kind.THREAD, Kind.PROCESS]


async def crash(context: Context, payload: Any) -> None:
    raise ZeroDivisionError("division by zero")


def crash_in_thread(context: Context, payload: Any) -> None:
    raise ZeroDivisionError("division by zero")


async def hang(context: Context, payload: Any) -> None:
    await asyncio.sleep(30)


def finished_line(caplog: pytest.LogCaptureFixture, job_id: object) -> dict[str, Any]:
    """What the log says about the end of the only attempt at a job."""
    (line,) = [
        fields_of(record) for record in records(caplog, "job finished") if fields_of(record)["job_id"] == str(job_id)
    ]
    return line


@pytest.mark.parametrize("kind", KINDS)
async def test_a_crash(bench: Bench, caplog: pytest.LogCaptureFixture, kind: Kind) -> None:
    tally = Tally()
    handlers = {
        Kind.ASYNC: job_type("crash", crash),
        Kind.THREAD: job_type("crash", crash_in_thread, kind=kind),
        Kind.PROCESS: TYPES["fail"],
    }
    one = handlers[kind]
    await start_worker(bench, one, events=tally)
    job_id = await bench.enqueue(one.name, "other", max_attempts=1)
    job = await bench.ended(job_id)
    error_type = "ValueError" if kind is Kind.PROCESS else "ZeroDivisionError"
    assert job.status is Status.DEAD_LETTER
    (past,) = await bench.history(job_id)
    assert (past.outcome, past.error_type) == ("failed", error_type)
    assert f"{error_type}: " in (past.traceback or "")
    await wait_until(lambda: tally.endings == {(Ending.FAILED, Status.DEAD_LETTER): 1}, 2)
    line = finished_line(caplog, job_id)
    assert (line["outcome"], line["error_type"], line["status"]) == ("failed", error_type, "dead_letter")
    assert "traceback" in line


@pytest.mark.parametrize("kind", KINDS)
async def test_a_timeout(bench: Bench, caplog: pytest.LogCaptureFixture, unblock: Any, kind: Kind) -> None:
    let_go = unblock(threading.Event())
    handlers = {
        Kind.ASYNC: job_type("hang", hang),
        Kind.THREAD: job_type("hang", lambda context, payload: let_go.wait(), kind=kind),
        Kind.PROCESS: TYPES["stuck_in_c"],
    }
    one = handlers[kind]
    await start_worker(bench, one)
    job_id = await bench.enqueue(one.name, timeout_seconds=0.3, max_attempts=1)
    assert (await bench.ended(job_id)).status is Status.DEAD_LETTER
    (past,) = await bench.history(job_id)
    assert (past.outcome, past.error_type, past.error) == (
        "timed_out",
        "Timeout",
        "the attempt exceeded its timeout of 0.3 seconds",
    )
    await wait_until(lambda: records(caplog, "job finished"), 2)
    line = finished_line(caplog, job_id)
    assert (line["outcome"], line["error_type"]) == ("timed_out", "Timeout")
    let_go.set()


async def test_a_cancellation_from_outside_and_one_from_inside(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    async def cancels_itself(context: Context, payload: Any) -> None:
        raise Cancel("nobody wants it")

    async def raises_cancelled_error(context: Context, payload: Any) -> None:
        raise asyncio.CancelledError

    await start_worker(
        bench,
        job_type("hang", hang),
        job_type("cancels_itself", cancels_itself),
        job_type("raises_cancelled_error", raises_cancelled_error),
    )
    outside, inside, neither = [
        await bench.enqueue(name, max_attempts=1) for name in ("hang", "cancels_itself", "raises_cancelled_error")
    ]
    await bench.reached(outside, Status.PROCESSING)
    await bench.jobs.cancel(outside)
    jobs = await bench.finished(outside, inside, neither)
    assert [job.status for job in jobs] == [Status.CANCELLED, Status.CANCELLED, Status.DEAD_LETTER]
    past = [(await bench.history(job_id))[0] for job_id in (outside, inside, neither)]
    assert [(one.outcome, one.error_type) for one in past] == [
        ("cancelled", "Cancelled"),
        ("cancelled", "Cancel"),
        ("failed", "CancelledError"),
    ]
    await wait_until(lambda: len(records(caplog, "job finished")) == 3, 2)
    assert [finished_line(caplog, job_id)["outcome"] for job_id in (outside, inside, neither)] == [
        "cancelled",
        "cancelled",
        "failed",
    ]
    assert finished_line(caplog, inside)["error"] == "nobody wants it"


@pytest.mark.parametrize("returns", [False, True], ids=["interrupted", "returns before it is noticed"])
async def test_a_lost_lease(bench: Bench, caplog: pytest.LogCaptureFixture, returns: bool) -> None:
    may_go = asyncio.Event()

    async def work(context: Context, payload: Any) -> str:
        if context.token == 1:
            await may_go.wait()
            return "of the first"
        return "of the second"

    caplog.set_level(logging.INFO, "fencepost")
    tally = Tally()
    lease_seconds = 30.0 if returns else 0.6
    await start_worker(
        bench,
        job_type("work", work),
        events=tally,
        settings={"lease_seconds": lease_seconds, "job_timeout_seconds": 20.0 if returns else 0.5},
    )
    job_id = await bench.enqueue("work", timeout_seconds=20.0)
    await bench.reached(job_id, Status.PROCESSING)
    await bench.expire(job_id)
    if returns:
        may_go.set()
    await wait_until(lambda: tally.endings[Ending.LOST, None] == 1, 5)
    line = next(
        fields_of(record) for record in records(caplog, "job finished") if fields_of(record)["outcome"] == "lost"
    )
    assert (line["job_id"], line["attempt"], line["status"]) == (str(job_id), 1, None)
    assert "error" not in line
    (record,) = [record for record in records(caplog, "job finished") if fields_of(record)["outcome"] == "lost"]
    assert record.levelno == logging.WARNING
    assert [(past.outcome, past.error_type) for past in await bench.history(job_id)] == [("lost", "LeaseExpired")]


async def test_snoozing_costs_no_attempt_however_often(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    async def work(context: Context, payload: Any) -> int:
        assert context.attempt == 1
        if context.token <= 4:
            raise Snooze(0.02)
        return context.token

    caplog.set_level(logging.INFO, "fencepost.worker")
    tally = Tally()
    await start_worker(bench, job_type("work", work), events=tally)
    job_id = await bench.enqueue("work", max_attempts=1)
    job = await bench.ended(job_id)
    assert (job.status, job.attempts, result_of(job)) == (Status.COMPLETED, 1, b"5")
    assert await bench.history(job_id) == []
    await wait_until(lambda: tally.endings[Ending.SNOOZED, Status.PENDING] == 4, 2)
    snoozed = [record for record in records(caplog, "job finished") if fields_of(record)["outcome"] == "snoozed"]
    assert {(record.levelno, fields_of(record)["retry_delay_ms"]) for record in snoozed} == {(logging.INFO, 20)}


async def test_a_snooze_of_no_number_of_seconds_is_one_of_none(bench: Bench) -> None:
    async def work(context: Context, payload: Any) -> None:
        if context.token == 1:
            snooze = Snooze(1)
            snooze.seconds = float("nan")
            raise snooze

    await start_worker(bench, job_type("work", work))
    assert (await bench.ended(await bench.enqueue("work"))).status is Status.COMPLETED


async def test_a_job_whose_time_is_over_ends_without_its_handler(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[object] = []

    async def work(context: Context, payload: Any) -> None:
        ran.append(context.id)

    tally = Tally()
    job_id = await bench.enqueue("work", expires_seconds=0.001)
    stranger = await bench.enqueue("nobody_knows_it", expires_seconds=0.001)
    await asyncio.sleep(0.05)
    await start_worker(bench, job_type("work", work), events=tally)
    jobs = await bench.finished(job_id, stranger)
    assert [(job.status, job.last_error) for job in jobs] == [
        (Status.CANCELLED, "its time was over before this attempt started")
    ] * 2
    assert ran == []
    await wait_until(lambda: tally.endings == {(Ending.CANCELLED, Status.CANCELLED): 2}, 2)
    assert tally.starts == 2, "what starts less often than it ends makes a gauge negative"
    assert finished_line(caplog, job_id)["error_type"] == "Expired"


async def test_an_unknown_type_is_for_somebody_else_or_an_error(bench: Bench) -> None:
    await bench.sql("insert into fencepost.job_types (name, declared_at) values ('elsewhere', now())")
    elsewhere, nowhere = await bench.enqueue("elsewhere"), await bench.enqueue("nowhere")
    tally = Tally()
    await start_worker(bench, events=tally)
    job = await bench.ended(nowhere)
    assert (job.status, (await bench.history(nowhere))[0].error_type) == (Status.FAILED, "UnknownJobType")
    await wait_until(lambda: tally.endings[Ending.SNOOZED, Status.PENDING] >= 1, 3)
    job = await bench.get(elsewhere)
    assert (job.status, job.attempts) == (Status.PENDING, 0)
    assert await bench.history(elsewhere) == []


async def test_a_death_of_a_child_is_told_from_the_rest(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    await start_worker(bench, TYPES["die"])
    job_id = await bench.enqueue("die", "SIGKILL", max_attempts=1)
    await bench.ended(job_id)
    (past,) = await bench.history(job_id)
    assert (past.outcome, past.error_type, past.traceback) == ("failed", "ProcessDied", None)
    await wait_until(lambda: records(caplog, "job finished"), 2)
    assert finished_line(caplog, job_id)["error_type"] == "ProcessDied"


STOPPED = [(Ending.TIMED_OUT, "timed_out"), (Ending.CANCELLED, "cancelled"), (Ending.RELEASED, None)]


async def _stopped(bench: Bench, worker: Any, job_id: Any, ending: Ending) -> Status:
    """Have a running attempt stopped, and say how its job stands then."""
    if ending is Ending.TIMED_OUT:
        # It may be over by now.
        return (await bench.ended(job_id)).status
    await bench.reached(job_id, Status.PROCESSING)
    if ending is Ending.RELEASED:
        assert await worker.drain(0) == 0
        return (await bench.get(job_id)).status
    if ending is Ending.CANCELLED:
        await bench.jobs.cancel(job_id)
    return (await bench.ended(job_id)).status


@pytest.mark.parametrize(("ending", "outcome"), STOPPED)
@pytest.mark.parametrize("value", [None, False, "saved"])
@pytest.mark.parametrize("surrounded", [False, True])
async def test_an_async_handler_that_is_stopped_and_returns_none_was_stopped(
    bench: Bench, ending: Ending, outcome: str | None, value: object, surrounded: bool
) -> None:
    begun = asyncio.Event()

    async def tidies_up(context: Context, payload: Any) -> object:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(30)
        return value

    async def around(context: Context) -> AsyncIterator[None]:
        yield

    fields = {"around_attempt": (around,)} if surrounded else {}
    worker = await start_worker(bench, job_type("work", tidies_up), **fields)
    timeout = 0.4 if ending is Ending.TIMED_OUT else 20.0
    job_id = await bench.enqueue("work", timeout_seconds=timeout, max_attempts=1)
    await within(5, begun.wait())
    status = await _stopped(bench, worker, job_id, ending)
    past = [one.outcome for one in await bench.history(job_id)]
    if value is not None:
        assert (status, past) == (Status.COMPLETED, [])
    elif ending is Ending.RELEASED:
        assert status is Status.PENDING
        assert (await bench.get(job_id)).attempts == 0
    else:
        assert status is (Status.DEAD_LETTER if ending is Ending.TIMED_OUT else Status.CANCELLED)
        assert past == [outcome]


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "outcome"), STOPPED)
@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_around_it_does_not_make_a_stopped_attempt_succeed(
    bench: Bench, ending: Ending, outcome: str | None, kind: Kind
) -> None:
    async def around(context: Context) -> AsyncIterator[None]:
        with contextlib.suppress(BaseException):
            yield

    async def inside(context: Context) -> AsyncIterator[None]:
        if kind is Kind.THREAD:
            # Its thread couldn't be stopped, but doesn't run yet.
            await asyncio.sleep(30)
        yield

    types = {
        Kind.ASYNC: job_type("stuck_in_c", hang),
        Kind.THREAD: job_type("stuck_in_c", lambda context, payload: None, kind=kind),
        Kind.PROCESS: TYPES["stuck_in_c"],
    }
    worker = await start_worker(bench, types[kind], around_attempt=(around, inside))
    timeout = 0.6 if ending is Ending.TIMED_OUT else 20.0
    job_id = await bench.enqueue("stuck_in_c", timeout_seconds=timeout, max_attempts=1)
    status = await _stopped(bench, worker, job_id, ending)
    expected = {Ending.TIMED_OUT: Status.DEAD_LETTER, Ending.CANCELLED: Status.CANCELLED}
    assert status is expected.get(ending, Status.PENDING)
    if outcome is not None:
        assert [one.outcome for one in await bench.history(job_id)] == [outcome]


async def test_a_plain_function_that_returns_while_the_worker_stops_has_succeeded(bench: Bench) -> None:
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def until_cancelled(context: Context, payload: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        while not context.cancelled:
            time.sleep(0.01)

    worker = await start_worker(bench, job_type("work", until_cancelled, kind=Kind.THREAD))
    job_id = await bench.enqueue("work", max_attempts=1)
    await within(5, begun.wait())
    assert await _stopped(bench, worker, job_id, Ending.RELEASED) is Status.COMPLETED


async def test_a_worker_whose_tasks_are_cancelled_by_a_handler_says_so(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def cancels_all(context: Context, payload: Any) -> None:
        for task in asyncio.all_tasks():
            if task.get_name() == "fencepost-dispatcher":
                task.cancel()

    worker = await start_worker(bench, job_type("work", cancels_all))
    living = asyncio.create_task(worker.until(asyncio.Event()))
    await bench.enqueue("work")
    with pytest.raises(RuntimeError, match=r"ended without being asked to: fencepost-dispatcher \(was cancelled\)"):
        await within(5, living)
    (record,) = records(caplog, "a task of the worker ended without being asked to")
    assert record.levelno == logging.ERROR
    assert fields_of(record)["task"] == "fencepost-dispatcher"


async def test_a_worker_that_is_stopped_has_not_failed(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    worker = await start_worker(bench, job_type("work", hang))
    stop = asyncio.Event()
    living = asyncio.create_task(worker.until(stop))
    await worker.drain(0)
    assert not living.done()
    stop.set()
    await asyncio.wait_for(living, 2)
    assert records(caplog, "a task of the worker ended without being asked to") == []
