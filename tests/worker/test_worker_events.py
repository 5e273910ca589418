"""What listeners hear of."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from uuid import UUID

import pytest

from fencepost.domain.context import Context
from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending
from fencepost.errors import InvalidSettings, Permanent, Snooze
from fencepost.telemetry.events import (
    AttemptEnded,
    AttemptStarted,
    Event,
    HandlerReturned,
    HandlerStuck,
    Hooks,
    JobEnqueued,
    JobRecovered,
)
from fencepost.types.jobtype import Kind
from fencepost.worker import executor as executor_module

from .runtimes import job_type, start_worker
from .support import Bench, records, wait_until

pytestmark = pytest.mark.anyio


def of_kind(heard: list[Event], kind: type) -> list[Any]:
    return [event for event in heard if isinstance(event, kind)]


async def test_each_attempt_is_told_of_with_its_ending(bench: Bench) -> None:
    heard: list[Event] = []
    hooks = Hooks([heard.append])

    async def work(context: Context, payload: Any) -> str:
        if payload == "fail" and context.attempt == 1:
            raise ValueError("first")
        if payload == "permanent":
            raise Permanent("never")
        return "done"

    await start_worker(bench, job_type("work", work), hooks=hooks)
    good = await bench.ended(await bench.enqueue("work", "good", queue="letters"))
    flaky = await bench.ended(await bench.enqueue("work", "fail"))
    never = await bench.ended(await bench.enqueue("work", "permanent"))
    await wait_until(lambda: len(of_kind(heard, AttemptEnded)) == 4, 2)
    started = [event for event in heard if isinstance(event, AttemptStarted) and event.job_id == good.id]
    assert started == [AttemptStarted(job_id=good.id, type="work", queue="letters", attempt=1, token=1)]
    ends = {
        job.id: [event for event in heard if isinstance(event, AttemptEnded) and event.job_id == job.id]
        for job in (good, flaky, never)
    }
    (end,) = ends[good.id]
    assert (end.ending, end.status, end.error, end.error_type, end.retry_delay_seconds, end.queue) == (
        Ending.SUCCEEDED,
        Status.COMPLETED,
        None,
        None,
        None,
        "letters",
    )
    assert 0 < end.seconds < 5
    first, second = ends[flaky.id]
    assert (first.ending, first.status, first.error, first.error_type, first.attempt) == (
        Ending.FAILED,
        Status.PENDING,
        "first",
        "ValueError",
        1,
    )
    assert 0 < (first.retry_delay_seconds or 0) <= 0.1
    assert (second.ending, second.attempt, second.token) == (Ending.SUCCEEDED, 2, 2)
    assert [(event.ending, event.status) for event in ends[never.id]] == [(Ending.PERMANENT, Status.FAILED)]


async def test_snoozed_lost_and_recovered_attempts_are_told_of(bench: Bench) -> None:
    heard: list[Event] = []

    async def work(context: Context, payload: Any) -> None:
        if context.token == 1:
            raise Snooze(0.01)
        if context.token == 2:
            await asyncio.sleep(30)

    await start_worker(
        bench,
        job_type("work", work),
        hooks=Hooks([heard.append]),
        settings={"lease_seconds": 0.6, "job_timeout_seconds": 60.0, "recovery_interval_seconds": 0.1},
    )
    job_id = await bench.enqueue("work")
    await wait_until(lambda: len(of_kind(heard, AttemptStarted)) == 2, 5)
    await bench.sql(
        "update fencepost.leases set locked_until = started_at + interval '1us', token = token + 5 where id = $1",
        job_id,
    )
    await bench.ended(job_id)
    await wait_until(lambda: len(of_kind(heard, AttemptEnded)) == 3 and of_kind(heard, JobRecovered), 3)
    snoozed, lost, done = sorted(of_kind(heard, AttemptEnded), key=lambda event: event.token)
    assert (snoozed.ending, snoozed.status, snoozed.error, snoozed.retry_delay_seconds) == (
        Ending.SNOOZED,
        Status.PENDING,
        None,
        0.01,
    )
    assert (lost.ending, lost.status) == (Ending.LOST, None)
    assert (done.ending, done.token > lost.token) == (Ending.SUCCEEDED, True)
    assert of_kind(heard, JobRecovered) == [JobRecovered(job_id=job_id, attempt=1, status=Status.PENDING)]


async def test_a_stuck_handler_is_told_of(bench: Bench, monkeypatch: pytest.MonkeyPatch, unblock: Any) -> None:
    heard: list[Event] = []
    let_go = unblock(threading.Event())

    def work(context: Context, payload: Any) -> None:
        let_go.wait()

    await start_worker(bench, job_type("work", work, kind=Kind.THREAD), hooks=Hooks([heard.append]))
    job_id = await bench.enqueue("work", timeout_seconds=0.2, max_attempts=1)
    await bench.ended(job_id)
    assert of_kind(heard, HandlerStuck) == [
        HandlerStuck(job_id=job_id, type="work", attempt=1, interrupted_by=Ending.TIMED_OUT)
    ]
    let_go.set()
    await wait_until(lambda: of_kind(heard, HandlerReturned), 2)


async def test_a_listener_that_raises_disturbs_nobody(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []

    def breaks(event: Event) -> None:
        raise SystemExit("not today")

    await start_worker(
        bench, job_type("work", lambda context, payload: None, kind=Kind.THREAD), hooks=Hooks([breaks, heard.append])
    )
    job = await bench.ended(await bench.enqueue("work"))
    assert job.status is Status.COMPLETED
    await wait_until(lambda: len(heard) == 2, 2)
    assert {vars(record)["event_type"] for record in records(caplog, "fault in a listener")} == {
        "AttemptStarted",
        "AttemptEnded",
    }


async def test_nothing_is_made_when_nobody_listens(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("an event was made")

    monkeypatch.setattr(executor_module, "AttemptStarted", refuse)
    await start_worker(bench, job_type("work", lambda context, payload: None, kind=Kind.THREAD))
    assert (await bench.ended(await bench.enqueue("work"))).status is Status.COMPLETED


def test_listeners_are_plain_functions() -> None:
    async def listener(event: Event) -> None:
        return None

    with pytest.raises(InvalidSettings, match="listener can't hear events"):
        Hooks([listener])
    hooks = Hooks()
    heard: list[Event] = []
    hooks.add(heard.append)
    event = JobEnqueued(UUID(int=1), "work", "default")
    hooks.emit(event)
    assert heard == [event]
