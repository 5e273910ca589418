"""The executor by itself: leases go in, outcomes come out."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import pytest

from fencepost.app import Fencepost
from fencepost.domain.backoff import Constant, Exponential
from fencepost.domain.context import Context
from fencepost.domain.job import Lease, Status
from fencepost.domain.outcome import Ending, Outcome, snoozed
from fencepost.domain.policy import Policy
from fencepost.types.jobtype import Handler
from fencepost.worker import executor as executor_module
from fencepost.worker.attempt import Attempt, Host
from fencepost.worker.executor import Executor, unknown_type
from fencepost.worker.journal import Journal

from .support import Tally, make_lease, records, wait_until

pytestmark = pytest.mark.anyio


class Runner:
    """An executor whose outcomes are kept."""

    def __init__(
        self,
        handler: Handler,
        *,
        slots: int = 4,
        payload: Any = Any,
        judge_stranger: Callable[[Lease], Awaitable[Outcome]] = unknown_type,
        **options: Any,
    ) -> None:
        app = Fencepost()
        app.register("work", handler, payload)
        app.types["work"] = msgspec.structs.replace(app.types["work"], **options)
        self.tally = Tally()
        self.settled: list[tuple[Attempt, Outcome | None]] = []
        self.executor = Executor(
            app.types,
            slots=slots,
            timeout_seconds=20.0,
            policy=Policy(Exponential(1.0, 1.0)),
            host=Host(max_result_bytes=1000),
            settle=lambda attempt, outcome: self.settled.append((attempt, outcome)),
            events=self.tally,
            journal=Journal(),
            judge_stranger=judge_stranger,
        )

    def begin(self, **lease: Any) -> Attempt:
        attempt = Attempt(make_lease(**lease))
        self.executor.start(attempt)
        return attempt

    async def run(self, **lease: Any) -> Outcome | None:
        attempt = self.begin(**lease)
        await wait_until(lambda: not self.executor.running, 5)
        return next(outcome for settled, outcome in self.settled if settled is attempt)

    @property
    def endings(self) -> list[Ending | None]:
        return [None if outcome is None else outcome.ending for _, outcome in self.settled]


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "GRACE_SECONDS", 0.1)


@pytest.mark.parametrize("ending", [Ending.TIMED_OUT, Ending.CANCELLED, Ending.RELEASED, Ending.LOST])
async def test_an_attempt_interrupted_before_its_first_step_still_ends(ending: Ending) -> None:
    started = False

    async def work(context: Context, payload: Any) -> None:
        nonlocal started
        started = True
        await asyncio.sleep(30)

    runner = Runner(work)
    attempt = runner.begin()
    runner.executor.interrupt(attempt, ending)
    await wait_until(lambda: not runner.executor.running, 2)
    assert runner.endings == [None if ending is Ending.LOST else ending]
    assert runner.executor.free == 4


async def test_only_the_first_interruption_counts() -> None:
    async def work(context: Context, payload: Any) -> None:
        await asyncio.sleep(30)

    runner = Runner(work)
    attempt = runner.begin()
    await asyncio.sleep(0)
    runner.executor.interrupt(attempt, Ending.CANCELLED)
    runner.executor.interrupt(attempt, Ending.TIMED_OUT)
    runner.executor.interrupt(attempt, Ending.RELEASED)
    await wait_until(lambda: runner.settled, 2)
    assert runner.endings == [Ending.CANCELLED]


async def test_a_lost_lease_overrides_every_other_interruption() -> None:
    async def work(context: Context, payload: Any) -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return "done all the same"
        return ""

    runner = Runner(work)
    attempt = runner.begin()
    await asyncio.sleep(0)
    runner.executor.interrupt(attempt, Ending.TIMED_OUT)
    runner.executor.interrupt(attempt, Ending.LOST)
    await wait_until(lambda: runner.settled, 2)
    assert runner.settled == [(attempt, None)]


async def test_an_attempt_that_has_ended_is_not_interrupted_any_more(short_grace: None) -> None:
    """An outcome may wait for the database for longer than its lease; what comes then must not end it again."""

    async def work(context: Context, payload: int) -> None:
        return None

    for lease in ({"payload": b"1"}, {"payload": b'"not a number"'}, {"type": "unknown"}):
        runner = Runner(work, payload=int)
        attempt = runner.begin(**lease)
        await wait_until(lambda: runner.settled, 2)  # noqa: B023
        runner.executor.interrupt(attempt, Ending.LOST)
        runner.executor.interrupt(attempt, Ending.CANCELLED)
        await asyncio.sleep(0.15)
        assert len(runner.settled) == 1, lease
        assert runner.tally.stuck_ever == 0


async def test_a_handler_that_ignores_its_cancellation_keeps_its_slot(
    short_grace: None, caplog: pytest.LogCaptureFixture
) -> None:
    let_go = asyncio.Event()

    async def work(context: Context, payload: Any) -> str:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    runner = Runner(work, slots=1)
    attempt = runner.begin()
    await asyncio.sleep(0)
    runner.executor.interrupt(attempt, Ending.TIMED_OUT)
    await wait_until(lambda: runner.settled, 2)
    assert runner.endings == [Ending.TIMED_OUT]
    assert (runner.executor.free, runner.tally.stuck_now) == (0, 1)
    (record,) = records(caplog, "handler does not stop; its slot stays taken until it returns")
    assert vars(record)["job_id"] == str(attempt.lease.id)
    let_go.set()
    await wait_until(lambda: runner.executor.free == 1, 2)
    assert runner.tally.stuck_now == 0
    assert runner.endings == [Ending.TIMED_OUT], "its late return was settled too"


async def test_no_timer_outlives_its_attempt() -> None:
    """A timer holds the attempt, and that the payload."""

    async def work(context: Context, payload: Any) -> None:
        await asyncio.sleep(30)

    runner = Runner(work)
    attempt = runner.begin()
    await asyncio.sleep(0)
    runner.executor.interrupt(attempt, Ending.CANCELLED)
    await wait_until(lambda: runner.settled, 2)
    runner.settled.clear()
    gone = weakref.ref(attempt.task)
    del attempt
    gc.collect()
    await wait_until(lambda: gone() is None, 1, "the attempt to be forgotten")


class Locals:
    """Something big in a handler's frame."""


