"""What handlers share: opened once a worker, found by name or type, closed at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Protocol

import pytest

from fencepost.domain.context import Context
from fencepost.domain.job import Status
from fencepost.errors import InvalidSettings, LifespanFailed
from fencepost.types import jobtype
from fencepost.types.jobtype import Kind
from fencepost.worker import resources as resources_module
from fencepost.worker.resources import Resources
from fencepost.worker.runtime import Need, Runtime

from .runtimes import job_type, make_worker, result_of, start_worker
from .support import Bench, records, wait_until

pytestmark = pytest.mark.anyio


class Pool:
    """Something to share."""


class BigPool(Pool):
    """A kind of it."""


async def use(context: Context, payload: Any) -> str:
    return type(context.resource(annotation=Pool)).__name__


async def test_it_is_opened_before_the_first_claim_and_closed_after_the_last_handler(bench: Bench) -> None:
    told: list[str] = []
    app = object()
    tasks: list[asyncio.Task[Any] | None] = []

    async def lifespan(given: object) -> AsyncIterator[Pool]:
        assert given is app
        tasks.append(asyncio.current_task())
        told.append("open")
        # Enough for a claim, if there were one.
        await asyncio.sleep(0.2)
        told.append("is open")
        yield Pool()
        tasks.append(asyncio.current_task())
        told.append("close")

    async def work(context: Context, payload: Any) -> str:
        told.append("work")
        started.set()
        await asyncio.sleep(0.3)
        told.append("worked")
        return await use(context, payload)

    def in_thread(context: Context, payload: Any) -> str:
        return type(context.resource(None, Pool)).__name__

    started = asyncio.Event()
    thread = await bench.enqueue("in_thread")
    worker = await start_worker(
        bench, job_type("work", work), job_type("in_thread", in_thread, kind=Kind.THREAD), lifespan=lifespan, app=app
    )
    assert result_of(await bench.ended(thread)) == b'"Pool"'
    job_id = await bench.enqueue("work")
    await started.wait()
    await worker.drain(5)
    assert told == ["open", "is open", "work", "worked", "close"]
    assert tasks[0] is tasks[1], "cancel scopes have to be left in the task that entered them"
    assert result_of(await bench.get(job_id)) == b'"Pool"'


async def test_each_worker_has_its_own(bench: Bench) -> None:
    opened: list[Pool] = []

    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[dict[str, Pool]]:
        opened.append(Pool())
        yield {"pool": opened[-1]}

    for _ in range(2):
        await start_worker(bench, job_type("use", use), lifespan=lifespan)
    assert len(set(opened)) == 2


async def test_an_error_while_opening_fails_the_start(bench: Bench) -> None:
    closed: list[str] = []

    async def lifespan() -> AsyncIterator[None]:
        if not closed:
            raise ConnectionError("no redis at localhost:6379")
        yield

    worker = make_worker(bench, lifespan=lifespan)
    with pytest.raises(LifespanFailed, match="while opening: ConnectionError: no redis at localhost:6379"):
        await worker.start()
    assert isinstance(LifespanFailed("").exit_code, int)

    async def exits() -> AsyncIterator[None]:
        if not closed:
            raise SystemExit(3)
        yield

    with pytest.raises(LifespanFailed, match="SystemExit"):
        await make_worker(bench, lifespan=exits).start()


@pytest.mark.parametrize("lifespan", [lambda: None, lambda one, two: None, use])
async def test_what_is_no_lifespan_is_refused(bench: Bench, lifespan: Any) -> None:
    with pytest.raises((InvalidSettings, LifespanFailed), match="the app's lifespan"):
        await make_worker(bench, lifespan=lifespan).start()


async def test_an_error_while_closing_is_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    async def lifespan() -> AsyncIterator[None]:
        yield
        raise ConnectionError("gone already")

    worker = await start_worker(bench, lifespan=lifespan)
    await worker.drain(0)
    (record,) = records(caplog, "the app's lifespan failed while closing")
    assert "gone already" in str(record.exc_info)


async def test_one_that_does_not_close_is_given_up(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources_module, "CLOSING_SECONDS", 0.1)

    async def lifespan() -> AsyncIterator[None]:
        yield
        await asyncio.sleep(600)

    worker = await start_worker(bench, lifespan=lifespan)
    await worker.drain(0)
    assert records(caplog, "the app's lifespan does not close; giving up on it")


async def test_what_handlers_need_is_looked_for_at_the_start(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    closed = asyncio.Event()

    async def lifespan() -> AsyncIterator[dict[str, Any]]:
        yield {"pool": Pool(), "number": 7}
        closed.set()

    needs = (Need(job_type="send", parameter="cache", name="cache"),)
    with pytest.raises(
        InvalidSettings,
        match=r"job type 'send', parameter 'cache': there is no resource 'cache'; "
        r"the app's lifespan opened 'pool' \(Pool\), 'number' \(int\)",
    ):
        await make_worker(bench, lifespan=lifespan, needs=needs).start()
    assert closed.is_set(), "what was opened is closed again"
    of_type = (jobtype.Need(parameter="dsn", name=None, annotation=bytes),)
    with pytest.raises(InvalidSettings, match="job type 'use', parameter 'dsn': there is no resource of type bytes"):
        await make_worker(bench, job_type("use", use, needs=of_type), lifespan=lifespan).start()
    with pytest.raises(InvalidSettings, match="the app's lifespan opened none"):
        await make_worker(bench, needs=needs).start()


def test_a_parameter_is_filled_by_its_name_before_its_type() -> None:
    two = Resources({"read": Pool(), "write": Pool()})
    two.check([Need(job_type="send", parameter="read", name=None, annotation=Pool)])
    two.check([Need(job_type="send", parameter="other", name="write", annotation=Pool)])
    with pytest.raises(InvalidSettings, match="'other': there is more than one resource of type Pool"):
        two.check([Need(job_type="send", parameter="other", name=None, annotation=Pool)])


async def test_a_handler_that_asks_for_what_is_not_there_fails(bench: Bench) -> None:
    job_id = await bench.enqueue("use", max_attempts=1)
    await start_worker(bench, job_type("use", use))
    job = await bench.ended(job_id)
    assert job.status is Status.DEAD_LETTER
    assert job.last_error == "there is no resource of type Pool; the app's lifespan opened none"


def test_the_exact_class_comes_first_then_instances() -> None:
    pool, big = Pool(), BigPool()
    both = Resources([pool, big])
    assert both.of_type(Pool) is pool
    assert both.of_type(BigPool) is big
    assert Resources([big]).of_type(Pool) is big
    assert Resources(big).of_type(Pool) is big, "an object by itself"
    assert Resources({"a": pool, "b": pool}).of_type(Pool) is pool, "one object under two names"
    assert Resources({"a": {1: 2}, "b": 3}).named("a") == {1: 2}
    assert Resources({"numbers": [1]}).of_type(list[int]) == [1]
    assert Resources({"numbers": [1], "none": None}).of_type(list[int] | None) == [1]


def test_two_candidates_are_both_named() -> None:
    with pytest.raises(InvalidSettings, match=r"more than one resource of type Pool: 'read' \(Pool\) and 'write' "):
        Resources({"read": Pool(), "write": Pool()}).of_type(Pool)
    with pytest.raises(InvalidSettings, match="more than one resource of type object"):
        Resources([Pool(), BigPool()]).of_type(object)


def test_what_can_be_iterated_over_is_one_object() -> None:
    class Session:
        def __iter__(self) -> Any:
            raise AssertionError("a query")

    session = Session()
    assert Resources(session).of_type(Session) is session
    assert Resources("text").of_type(str) == "text"


def test_a_protocol_that_cannot_be_checked_is_said_so() -> None:
    class Sends(Protocol):
        def send(self) -> None: ...

    with pytest.raises(InvalidSettings, match="ask for it by name"):
        Resources(Pool()).of_type(Sends)
    assert Runtime.of({}).all_needs() == []


async def test_it_is_closed_when_the_worker_never_ran_a_job(bench: Bench) -> None:
    closed = asyncio.Event()

    async def lifespan() -> AsyncIterator[None]:
        yield
        closed.set()

    worker = await start_worker(bench, lifespan=lifespan)
    await worker.drain(0)
    await wait_until(closed.is_set, 1)
