"""Every way an attempt can end comes out bounded and storable, whatever the handler raised."""

from __future__ import annotations

import gc
import time
import weakref
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.domain import outcome
from fencepost.domain.backoff import Exponential
from fencepost.domain.ids import new_id
from fencepost.domain.job import Lease, Status
from fencepost.domain.outcome import (
    DELAY_CEILING_SECONDS,
    MESSAGE_CHARACTERS,
    TRACEBACK_CHARACTERS,
    Ending,
    Outcome,
    describe,
)
from fencepost.domain.policy import Policy
from fencepost.errors import InvalidJob, Permanent, Retry, Snooze

BACKOFF = Policy(Exponential(base_seconds=10, ceiling_seconds=300))


def lease(*, attempt: int = 1, max_attempts: int = 3) -> Lease:
    return Lease(
        id=new_id(), queue_id=7, queue="q", token=41, type="work", payload="{}", attempt=attempt,
        max_attempts=max_attempts, timeout_seconds=None, request_id=None,
    )  # fmt: skip


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def check_bounds(described: tuple[str, str, str | None]) -> None:
    name, message, trace = described
    assert 0 < len(name) <= 200
    assert 0 < len(message) <= MESSAGE_CHARACTERS
    assert trace is None or len(trace) <= TRACEBACK_CHARACTERS
    for text in described:
        assert text is None or "\x00" not in text
        (text or "").encode()


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not telling")

    __repr__ = __str__