async def _raises_async(keep: Callable[[Locals], None]) -> None:
    big = Locals()
    keep(big)
    raise ValueError("async")


async def _nested_task(keep: Callable[[Locals], None]) -> None:
    async def inner() -> None:
        big = Locals()
        keep(big)
        raise ValueError("nested")

    await asyncio.gather(asyncio.create_task(inner()))


async def _hangs(keep: Callable[[Locals], None]) -> None:
    big = Locals()
    keep(big)
    await asyncio.sleep(30)


def _raises_sync(keep: Callable[[Locals], None]) -> None:
    big = Locals()
    keep(big)
    raise ValueError("sync")


def _returns_sync(keep: Callable[[Locals], None]) -> str:
    big = Locals()
    keep(big)
    return "fine"


@pytest.mark.parametrize("body", [_raises_async, _hangs, _raises_sync, _returns_sync])
async def test_nothing_keeps_a_handlers_frames_alive(body: Callable[..., Any]) -> None:
    """Not even until the next garbage collection, which may be a long time with few but big objects."""
    kept: list[weakref.ref[Locals]] = []
    handler: Handler

    if asyncio.iscoroutinefunction(body):

        async def handler(context: Context, payload: Any) -> None:
            await body(lambda big: kept.append(weakref.ref(big)))
    else:

        def handler(context: Context, payload: Any) -> Any:
            return body(lambda big: kept.append(weakref.ref(big)))

    runner = Runner(handler)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            await runner.run(timeout_seconds=0.05)
        await wait_until(lambda: all(ref() is None for ref in kept), 1, "the handlers' locals to be gone")
    finally:
        gc.enable()
    assert len(kept) == 3


async def test_the_frames_of_a_nested_task_go_with_the_garbage() -> None:
    """asyncio's own cycles need the collector; nothing of ours may hold on to them beyond it."""
    kept: list[weakref.ref[Locals]] = []

    async def handler(context: Context, payload: Any) -> None:
        await _nested_task(lambda big: kept.append(weakref.ref(big)))

    runner = Runner(handler)
    await runner.run()
    gc.collect()
    assert [ref() for ref in kept] == [None]


async def test_handlers_of_both_kinds_see_the_context_of_the_worker() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nothing")
    seen: list[str] = []

    async def of_loop(context: Context, payload: Any) -> None:
        seen.append(variable.get())
        variable.set("changed by a handler")

    def in_thread(context: Context, payload: Any) -> None:
        seen.append(variable.get())
        variable.set("changed by a handler")

    variable.set("of the worker")
    for handler in (of_loop, in_thread):
        await Runner(handler).run()
    assert seen == ["of the worker"] * 2
    assert variable.get() == "of the worker"


class AsyncCallable:
    async def __call__(self, context: Context, payload: Any) -> str:
        await asyncio.sleep(0)
        return "ran"


def _returns_coroutine(context: Context, payload: Any) -> Coroutine[Any, Any, str]:
    return AsyncCallable()(context, payload)


