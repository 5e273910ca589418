"""Handlers that end in every way Python has: one failed attempt each, and nothing else is hurt."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from fencepost.domain.context import Context
from fencepost.domain.job import Status
from fencepost.domain.outcome import MESSAGE_CHARACTERS, TRACEBACK_CHARACTERS
from fencepost.errors import Permanent, Retry

from .support import Bench, Tally, records, wait_until

pytestmark = pytest.mark.anyio


class Odd(BaseException):
    """Not even an Exception."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words for it")

    def __repr__(self) -> str:
        raise RuntimeError("none at all")


class UnprintableStop(StopIteration):
    def __repr__(self) -> str:
        raise RuntimeError("none at all")


class ExitsWhenPrinted(Exception):
    def __str__(self) -> str:  # noqa: PLE0307 - it never returns
        sys.exit(3)


class TwoArguments(Exception):
    def __init__(self, first: object, second: object) -> None:
        super().__init__(first, second)
        self.lock = threading.Lock()


class CarriesItself(Exception):
    def __init__(self) -> None:
        super().__init__(self)


class RetryWithoutInit(Retry):
    def __init__(self) -> None:
        pass


def _long_chain() -> BaseException:
    error: BaseException = ValueError("the root")
    for number in range(2000):
        following = RuntimeError(f"link {number}")
        following.__cause__ = error
        error = following
    return error


def _deep_group() -> BaseException:
    error: Exception = ValueError("the innermost")
    for _ in range(2000):
        error = ExceptionGroup("group", [error])
    return error


RAISED: dict[str, tuple[Callable[[], BaseException], str]] = {
    # name → what is raised, and what its error must say
    "cancelled": (lambda: asyncio.CancelledError("by itself"), "by itself"),
    "cancelled without words": (asyncio.CancelledError, "CancelledError"),
    "exit 0": (lambda: SystemExit(0), "0"),
    "exit 1": (lambda: SystemExit(1), "1"),
    "exit": (SystemExit, "SystemExit"),
    "interrupt": (KeyboardInterrupt, "KeyboardInterrupt"),
    "generator exit": (GeneratorExit, "GeneratorExit"),
    "stop": (lambda: StopIteration(5), "StopIteration"),
    "unprintable stop": (UnprintableStop, "StopIteration"),
    "async stop": (lambda: StopAsyncIteration(5), ""),
    "base exception": (lambda: Odd("odd"), "odd"),
    "unprintable": (Unprintable, "could not be made"),
    "exits when printed": (ExitsWhenPrinted, "could not be made"),
    "huge message": (lambda: ValueError("x" * 50_000_000), "xxx"),
    "huge message of many lines": (lambda: ValueError("x\n" * 1_000_000), "x\nx"),
    "bad characters": (lambda: ValueError("a\x00b\ud800c\udfffd"), "a\ufffdb\ufffdc\ufffdd"),
    "empty": (ValueError, "ValueError"),
    "two arguments": (lambda: TwoArguments(1, "two"), "(1, 'two')"),
    "carries itself": (CarriesItself, ""),
    "group": (lambda: ExceptionGroup("several", [ValueError("one"), KeyError("two")]), "several (2 sub-exceptions)"),
    "base group": (lambda: BaseExceptionGroup("several", [KeyboardInterrupt()]), "several"),
    "wide group": (lambda: ExceptionGroup("many", [ValueError(str(n)) for n in range(10_000)]), "10000"),
    "deep group": (_deep_group, "group"),
    "long chain": (_long_chain, "link 1999"),
    "retry without init": (RetryWithoutInit, ""),
    "memory": (MemoryError, "MemoryError"),
    "recursion": (lambda: RecursionError("deep"), "deep"),
    "time-out": (TimeoutError, "TimeoutError"),
}