class Exiting(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class NotText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307 - that is the point


def chain(length: int) -> BaseException:
    error: BaseException = ValueError("first")
    for number in range(length):
        following = ValueError(f"number {number}")
        following.__cause__ = raised(error)
        error = following
    return raised(error)


def nested_groups(depth: int) -> BaseException:
    error: Exception = ValueError("innermost")
    for _ in range(depth):
        error = ExceptionGroup("group", [error])
    return error


@pytest.mark.parametrize(
    ("error", "name", "message"),
    [
        (ValueError("it broke"), "ValueError", "it broke"),
        (ValueError(), "ValueError", "ValueError"),
        (KeyError("k"), "KeyError", "'k'"),
        (Unprintable(), "Unprintable", "(the exception's own text could not be made)"),
        (Exiting(), "Exiting", "(the exception's own text could not be made)"),
        (NotText(), "NotText", "(the exception's own text could not be made)"),
        (ValueError("a\x00b\ud800c"), "ValueError", "a\ufffdb\ufffdc"),
        (ValueError("x" * 10_000_000), "ValueError", "x" * (MESSAGE_CHARACTERS - 1) + "…"),
        (type("N" * 500, (Exception,), {})("m"),
         "N" * 199 + "…", "m"),
        (KeyboardInterrupt("stop"), "KeyboardInterrupt", "stop"),
    ],
    ids=lambda value: str(type(value).__name__),
)  # fmt: skip
def test_any_exception_is_put_into_words(error: BaseException, name: str, message: str) -> None:
    described = describe(raised(error))
    assert described[:2] == (name, message)
    check_bounds(described)


def test_the_trace_names_the_place_and_keeps_its_end() -> None:
    def deep(levels: int) -> None:
        if levels == 0:
            raise ValueError("y" * 50_000 + " the end")
        deep(levels - 1)

    try:
        deep(500)
    except ValueError as error:
        _, _, trace = describe(error)
    assert trace is not None
    assert trace.startswith("…")
    assert trace.rstrip().endswith("the end")


def test_the_trace_of_a_plain_error_is_whole() -> None:
    _, _, trace = describe(raised(ValueError("it broke")))
    assert trace is not None
    assert trace.startswith("Traceback (most recent call last):")
    assert "raise error" in trace
    assert trace.endswith("ValueError: it broke\n")


@pytest.mark.parametrize(
    "error",
    [
        chain(2_000),
        ExceptionGroup("many", [ValueError(str(number)) for number in range(10_000)]),
        ExceptionGroup("unprintable", [Unprintable(), Exiting()]),
        nested_groups(2_000),
    ],
    ids=["2,000 causes", "group of 10,000", "group of unprintable ones", "2,000 groups deep"],
)
def test_monsters_are_bounded_in_size_and_time(error: BaseException) -> None:
    began = time.perf_counter()
    check_bounds(describe(error))
    assert time.perf_counter() - began < 5


def test_a_chain_that_loops_ends() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    check_bounds(describe(one))


def test_no_frame_is_kept_alive() -> None:
    class Held:
        pass

    def fail() -> tuple[weakref.ref[Held], Outcome]:
        held = Held()
        try:
            raise ValueError("it broke")
        except ValueError as error:
            return weakref.ref(held), outcome.failed(lease(), error, BACKOFF)

    reference, ended = fail()
    gc.collect()
    assert reference() is None
    assert ended.error == "it broke"


@given(st.text(max_size=50))
def test_any_message_can_be_stored(message: str) -> None:
    check_bounds(describe(ValueError(message)))


@pytest.mark.parametrize(
    ("ended", "ending", "status"),
    [
        (outcome.succeeded(lease(), b"1"), Ending.SUCCEEDED, Status.COMPLETED),
        (outcome.succeeded(lease(), None), Ending.SUCCEEDED, Status.COMPLETED),
        (outcome.released(lease()), Ending.RELEASED, Status.PENDING),
        (outcome.released(lease(attempt=3)), Ending.RELEASED, Status.PENDING),
        (outcome.cancelled(lease()), Ending.CANCELLED, Status.CANCELLED),
        (outcome.timed_out(lease(), 30, BACKOFF), Ending.TIMED_OUT, Status.PENDING),
        (outcome.timed_out(lease(attempt=3), 30, BACKOFF), Ending.TIMED_OUT, Status.DEAD_LETTER),
        (outcome.permanent(lease(), "UnknownType", "no\x00pe"), Ending.PERMANENT, Status.FAILED),
        (outcome.failed(lease(), ValueError("x"), BACKOFF), Ending.FAILED, Status.PENDING),
        (outcome.failed(lease(attempt=2), ValueError("x"), BACKOFF), Ending.FAILED, Status.PENDING),
        (outcome.failed(lease(attempt=3), ValueError("x"), BACKOFF), Ending.FAILED, Status.DEAD_LETTER),
        (outcome.failed(lease(attempt=4), ValueError("x"), BACKOFF), Ending.FAILED, Status.DEAD_LETTER),
        (outcome.failed(lease(max_attempts=1), ValueError("x"), BACKOFF), Ending.FAILED, Status.DEAD_LETTER),
        (outcome.failed(lease(), Permanent("never"), BACKOFF), Ending.PERMANENT, Status.FAILED),
        (outcome.failed(lease(attempt=3), Permanent("never"), BACKOFF), Ending.PERMANENT, Status.FAILED),
        (outcome.failed(lease(), Retry("later"), BACKOFF), Ending.FAILED, Status.PENDING),
        (outcome.failed(lease(attempt=3), Retry("later", after=5), BACKOFF), Ending.FAILED, Status.DEAD_LETTER),
    ],
)
def test_where_each_ending_leads(ended: Outcome, ending: Ending, status: Status) -> None:
    assert (ended.ending, ended.status, ended.token, ended.queue_id) == (ending, status, 41, 7)
    assert (ended.error is None) == (ending is Ending.SUCCEEDED)
    assert "\x00" not in (ended.error or "")
    assert ended.result is None or ending is Ending.SUCCEEDED


def test_a_retry_waits_within_the_backoff_and_nothing_else_waits() -> None:
    waits = [outcome.failed(lease(attempt=2), ValueError("x"), BACKOFF).delay_seconds for _ in range(500)]
    assert 10 <= min(waits) < 10.5
    assert 19.5 < max(waits) <= 20
    assert outcome.released(lease()).delay_seconds == 0
    assert outcome.failed(lease(attempt=3), ValueError("x"), BACKOFF).delay_seconds == 0


@pytest.mark.parametrize(
    ("after", "low", "high"),
    [
        (None, 5, 10), (0, 5, 10), (-5, 5, 10), (7, 7, 10), (100, 100, 110), (1e12, DELAY_CEILING_SECONDS, 95_040),
        (10**400, 86_400, 95_040), (float("inf"), 86_400, 95_040), (float("nan"), 5, 10),
    ],
)  # fmt: skip
def test_a_handlers_own_delay_is_a_lower_bound_and_bounded(after: float | None, low: float, high: float) -> None:
    error = Retry("later")
    # Past the check of the constructor, as a subclass may come.
    error.after = after
    for _ in range(50):
        delay = outcome.failed(lease(), error, BACKOFF).delay_seconds
        assert low <= delay <= high


def test_a_delay_that_is_no_number_is_only_a_failed_attempt() -> None:
    error: Any = Retry("later")
    error.after = "tomorrow"
    ended = outcome.failed(lease(), error, BACKOFF)
    assert ended.ending is Ending.FAILED
    assert 5 <= ended.delay_seconds <= 10


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "30s", True, None, timedelta(seconds=-1)])
def test_a_pause_that_cannot_be_meant_is_refused_where_it_is_said(wrong: Any) -> None:
    with pytest.raises(InvalidJob, match=r"^seconds: must be seconds or a timedelta, from 0 on, not "):
        Snooze(wrong)
    if wrong is not None:
        with pytest.raises(InvalidJob, match=r"^after: must be seconds or a timedelta, from 0 on, not "):
            Retry("later", after=wrong)


def test_a_pause_may_be_a_timedelta() -> None:
    assert Retry("later", after=timedelta(hours=3)).after == 10_800
    snooze = Snooze(timedelta(minutes=2))
    assert (snooze.seconds, str(snooze)) == (120, "snoozed for 120 seconds")


def test_a_pause_in_the_place_of_the_message_is_refused() -> None:
    seconds: Any = 30
    with pytest.raises(InvalidJob, match=r"^message: must be a text; when to try again is after=30$"):
        Retry(seconds)


def test_outcomes_are_frozen() -> None:
    ended = outcome.released(lease())
    with pytest.raises(AttributeError):
        ended.token = 5  # type: ignore[misc]
    assert msgspec.structs.replace(ended, token=5).token == 5