@pytest.mark.parametrize("handler", [AsyncCallable(), _returns_coroutine, lambda c, p: _returns_coroutine(c, p)])
async def test_a_plain_callable_that_returns_a_coroutine_has_it_run(handler: Handler) -> None:
    outcome = await Runner(handler).run()
    assert outcome is not None
    assert (outcome.status, outcome.result) == (Status.COMPLETED, b'"ran"')


async def test_a_thread_that_cannot_be_started_is_a_failed_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    runner = Runner(lambda context, payload: None)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    outcome = await runner.run()
    assert outcome is not None
    assert (outcome.ending, outcome.status) == (Ending.FAILED, Status.PENDING)
    assert "new thread" in (outcome.error or "")


async def test_the_longest_run_counts_from_the_start_of_the_handler() -> None:
    async def work(context: Context, payload: Any) -> float:
        return context.timeout_seconds

    outcome = await Runner(work).run()
    assert outcome is not None
    assert outcome.result == b"20.0"
    outcome = await Runner(work).run(timeout_seconds=0.5)
    assert outcome is not None
    assert outcome.result == b"0.5"


async def test_extending_moves_everything_that_ends_an_attempt() -> None:
    """Its deadline, what its timeout says, and until when the keeper renews its lease."""

    async def work(context: Context, payload: Any) -> float:
        context.extend(7)
        return context.remaining_seconds

    runner = Runner(work)
    attempt = runner.begin(timeout_seconds=3.0)
    attempt.stop_renewing_at = attempt.deadline + 10
    deadline = attempt.deadline
    await wait_until(lambda: runner.settled, 2)
    assert attempt.deadline == deadline + 7
    assert attempt.stop_renewing_at == deadline + 17
    assert attempt.timeout_seconds == 10


async def test_an_attempt_that_is_extended_in_the_last_moment_is_not_interrupted() -> None:
    """Between the look at its deadline and the interruption, by a thread that holds the lock."""
    let_go = asyncio.Event()

    async def work(context: Context, payload: Any) -> str:
        await let_go.wait()
        return "done"

    runner = Runner(work)
    attempt = runner.begin(timeout_seconds=0.1)
    host = runner.executor._host
    extended = threading.Event()

    def extend() -> None:
        with host.lock:
            extended.set()
            # Until the loop wants the lock, its time being up.
            time.sleep(0.3)
            attempt.extend(30)

    thread = threading.Thread(target=extend)
    thread.start()
    extended.wait()
    await asyncio.sleep(0.4)
    thread.join()
    assert attempt.interruption is None
    let_go.set()
    await wait_until(lambda: runner.settled, 2)
    assert runner.endings == [Ending.SUCCEEDED]


async def test_an_expired_lease_ends_without_its_handler_or_its_payload() -> None:
    runner = Runner(lambda context, payload: None, payload=int)
    outcome = await runner.run(expired=True, payload="not a number")
    assert outcome is not None
    assert (outcome.ending, outcome.error_type) == (Ending.CANCELLED, "Expired")


async def test_jobs_of_unknown_types_are_judged_by_whoever_was_asked_to() -> None:
    judged: list[str] = []

    async def judge(lease: Lease) -> Outcome:
        judged.append(lease.type)
        if lease.attempt == 2:
            await asyncio.sleep(30)
        return snoozed(lease, 3.0)

    runner = Runner(lambda context, payload: None, judge_stranger=judge)
    outcome = await runner.run(type="of another version")
    assert outcome is not None
    assert (outcome.ending, outcome.delay_seconds) == (Ending.SNOOZED, 3.0)
    attempt = runner.begin(type="of another version", attempt=2)
    await asyncio.sleep(0)
    runner.executor.interrupt(attempt, Ending.RELEASED)
    await wait_until(lambda: not runner.executor.running, 2)
    assert runner.endings == [Ending.SNOOZED, Ending.RELEASED]


async def test_a_policy_and_a_timeout_of_the_types_own() -> None:
    async def work(context: Context, payload: Any) -> None:
        if payload == {}:
            raise KeyError("final for this type")
        await asyncio.sleep(30)

    runner = Runner(work, policy=Policy(Constant(3.0), permanent_on=(KeyError,)), timeout_seconds=0.1)
    outcome = await runner.run()
    assert outcome is not None
    assert outcome.ending is Ending.PERMANENT
    outcome = await runner.run(payload="1")
    assert outcome is not None
    assert (outcome.ending, outcome.delay_seconds) == (Ending.TIMED_OUT, 3.0)


async def test_a_result_is_written_in_the_types_own_way() -> None:
    async def work(context: Context, payload: Any) -> complex:
        return 1j

    runner = Runner(work, encode=lambda value: msgspec.json.encode(str(value)))
    outcome = await runner.run()
    assert outcome is not None
    assert outcome.result == b'"1j"'
