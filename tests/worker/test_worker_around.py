"""What an app runs around its attempts."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from fencepost.domain.context import Context
from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending
from fencepost.errors import InvalidSettings, Permanent
from fencepost.types.jobtype import Kind
from fencepost.worker.around import Around
from tests.patience import limit

from .process_jobs import TYPES
from .runtimes import job_type, result_of, start_worker
from .support import Bench, Tally, wait_until

pytestmark = pytest.mark.anyio

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


async def test_they_nest_in_their_order_around_handlers_of_every_kind(bench: Bench) -> None:
    told: dict[str, list[str]] = {}

    def named(name: str) -> Any:
        async def around(context: Context) -> AsyncIterator[None]:
            lines = told.setdefault(context.type, [])
            lines.append(f"{name} in")
            VARIABLE.set(f"set by {name}")
            yield
            lines.append(f"{name} out")

        return around

    async def of_loop(context: Context, payload: Any) -> str:
        told[context.type].append("handler")
        return VARIABLE.get()

    def in_thread(context: Context, payload: Any) -> str:
        told[context.type].append("handler")
        return VARIABLE.get()

    await start_worker(
        bench,
        job_type("of_loop", of_loop),
        job_type("in_thread", in_thread, kind=Kind.THREAD),
        TYPES["square"],
        around_attempt=(named("a"), named("b")),
    )
    ids = [await bench.enqueue(name, 3) for name in ("of_loop", "in_thread", "square")]
    jobs = await bench.finished(*ids)
    assert [result_of(job) for job in jobs] == [b'"set by b"', b'"set by b"', b"9"]
    inside = ["a in", "b in", "handler", "b out", "a out"]
    assert told == {"of_loop": inside, "in_thread": inside, "square": ["a in", "b in", "b out", "a out"]}


async def test_plain_ones_run_in_the_thread_of_a_plain_handler(bench: Bench) -> None:
    where: dict[str, list[str]] = {}
    raised: list[BaseException] = []

    def note(context: Context, what: str) -> None:
        thread = threading.current_thread()
        where.setdefault(context.type, []).append(
            f"{what} {'thread' if thread.name == f'fencepost-job-{context.id}' else 'loop'}"
        )

    def plain(context: Context) -> Iterator[None]:
        note(context, "plain")
        try:
            yield
        except ValueError as error:
            raised.append(error)
            raise
        finally:
            note(context, "plain out")

    async def of_loop(context: Context) -> AsyncIterator[None]:
        note(context, "async")
        yield

    def in_thread(context: Context, payload: Any) -> None:
        note(context, "handler")
        if payload == "fail":
            raise ValueError("no")

    async def in_loop(context: Context, payload: Any) -> None:
        note(context, "handler")

    await start_worker(
        bench,
        job_type("in_thread", in_thread, kind=Kind.THREAD),
        job_type("in_loop", in_loop),
        around_attempt=(plain, of_loop),
    )
    ids = [await bench.enqueue("in_thread"), await bench.enqueue("in_loop")]
    assert {job.status for job in await bench.finished(*ids)} == {Status.COMPLETED}
    assert where["in_thread"] == ["async loop", "plain thread", "handler thread", "plain out thread"]
    assert where["in_loop"] == ["plain loop", "async loop", "handler loop", "plain out loop"]
    failed = await bench.ended(await bench.enqueue("in_thread", "fail", max_attempts=1))
    assert (failed.status, failed.last_error) == (Status.DEAD_LETTER, "no")
    assert len(raised) == 1


async def test_what_they_raise_is_a_failure_of_the_attempt(bench: Bench) -> None:
    ran: list[str] = []

    async def around(context: Context) -> AsyncIterator[None]:
        if context.type == "before":
            raise Permanent("not allowed in")
        yield
        raise ValueError("not allowed out")

    async def work(context: Context, payload: Any) -> None:
        ran.append(context.type)

    await start_worker(bench, job_type("before", work), job_type("after", work), around_attempt=(around,))
    before, after = await bench.finished(await bench.enqueue("before"), await bench.enqueue("after", max_attempts=1))
    assert (before.status, before.last_error) == (Status.FAILED, "not allowed in")
    assert (after.status, after.last_error) == (Status.DEAD_LETTER, "not allowed out")
    assert ran == ["after"]


async def test_one_that_suppresses_an_exception_makes_the_attempt_succeed(bench: Bench) -> None:
    async def around(context: Context) -> AsyncIterator[None]:
        with contextlib.suppress(ValueError):
            yield

    async def work(context: Context, payload: Any) -> str:
        raise ValueError("never mind")

    await start_worker(bench, job_type("work", work), around_attempt=(around,))
    job = await bench.ended(await bench.enqueue("work"))
    assert (job.status, job.result) == (Status.COMPLETED, None)


@pytest.mark.parametrize("kind", [Kind.ASYNC, Kind.PROCESS])
async def test_an_interruption_passes_through_them_as_a_cancellation(bench: Bench, kind: Kind) -> None:
    seen: list[str] = []

    async def around(context: Context) -> AsyncIterator[None]:
        try:
            yield
        except Exception:
            # Such as middleware that reports errors, and goes on. A timeout is none.
            seen.append("an error")
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def hangs(context: Context, payload: Any) -> None:
        await asyncio.sleep(30)

    tally = Tally()
    types = (job_type("stuck_in_c", hangs),) if kind is Kind.ASYNC else (TYPES["stuck_in_c"],)
    await start_worker(bench, *types, around_attempt=(around,), events=tally)
    job = await bench.ended(await bench.enqueue("stuck_in_c", timeout_seconds=0.5, max_attempts=1))
    assert (job.status, seen) == (Status.DEAD_LETTER, ["cancelled"])
    await wait_until(lambda: tally.endings == {(Ending.TIMED_OUT, Status.DEAD_LETTER): 1}, 2)
    assert tally.stuck_ever == 0


@pytest.mark.slow
async def test_the_timeout_holds_for_them_too(bench: Bench) -> None:
    """Also around a plain handler, whose thread doesn't run yet or any more."""

    async def around(context: Context) -> AsyncIterator[None]:
        if context.attempt == 1:
            await asyncio.sleep(30)
        yield
        await asyncio.sleep(30)

    ran: list[int] = []

    def work(context: Context, payload: Any) -> None:
        ran.append(context.attempt)

    tally = Tally()
    await start_worker(bench, job_type("work", work, kind=Kind.THREAD), around_attempt=(around,), events=tally)
    began = time.monotonic()
    # Time enough for its thread to run.
    job_id = await bench.enqueue("work", timeout_seconds=0.8, max_attempts=2)
    job = await bench.ended(job_id)
    assert time.monotonic() - began < limit(3)
    assert job.status is Status.DEAD_LETTER
    assert [past.outcome for past in await bench.history(job_id)] == ["timed_out"] * 2
    assert ran == [2]
    assert tally.stuck_ever == 0, "nothing was stuck: there was no thread to wait for"


async def test_one_that_cancels_a_job_in_a_child_ends_the_child(bench: Bench) -> None:
    async def around(context: Context) -> AsyncIterator[None]:
        async with asyncio.timeout(0.4):
            yield

    worker = await start_worker(bench, TYPES["stuck_in_c"], around_attempt=(around,))
    job = await bench.ended(await bench.enqueue("stuck_in_c", max_attempts=1))
    assert (job.status, "TimeoutError" in (job.last_error or "")) == (Status.DEAD_LETTER, True)
    await wait_until(lambda: worker._executor._children.count == 0, 2)


def test_what_does_not_yield_is_refused() -> None:
    async def no_yield(context: Context) -> None:
        return None

    for function in (no_yield, lambda context: None):
        with pytest.raises(InvalidSettings, match="write a function that yields once"):
            Around((function,))  # type: ignore[arg-type]
