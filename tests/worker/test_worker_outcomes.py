"""What becomes of a job, by the way its handler ends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from fencepost.domain.context import Context
from fencepost.domain.job import Status
from fencepost.domain.outcome import DELAY_CEILING_SECONDS, Ending, Outcome
from fencepost.errors import Permanent, Retry
from tests.patience import limit

from .support import Bench, Tally, fields_of, records, wait_until

pytestmark = pytest.mark.anyio


async def test_a_job_that_succeeds_is_completed_with_its_result(bench: Bench) -> None:
    seen: list[Context] = []

    @bench.job("double", payload=dict[str, int])
    async def double(context: Context, payload: dict[str, int]) -> dict[str, int]:
        seen.append(context)
        return {"twice": payload["n"] * 2}

    tally = Tally()
    job_id = await bench.enqueue("double", {"n": 4_611_686_018_427_387_907}, queue="math", timeout_seconds=7.0)
    await bench.start(events=tally)
    job = await bench.ended(job_id)
    assert job.status is Status.COMPLETED
    assert msgspec.json.decode(job.result or b"") == {"twice": 9_223_372_036_854_775_814}
    assert (job.attempts, job.lease_token, job.last_error, job.locked_until, job.run_at) == (1, 1, None, None, None)
    assert job.started_at is not None
    assert job.finished_at is not None
    assert job.created_at <= job.started_at <= job.finished_at
    assert await bench.history(job_id) == []
    assert seen == [
        Context(id=job_id, type="double", queue="math", attempt=1, max_attempts=3, token=1, timeout_seconds=7.0)
    ]
    await wait_until(lambda: tally.endings == {(Ending.SUCCEEDED, Status.COMPLETED): 1}, 2)
    assert tally.starts == 1


async def test_it_is_retried_until_it_succeeds_after_a_delay_within_the_bounds(bench: Bench) -> None:
    base, ceiling = 0.1, 0.3

    @bench.job("flaky")
    async def flaky(context: Context, payload: Any) -> int:
        if context.attempt < 4:
            raise ConnectionError(f"no luck on attempt {context.attempt}")
        return context.attempt

    ids = await bench.enqueue_many("flaky", [None] * 6, max_attempts=5)
    # What a failure leaves in `pending`, before the next claim takes it away.
    await bench.sql("create table public.delays (id uuid, attempt int, run_at timestamptz, made_at timestamptz)")
    await bench.sql(
        "create function public.keep() returns trigger language plpgsql as $$ begin "
        "insert into public.delays select new.id, new.attempts, new.run_at, a.ended_at from fencepost.attempts a "
        "where a.id = new.id and a.token = new.token; return null; end $$"
    )
    await bench.sql(
        "create constraint trigger keep after insert on fencepost.pending deferrable initially deferred "
        "for each row execute function public.keep()"
    )
    worker = bench.make(backoff_base_seconds=base, backoff_max_seconds=ceiling)
    asked: dict[tuple[Any, int], float] = {}

    def noting(write: Callable[..., Any]) -> Callable[..., Any]:
        async def note(queue_id: int, outcomes: list[Outcome], **rest: Any) -> Any:
            asked.update(((one.id, one.token), one.delay_seconds) for one in outcomes)
            return await write(queue_id, outcomes, **rest)

        return note

    for way in ("settle", "turn"):
        setattr(worker._store, way, noting(getattr(worker._store, way)))
    await worker.start()
    jobs = await bench.finished(*ids)
    assert {(job.status, job.attempts, job.lease_token) for job in jobs} == {(Status.COMPLETED, 4, 4)}
    history = await bench.history(ids[0])
    assert [(past.attempt, past.token, past.outcome, past.error_type) for past in history] == [
        (1, 1, "failed", "ConnectionError"),
        (2, 2, "failed", "ConnectionError"),
        (3, 3, "failed", "ConnectionError"),
    ]
    assert history[1].error == "no luck on attempt 2"
    delays = await bench.sql(
        "select id, attempt, extract(epoch from run_at - made_at)::float8 seconds from public.delays"
    )
    assert len(delays) == 18
    # The two clock readings of one statement are apart by as long as the server stands still between them.
    apart = sorted(abs(row["seconds"] - asked[row["id"], row["attempt"]]) for row in delays)
    assert apart[9] < 0.005, apart
    assert apart[-1] < limit(0.5), apart
    for attempt, bound in ((1, 0.1), (2, 0.2), (3, 0.3)):
        drawn = [asked[job_id, attempt] for job_id in ids]
        assert all(bound / 2 <= seconds <= bound for seconds in drawn), (attempt, drawn)
        assert len({round(seconds, 4) for seconds in drawn}) > 1, "no jitter"


async def test_it_is_not_started_before_its_delay_is_over(bench: Bench) -> None:
    starts: list[float] = []

    @bench.job("flaky")
    async def flaky(context: Context, payload: Any) -> None:
        starts.append(time.monotonic())
        if context.attempt == 1:
            raise ValueError("once")

    job_id = await bench.enqueue("flaky")
    await bench.start(backoff_base_seconds=0.4, backoff_max_seconds=1.0)
    await bench.ended(job_id)
    assert 0.2 <= starts[1] - starts[0] <= limit(0.4 + 0.15)


async def test_the_last_attempt_ends_in_the_dead_letter_and_can_be_retried_by_hand(bench: Bench) -> None:
    broken = True

    @bench.job("fragile")
    async def fragile(context: Context, payload: Any) -> str:
        if broken:
            raise OSError(f"attempt {context.attempt} of {context.max_attempts}, last: {context.is_last}")
        return f"attempt {context.attempt} with token {context.token}"

    tally = Tally()
    job_id = await bench.enqueue("fragile", max_attempts=3)
    await bench.start(events=tally)
    job = await bench.ended(job_id)
    assert (job.status, job.attempts, job.lease_token) == (Status.DEAD_LETTER, 3, 3)
    assert job.last_error == "attempt 3 of 3, last: True"
    ways = {(Ending.FAILED, Status.PENDING): 2, (Ending.FAILED, Status.DEAD_LETTER): 1}
    await wait_until(lambda: tally.endings == ways, 2)

    broken = False
    await bench.jobs.retry(job_id)
    job = await bench.ended(job_id)
    assert (job.status, job.attempts, job.lease_token) == (Status.COMPLETED, 1, 4)
    assert job.result is not None
    assert msgspec.json.decode(job.result) == "attempt 1 with token 4"
    assert [(past.attempt, past.token) for past in await bench.history(job_id)] == [(1, 1), (2, 2), (3, 3)]


async def test_a_permanent_error_fails_at_once(bench: Bench) -> None:
    class NoSuchCustomer(Permanent):
        pass

    @bench.job("charge")
    async def charge(context: Context, payload: Any) -> None:
        raise NoSuchCustomer("customer 17 is gone")

    job_id = await bench.enqueue("charge")
    await bench.start()
    job = await bench.ended(job_id)
    assert (job.status, job.attempts, job.last_error) == (Status.FAILED, 1, "customer 17 is gone")
    (past,) = await bench.history(job_id)
    assert (past.outcome, past.error_type) == ("permanent", "NoSuchCustomer")


async def test_a_type_that_no_worker_knows_fails_and_is_named(bench: Bench) -> None:
    job_id = await bench.enqueue("teleport")
    await bench.start()
    job = await bench.ended(job_id)
    assert (job.status, job.attempts) == (Status.FAILED, 1)
    assert "'teleport'" in (job.last_error or "")
    assert [past.error_type for past in await bench.history(job_id)] == ["UnknownJobType"]


class Mail(msgspec.Struct, forbid_unknown_fields=True):
    to: str
    copies: int = 1


async def test_a_payload_that_does_not_fit_fails_and_names_the_field(bench: Bench) -> None:
    payloads: list[tuple[Any, str]] = [
        ({"to": 5}, "$.to"),
        ({"copies": 2}, "`to`"),
        ({"to": "ada", "copies": "many"}, "$.copies"),
        ({"to": "ada", "subject": "x"}, "`subject`"),
        ([], "object"),
    ]
    called = False

    @bench.job("mail", payload=Mail)
    async def mail(context: Context, payload: Mail) -> None:
        nonlocal called
        called = True

    ids = await bench.enqueue_many("mail", [payload for payload, _ in payloads])
    await bench.start()
    for job, (_, named) in zip(await bench.finished(*ids), payloads, strict=True):
        assert (job.status, job.attempts, called) == (Status.FAILED, 1, False)
        assert named in (job.last_error or "")
        assert "'mail'" in (job.last_error or "")


async def test_a_crash_is_logged_with_its_trace_and_retried(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fencepost")

    def deep_inside(things: list[int]) -> int:
        return things[7]

    @bench.job("crash")
    async def crash(context: Context, payload: Any) -> int | None:
        return deep_inside([]) if context.is_last else None if context.attempt == 2 else deep_inside([1])

    job_id = await bench.enqueue("crash")
    await bench.start()
    job = await bench.ended(job_id)
    assert (job.status, job.attempts) == (Status.COMPLETED, 2)
    await wait_until(lambda: len(records(caplog, "job finished")) == 2, 2)
    first = min(records(caplog, "job finished"), key=lambda record: fields_of(record)["attempt"])
    assert first.levelno == logging.WARNING
    fields = fields_of(first)
    assert fields["error_type"] == "IndexError"
    assert "in deep_inside" in fields["traceback"]
    assert "return things[7]" in fields["traceback"]
    (past,) = await bench.history(job_id)
    assert past.error == "list index out of range"
    assert past.traceback is not None
    assert "in deep_inside" in past.traceback
    assert past.traceback.rstrip().endswith("IndexError: list index out of range")


async def test_a_chain_of_causes_is_in_the_trace(bench: Bench) -> None:
    @bench.job("wrapped")
    async def wrapped(context: Context, payload: Any) -> None:
        try:
            raise KeyError("the root")
        except KeyError as error:
            raise RuntimeError("the surface") from error

    job_id = await bench.enqueue("wrapped", max_attempts=1)
    await bench.start()
    await bench.ended(job_id)
    trace = (await bench.history(job_id))[0].traceback or ""
    assert "KeyError: 'the root'" in trace
    assert "RuntimeError: the surface" in trace


async def test_an_attempt_that_takes_too_long_is_timed_out_and_retried(bench: Bench) -> None:
    cleaned_up: list[int] = []

    @bench.job("slow")
    async def slow(context: Context, payload: Any) -> str:
        try:
            await asyncio.sleep(30 if context.attempt == 1 else 0)
        finally:
            cleaned_up.append(context.attempt)
        return "in time"

    by_worker = await bench.enqueue("slow")
    by_job = await bench.enqueue("slow", timeout_seconds=0.1)
    tally = Tally()
    await bench.start(job_timeout_seconds=0.3, events=tally)
    for job_id, timeout in ((by_worker, "0.3"), (by_job, "0.1")):
        job = await bench.ended(job_id)
        assert (job.status, job.attempts) == (Status.COMPLETED, 2)
        (past,) = await bench.history(job_id)
        assert (past.outcome, past.error_type) == ("timed_out", "Timeout")
        assert f"timeout of {timeout} seconds" in (past.error or "")
        took = (past.ended_at - past.started_at).total_seconds()
        assert float(timeout) - 0.02 <= took <= limit(float(timeout) + 0.5)
    assert sorted(cleaned_up) == [1, 1, 2, 2]
    await wait_until(lambda: tally.endings[Ending.TIMED_OUT, Status.PENDING] == 2, 2)


async def test_a_job_may_take_longer_than_the_default_timeout(bench: Bench) -> None:
    @bench.job("slow")
    async def slow(context: Context, payload: Any) -> None:
        await asyncio.sleep(0.4)

    job_id = await bench.enqueue("slow", timeout_seconds=5.0)
    await bench.start(job_timeout_seconds=0.1)
    assert (await bench.ended(job_id)).attempts == 1


async def test_time_outs_use_up_the_attempts(bench: Bench) -> None:
    @bench.job("hangs")
    async def hangs(context: Context, payload: Any) -> None:
        await asyncio.Event().wait()

    job_id = await bench.enqueue("hangs", max_attempts=2, timeout_seconds=0.05)
    await bench.start()
    job = await bench.ended(job_id)
    assert (job.status, job.attempts) == (Status.DEAD_LETTER, 2)
    assert [past.outcome for past in await bench.history(job_id)] == ["timed_out", "timed_out"]


async def test_what_a_handler_does_about_its_time_out_is_the_end_of_it(bench: Bench) -> None:
    """A handler that is stopped may still return, and then its work is done; what it raises instead is a time-out."""

    @bench.job("stopped")
    async def stopped(context: Context, payload: str) -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            if payload == "returns":
                return "just made it"
            raise KeyError("while cleaning up") from None
        return ""

    returns = await bench.enqueue("stopped", "returns", timeout_seconds=0.1)
    raises = await bench.enqueue("stopped", "raises", timeout_seconds=0.1, max_attempts=1)
    await bench.start()
    job = await bench.ended(returns)
    assert job.status is Status.COMPLETED
    assert await bench.history(returns) == []
    assert (await bench.ended(raises)).status is Status.DEAD_LETTER
    assert [past.outcome for past in await bench.history(raises)] == ["timed_out"]


async def test_a_handler_may_ask_for_a_later_retry(bench: Bench) -> None:
    capped = (DELAY_CEILING_SECONDS, 1.1 * DELAY_CEILING_SECONDS + 1)
    # Longer than it takes to look at all of them.
    usual = (20.0, 41.0)
    asked: list[tuple[Any, tuple[float, float]]] = [
        (600.0, (600.0, 661.0)),
        (10**9, capped),
        (10**400, capped),
        (timedelta(minutes=10), (600.0, 661.0)),
        (0, usual),
        (None, usual),
        # Refused where they are said, which is a failure like any other.
        (float("inf"), usual),
        (-5, usual),
        (float("nan"), usual),
        ("soon", usual),
    ]

    @bench.job("busy", payload=int)
    async def busy(context: Context, payload: int) -> None:
        raise Retry("the other side is busy", after=asked[payload][0])

    ids = await bench.enqueue_many("busy", list(range(len(asked))))
    await bench.start(backoff_base_seconds=40.0, backoff_max_seconds=40.0)
    for job_id, (after, (least, most)) in zip(ids, asked, strict=True):
        job = await bench.reached_after(job_id, 1)
        (past,) = await bench.history(job_id)
        assert past.outcome == "failed"
        refused = after in ("soon", -5, float("inf")) or after != after
        assert past.error is not None
        assert past.error.startswith("after: must be seconds" if refused else "the other side is busy")
        assert job.run_at is not None
        waits = job.run_at - past.ended_at
        assert timedelta(seconds=least - 1) <= waits <= timedelta(seconds=most), after