class Healthy:
    """Five jobs in flight that must come through unharmed."""

    def __init__(self, bench: Bench) -> None:
        self.release = asyncio.Event()
        self.running = 0
        self.ids: list[Any] = []
        self._bench = bench
        bench.app.register("healthy", self._handle)

    async def _handle(self, context: Context, payload: Any) -> str:
        self.running += 1
        await self.release.wait()
        return "unharmed"

    async def begin(self) -> None:
        self.ids = await self._bench.enqueue_many("healthy", [None] * 5)
        await wait_until(lambda: self.running == 5, 5)

    async def check(self) -> None:
        self.release.set()
        for job in await self._bench.finished(*self.ids):
            assert (job.status, job.attempts, bytes(job.result or b"")) == (Status.COMPLETED, 1, b'"unharmed"')


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_whatever_a_handler_raises_is_one_failed_attempt(
    bench: Bench, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.set_level(logging.CRITICAL, "fencepost.worker")

    def misbehave(payload: str) -> NoReturn:
        raise RAISED[payload][0]()

    async def in_loop(context: Context, payload: str) -> None:
        await asyncio.sleep(0)
        misbehave(payload)

    def in_thread(context: Context, payload: str) -> None:
        misbehave(payload)

    bench.app.register("raise", in_loop if kind == "async" else in_thread, str)
    healthy = Healthy(bench)
    tally = Tally()
    await bench.start(workers=9, events=tally)
    await healthy.begin()
    ids = await bench.enqueue_many("raise", list(RAISED), max_attempts=2)
    jobs = await bench.finished(*ids, seconds=30)
    for (name, (_, says)), job in zip(RAISED.items(), jobs, strict=True):
        assert (job.status, job.attempts) == (Status.DEAD_LETTER, 2), name
        assert says in (job.last_error or ""), (name, (job.last_error or "")[:200])
        assert job.last_error, name
        assert len(job.last_error) <= MESSAGE_CHARACTERS, name
        history = await bench.history(job.id)
        assert [past.outcome for past in history] == ["failed", "failed"], name
        assert all(len(past.traceback or "") <= TRACEBACK_CHARACTERS for past in history), name
    await healthy.check()
    assert tally.starts == 2 * len(RAISED) + 5
    assert tally.stuck_ever == 0


async def test_the_trace_of_what_can_be_printed_is_kept(bench: Bench) -> None:
    @bench.job("raise", payload=str)
    async def handler(context: Context, payload: str) -> None:
        raise RAISED[payload][0]()

    names = ["exit 1", "base exception", "group", "huge message", "bad characters", "long chain"]
    ids = await bench.enqueue_many("raise", names, max_attempts=1)
    await bench.start()
    await bench.finished(*ids)
    traces = {name: (await bench.history(job_id))[0].traceback or "" for name, job_id in zip(names, ids, strict=True)}
    for name in ("exit 1", "base exception", "group", "bad characters"):
        assert "in handler" in traces[name], name
    assert "KeyError: 'two'" in traces["group"]
    assert traces["huge message"].startswith("…")
    assert "link 1999" in traces["long chain"]


async def test_a_handler_that_cancels_itself_has_failed(bench: Bench) -> None:
    @bench.job("cancel-myself", payload=str)
    async def cancel_myself(context: Context, payload: str) -> str:
        task = asyncio.current_task()
        assert task is not None
        if context.attempt == 1:
            task.cancel("I give up")
            if payload == "and waits":
                await asyncio.sleep(30)
        return payload

    waits, returns = await bench.enqueue_many("cancel-myself", ["and waits", "and returns"])
    healthy = Healthy(bench)
    await bench.start(workers=8)
    await healthy.begin()
    assert [(job.status, job.attempts) for job in await bench.finished(waits, returns)] == [
        (Status.COMPLETED, 2),
        (Status.COMPLETED, 1),
    ]
    (past,) = await bench.history(waits)
    assert (past.outcome, past.error_type, past.error) == ("failed", "CancelledError", "I give up")
    await healthy.check()


async def test_cancellations_inside_a_handler_are_its_own_business(bench: Bench) -> None:
    @bench.job("inner", payload=str)
    async def inner(context: Context, payload: str) -> str:
        if payload == "timeout":
            try:
                async with asyncio.timeout(0.05):
                    await asyncio.sleep(30)
            except TimeoutError:
                return "caught"
        if payload == "child":
            child = asyncio.create_task(asyncio.sleep(30))
            await asyncio.sleep(0)
            child.cancel()
            await asyncio.wait([child])
            return "caught"
        if payload == "wait_for":
            try:
                await asyncio.wait_for(asyncio.sleep(30), 0.05)
            except TimeoutError:
                return "caught"
        if payload == "child-awaited":
            child = asyncio.create_task(asyncio.sleep(30))
            await asyncio.sleep(0)
            child.cancel()
            await child
        async with asyncio.timeout(0.05):
            await asyncio.sleep(30)
        return "never"

    caught = await bench.enqueue_many("inner", ["timeout", "child", "wait_for"])
    raised = await bench.enqueue_many("inner", ["child-awaited", "timeout-raised"], max_attempts=1)
    healthy = Healthy(bench)
    await bench.start(workers=10)
    await healthy.begin()
    assert [bytes(job.result or b"") for job in await bench.finished(*caught)] == [b'"caught"'] * 3
    assert {job.status for job in await bench.finished(*raised)} == {Status.DEAD_LETTER}
    types = [(await bench.history(job_id))[0].error_type for job_id in raised]
    assert types == ["CancelledError", "TimeoutError"]
    assert [(await bench.history(job_id))[0].outcome for job_id in raised] == ["failed", "failed"]
    await healthy.check()


async def test_a_permanent_error_in_a_thread_is_permanent_too(bench: Bench) -> None:
    @bench.job("refuse")
    def refuse(context: Context, payload: Any) -> None:
        raise Permanent("never")

    job_id = await bench.enqueue("refuse")
    await bench.start()
    job = await bench.ended(job_id)
    assert (job.status, job.attempts, job.last_error) == (Status.FAILED, 1, "never")


async def test_nothing_of_this_is_a_fault_of_the_worker(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A handler's error is an outcome; `fault while running a job` is left for errors of our own."""

    @bench.job("raise", payload=str)
    async def handler(context: Context, payload: str) -> None:
        raise RAISED[payload][0]()

    names = ["cancelled", "exit 1", "interrupt", "unprintable", "group", "stop"]
    ids = await bench.enqueue_many("raise", names, max_attempts=1)
    await bench.start()
    await bench.finished(*ids)
    assert records(caplog, "fault while running a job") == []
