"""Exceptions that hurt whoever looks at them, payloads that no longer fit, and failures that keep what they held."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

import fencepost
from fencepost.domain.context import Context
from fencepost.domain.job import Status
from fencepost.domain.outcome import Verdict, judge
from fencepost.domain.policy import Policy
from fencepost.errors import Cancel, Permanent, Retry, Snooze
from fencepost.worker.children.messages import Raised, frame
from tests.worker.support import Bench, records, wait_until

pytestmark = pytest.mark.anyio


class _Hostile(type):
    """A metaclass whose instances have an answer of their own to everything."""

    def __instancecheck__(cls, instance: object) -> bool:
        raise RuntimeError("not to be asked")

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("nameless")


class Nameless(Exception, metaclass=_Hostile):
    pass


class _Numbered(type):
    @property
    def __name__(cls) -> Any:  # type: ignore[override]
        return 5


class NamedByNumber(Exception, metaclass=_Numbered):
    pass


class ClassLess(Exception):
    @property
    def __class__(self) -> Any:
        raise RuntimeError("of no class")

    @__class__.setter
    def __class__(self, value: object) -> None: ...


class RetryThatRaises(Retry):
    @property
    def after(self) -> float:
        raise RuntimeError("not telling")

    @after.setter
    def after(self, value: object) -> None: ...


class SnoozeThatExits(Snooze):
    def __init__(self) -> None:
        Exception.__init__(self, "not now")

    @property
    def seconds(self) -> float:
        raise SystemExit(3)

    @seconds.setter
    def seconds(self, value: object) -> None: ...


class HoldsALock(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(threading.Lock(), socket.socket, self)


HOSTILE: dict[str, Callable[[], BaseException]] = {
    "nameless": Nameless,
    "named by a number": NamedByNumber,
    "of no class": lambda: ClassLess("x"),
    "retry that raises": lambda: RetryThatRaises("x"),
    "snooze that exits": SnoozeThatExits,
    "holds a lock": lambda: HoldsALock(1, 2),
    "group with a nameless one": lambda: ExceptionGroup("several", [ClassLess("x"), HoldsALock(1, 2)]),
}


def _raise(name: str) -> NoReturn:
    raise HOSTILE[name]()


async def in_loop(context: Context, payload: str) -> None:
    _raise(payload)


def in_thread(context: Context, payload: str) -> None:
    _raise(payload)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_exception_can_hurt_whoever_judges_it(name: str) -> None:
    error = HOSTILE[name]()
    for policy in (Policy(), Policy(retry_on=(Nameless,)), Policy(permanent_on=(Nameless,))):
        judgement = judge(error, policy)
        assert judgement.verdict in (Verdict.RETRY, Verdict.FINAL)
        assert 0 < len(judgement.error_type) <= 200
        assert judgement.error
        # As it comes out of a child process.
        frame(Raised(1, judgement))


@pytest.mark.parametrize("after", [10**400, 10**30, 2**64, 1e308, float("inf")])
def test_a_wait_of_any_size_comes_out_of_a_child_process(after: float) -> None:
    error = Retry("later")
    error.after = after
    judgement = judge(error, Policy())
    assert judgement.seconds is not None
    frame(Raised(1, judgement))


def test_what_an_exception_means_is_still_what_it_says() -> None:
    final = Policy(permanent_on=(KeyError,))
    errors = (ValueError(), KeyError(), Permanent("no"), Cancel("no"), Retry("x", after=5), Snooze(3))
    verdicts = [judge(error, final).verdict for error in errors]
    assert verdicts == [Verdict.RETRY, Verdict.FINAL, Verdict.FINAL, Verdict.CANCEL, Verdict.RETRY, Verdict.SNOOZE]


async def test_hostile_exceptions_are_failed_attempts_like_any_other(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Of async and of plain handlers: two attempts each, recorded with the error that was raised."""
    bench.app.register("loop", in_loop, str)
    bench.app.register("thread", in_thread, str)
    ids = await bench.enqueue_many("loop", list(HOSTILE), max_attempts=2)
    ids += await bench.enqueue_many("thread", list(HOSTILE), max_attempts=2)
    await bench.start()
    for name, ended in zip([*HOSTILE, *HOSTILE], await bench.finished(*ids, seconds=20), strict=True):
        assert (ended.status, ended.attempts) == (Status.DEAD_LETTER, 2), name
        assert ended.last_error, name
        assert "not to be asked" not in ended.last_error, name
    assert records(caplog, "fault while running a job") == []


@pytest.mark.slow
async def test_a_failed_attempt_keeps_nothing_of_what_its_handler_held(bench: Bench) -> None:
    """Ten megabytes in a local, then an error, a timeout, an error of a nested task: all of it is let go."""
    held: list[weakref.ref[Any]] = []

    class Large(bytearray):
        pass

    async def raise_in_a_task(kept: Large) -> None:
        raise ValueError(f"{len(kept)} bytes in hand")

    @bench.job("hold", payload=str)
    async def hold(context: Context, payload: str) -> None:
        large = Large(10_000_000)
        held.append(weakref.ref(large))
        if payload == "hang":
            await asyncio.sleep(60)
        if payload == "nested":
            await asyncio.create_task(raise_in_a_task(large))
        raise ValueError(f"{len(large)} bytes in hand")

    ids = await bench.enqueue_many("hold", ["raise", "nested"] * 10, max_attempts=1)
    ids += await bench.enqueue_many("hold", ["hang"] * 4, max_attempts=1, timeout_seconds=0.2)
    await bench.start()
    await bench.finished(*ids)
    assert len(held) == 24

    def kept() -> list[weakref.ref[Any]]:
        gc.collect()
        return [one for one in held if one() is not None]

    # The worker hears a moment later than the database that they have ended.
    await wait_until(lambda: not kept(), 2)


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ({"a": 1}, "missing required"),
        ({"a": 1, "b": 2, "c": 3}, "c"),
        ([], "Expected `object`"),
        ({"a": 1, "b": {}}, "b"),
    ],
)
async def test_a_payload_that_no_longer_fits_is_told_by_its_field(bench: Bench, payload: Any, says: str) -> None:
    """The signature has changed since: one attempt, which no other can help, and a sentence."""

    @bench.app.job(name="changed")
    async def changed(a: int, b: int) -> None: ...

    job_id = await bench.enqueue("changed", payload)
    await bench.start()
    ended = await bench.ended(job_id)
    assert (ended.status, ended.attempts) == (Status.FAILED, 1)
    assert "the payload does not fit 'changed'" in (ended.last_error or "")
    assert says in (ended.last_error or "")


def test_nothing_is_ever_unpickled() -> None:
    """
    A child judges with the same function before it sends words; nothing here could read anything else.

    client/job.py only raises pickle's own error, for jobs that can't be pickled.
    """
    sources = [path for path in Path(fencepost.__file__).parent.rglob("*.py") if path.name != "job.py"]
    reader = re.compile(r"^\s*(import|from) (pickle|marshal|shelve)", re.M)
    assert [path.name for path in sources if reader.search(path.read_text())] == []
