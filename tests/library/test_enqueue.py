"""From a function to a job and back: enqueue with options, run, look at it, change it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pydantic
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fencepost import (
    Context,
    Draft,
    Event,
    Fencepost,
    FencepostError,
    InvalidJob,
    InvalidSettings,
    JobNotFound,
    KeyConflict,
    Payload,
    Unique,
    UniqueBy,
)
from fencepost.telemetry.events import AttemptEnded, JobEnqueued
from tests.worker.support import wait_until


@dataclass
class Address:
    street: str
    since: datetime


class Customer(pydantic.BaseModel):
    name: str
    address: Address


@pytest.mark.slow
async def test_a_call_runs_and_its_result_comes_back(app: Fencepost) -> None:
    @app.job
    async def greet(name: str, *, shout: bool = False) -> str:
        return f"Hello, {name}{'!' if shout else '.'}"

    async with app.worker():
        handle = await greet.enqueue("Ada", shout=True)
        assert handle.effect == "created"
        assert await handle.result(timeout=5) == "Hello, Ada!"
        assert await handle.status() == "completed"


async def test_a_plain_function_runs_in_a_thread_with_the_context(app: Fencepost) -> None:
    @app.job
    def double(context: Context, number: int) -> list[int]:
        return [number * 2, context.attempt]

    async with app.worker():
        handle = await asyncio.to_thread(double.enqueue_sync, 21)
        assert await handle.result(timeout=5) == [42, 1]
        assert await asyncio.to_thread(app.wait, handle.result(timeout=5)) == [42, 1]


async def test_values_come_back_as_what_they_were(app: Fencepost) -> None:
    seen: list[Any] = []

    @app.job
    async def move(customer: Customer, to: Address) -> Customer:
        seen.append((customer, to))
        return Customer(name=customer.name, address=to)

    @app.job
    async def look(address: Payload[Address]) -> Address | None:
        return address

    @app.job(name="opaque")
    async def opaque() -> object:
        return Address("x", datetime(2027, 1, 1, tzinfo=UTC))

    old, new = Address("old", datetime(2027, 1, 1, tzinfo=UTC)), Address("new", datetime(2027, 1, 2))
    customer = Customer(name="Ada", address=old)
    async with app.worker():
        moved = await (await move.enqueue(customer, new)).result(timeout=5)
        assert moved == Customer(name="Ada", address=new)
        assert seen == [(customer, new)]
        assert await (await look.enqueue(old)).result(timeout=5) == old
        # What isn't declared comes back as plain JSON.
        assert await (await opaque.enqueue()).result(timeout=5) == {"street": "x", "since": "2027-01-01T00:00:00Z"}


async def test_options_reach_the_database(app: Fencepost) -> None:
    @app.job(queue="mail", priority=3, max_attempts=4, expires=60)
    async def send(to: str) -> None: ...

    plain = await (await send.enqueue("a")).get()
    assert (plain.queue, plain.priority, plain.max_attempts, plain.tags) == ("mail", 3, 4, [])
    assert plain.expires_at is not None
    assert plain.expires_at - plain.created_at == timedelta(seconds=60)
    at = datetime(2050, 1, 1, tzinfo=UTC)
    wanted = send.options(
        queue="slow", priority=0, max_attempts=1, timeout=timedelta(minutes=2), run_at=at,
        expires=at + timedelta(1), tags=["a", "b", "a"], metadata={"n": 1}, idempotency_key="k",
    )  # fmt: skip
    job = await (await wanted.enqueue("a")).get()
    assert (job.queue, job.priority, job.max_attempts, job.timeout_seconds) == ("slow", 0, 1, 120)
    assert (job.run_at, job.expires_at, job.tags, job.idempotency_key) == (at, at + timedelta(1), ["a", "b"], "k")
    assert msgspec.json.decode(job.metadata or b"null") == {"n": 1}
    # A copy: the job itself is as it was, and what is said later counts.
    again = await (await wanted.options(delay=10, tags=[], idempotency_key="l").enqueue("a")).get()
    assert again.run_at is not None
    assert again.run_at - again.created_at == timedelta(seconds=10)
    assert (again.queue, again.tags) == ("slow", [])


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"delay": 1, "run_at": datetime.now(UTC)}, "delay: can't be given together with run_at"),
    ({"delay": -1}, "delay: must be from 0 to"),
    ({"delay": float("nan")}, "delay: must be seconds or a timedelta, not nan"),
    ({"delay": "1m"}, "delay: must be seconds or a timedelta, not '1m'"),
    ({"run_at": datetime(2030, 1, 1)}, "run_at: must be a datetime with a time zone"),
    ({"run_at": datetime(2130, 1, 1, tzinfo=UTC)}, "run_at: must be between the years 1970 and 2099"),
    ({"run_at": 3}, "run_at: must be a datetime, not 3"),
    ({"priority": 101}, "priority: must be a whole number from 0 to 100, not 101"),
    ({"priority": True}, "priority: must be a whole number"),
    ({"queue": "a b"}, "queue: must be 1 to 100 of the characters"),
    ({"queue": 3}, "queue: must be 1 to 100 of the characters"),
    ({"max_attempts": 0}, "max_attempts: must be a whole number from 1 to 100"),
    ({"timeout": 0}, "timeout: must be from 1ms to 24h, not 0s"),
    ({"expires": datetime(2030, 1, 1)}, "expires: must be a datetime with a time zone"),
    ({"idempotency_key": "é"}, "idempotency_key: must be 1 to 255 printable ASCII"),
    ({"idempotency_key": 3}, "idempotency_key: must be 1 to 255 printable ASCII characters, not 3"),
    ({"unique": "x"}, "unique: must be a Unique or a UniqueBy, not 'x'"),
    ({"unique": Unique(key="")}, "unique: key must be 1 to 255 bytes"),
    ({"unique": Unique(key="x", period_seconds=3)}, "unique: period can't be given together with until finished"),
    ({"tags": "abc"}, "tags: must be a list of strings, not 'abc'"),
    ({"tags": [""]}, "tags: must each be 1 to 100 bytes of printable text"),
    ({"tags": [3]}, "tags: must each be 1 to 100 bytes"),
    ({"tags": map(str, range(21))}, "tags: must be at most 20, not 21"),
    ({"metadata": [1]}, "metadata: must be a JSON object"),
    ({"metadata": {"a": object()}}, "metadata: can't be written as JSON"),
    ({"metadata": {"a": "x" * 20_000}}, "metadata: takes 20,008 bytes; the limit is 16,384"),
]


@pytest.mark.parametrize(("options", "words"), OPTIONS)
def test_an_option_that_cant_work_is_named(options: dict[str, Any], words: str) -> None:
    job = Fencepost("postgresql://nowhere/none").job(name="x")(lambda: None)
    with pytest.raises(InvalidJob) as caught:
        job.options(**options)
    assert str(caught.value).startswith(words)


async def test_keys(app: Fencepost) -> None:
    @app.job
    async def send(to: str) -> None: ...

    keyed = send.options(idempotency_key="once")
    first = await keyed.enqueue("a")
    again = await keyed.enqueue("a")
    assert (again.id, again.effect) == (first.id, "replayed")
    with pytest.raises(KeyConflict):
        await keyed.enqueue("b")
    with pytest.raises(KeyConflict):
        await keyed.enqueue_many([send.call("c"), keyed.call("b")])
    assert [job.payload async for job in app.jobs()] == [msgspec.Raw(b'{"to": "a"}')]


async def test_unique_by_arguments(app: Fencepost) -> None:
    @app.job(unique=UniqueBy("user", "kind"))
    async def sync(user: int, kind: str = "all", *, reason: str = "") -> None: ...

    first = await sync.enqueue(1, reason="a")
    same = await sync.enqueue(1, "all", reason="b")
    assert (same.id, same.effect) == (first.id, "skipped")
    assert (await sync.enqueue(1, "some")).effect == "created"
    assert (await sync.enqueue(2)).effect == "created"
    replaced = await sync.options(unique=UniqueBy("user", "kind", mode="replace")).enqueue(1, reason="c")
    assert replaced.effect == "replaced"
    assert await first.status() == "cancelled"
    moved = await sync.options(unique=UniqueBy("user", "kind", mode="latest"), delay=60).enqueue(1)
    assert (moved.id, moved.effect) == (replaced.id, "rescheduled")


def test_keys_of_unique_rules() -> None:
    arguments = {"b": 1, "a": ["x"]}
    assert UniqueBy().unique(arguments).key == UniqueBy().unique({"a": ["x"], "b": 1}).key == '{"a":["x"],"b":1}'
    assert UniqueBy("b", "c").unique(arguments).key == "[1,null]"
    assert UniqueBy(lambda found: found["a"][0]).unique(arguments).key == "x"
    assert UniqueBy(lambda found: found["b"]).unique(arguments).key == "1"
    long = UniqueBy("a").unique({"a": "x" * 1000}).key
    assert len(long) == 64
    assert long != UniqueBy("a").unique({"a": "x" * 1001}).key
    period = UniqueBy(until="period", period=timedelta(minutes=1)).unique({})
    assert (period.until, period.period_seconds) == ("period", 60)
    for wrong in ({"until": "period"}, {"period": 3}, {"until": "never"}, {"mode": "x"}):
        with pytest.raises(InvalidSettings):
            UniqueBy("a", **wrong)
    with pytest.raises(InvalidSettings):
        UniqueBy("a", lambda found: found)
    with pytest.raises(InvalidJob, match="unique: can't be made of object"):
        UniqueBy(lambda found: object()).unique({})
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(InvalidJob, match="unique: can't be made of list: it is nested too deep, or contains itself"):
        UniqueBy(lambda found: endless).unique({})


@pytest.mark.slow
async def test_many_are_one_transaction(app: Fencepost) -> None:
    @app.job
    async def add(a: int, b: int = 0) -> int:
        return a + b

    async with app.worker(workers=20):
        handles = await add.enqueue_many(add.call(number, b=1) for number in range(50))
        assert [await handle.result(timeout=10) for handle in handles] == list(range(1, 51))
        assert await add.enqueue_many([]) == []
        assert len({(await handle.get()).created_at for handle in handles}) == 1


async def test_a_declared_type_is_enqueued_here_and_runs_elsewhere(app: Fencepost) -> None:
    remote = app.declare("resize", payload=Address, queue="video")
    handle = await remote.enqueue(Address("x", datetime(2027, 1, 1)))
    job = await handle.get()
    assert (job.type, job.queue) == ("resize", "video")
    assert msgspec.json.decode(job.payload) == {"street": "x", "since": "2027-01-01T00:00:00"}
    assert "resize" not in app.types
    with pytest.raises(InvalidJob, match="payload must be an object"):
        await remote.enqueue(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidSettings, match="runs elsewhere"):
        remote(Address("x", datetime(2027, 1, 1)))


async def test_a_payload_may_be_too_large(app: Fencepost) -> None:
    @app.job
    async def keep(text: str) -> None: ...

    with pytest.raises(InvalidJob, match=r"payload: takes 1,048,587 bytes; the limit is 1,048,576"):
        await keep.enqueue("x" * (1 << 20))


async def test_looking_and_changing(app: Fencepost) -> None:
    @app.job
    async def send(to: int) -> None: ...

    later = send.options(delay=60, tags=["t"])
    handles = await later.enqueue_many([later.call(number) for number in range(250)])
    found = [job.id async for job in app.jobs(status="pending", type="send", tag="t")]
    assert found == [handle.id for handle in reversed(handles)]
    assert [job async for job in app.jobs(tag="other")] == []
    assert await app.cancel(handles[0].id) == "cancelled"
    assert await handles[1].cancel() == "cancelled"
    result = await app.cancel_all(tag="t")
    assert (result.matched, result.changed) == (248, 248)
    assert (await app.delete_all(status="cancelled")).changed == 250
    with pytest.raises(JobNotFound):
        await app.get(handles[0].id)
    with pytest.raises(InvalidJob, match="tagg: is no condition; there are status"):
        await app.retry_all(tagg="t")  # type: ignore[call-arg]
    with pytest.raises(JobNotFound, match=r"never enqueued here"):
        await app.handle(uuid4()).result(timeout=1)


async def test_functions_around_an_enqueue(app: Fencepost) -> None:
    said: list[str] = []

    @app.around_enqueue
    def outer(drafts: list[Draft]) -> Iterator[None]:
        said.append("outer in")
        for draft in drafts:
            draft.metadata["tenant"] = draft.payload.get("a", 0)
            draft.tags.append("stamped")
        try:
            yield
        finally:
            said.append("outer out")

    @app.around_enqueue
    def inner(drafts: list[Draft]) -> Iterator[None]:
        said.append(f"inner in {[draft.tags for draft in drafts]}")
        for draft in drafts:
            draft.priority += 1
            if draft.payload["a"] == 13:
                draft.queue = "bad luck"
        yield
        said.append("inner out")

    @app.job
    async def take(a: int) -> None: ...

    for handle in (await take.enqueue(1), await asyncio.to_thread(take.enqueue_sync, 1)):
        job = await handle.get()
        assert (job.priority, job.tags, msgspec.json.decode(job.metadata or b"")) == (1, ["stamped"], {"tenant": 1})
    assert said[:4] == ["outer in", "inner in [['stamped']]", "inner out", "outer out"]
    with pytest.raises(InvalidJob, match=r"jobs\[1\]: queue: must be"):
        await take.enqueue_many([take.call(1), take.call(13)])
    assert said[-1] == "outer out"
    with pytest.raises(TypeError):
        Draft(next(iter(DRAFT_OF(take, 1)))).payload["a"] = 2


def DRAFT_OF(job: Any, *args: Any) -> list[Any]:
    return [job._producer._new_job(job.call(*args))]


REQUEST: ContextVar[str] = ContextVar("REQUEST")


async def test_sync_callers_keep_their_context(app: Fencepost) -> None:
    """What a request's context holds is seen around an enqueue, though another thread stores the job."""

    @app.around_enqueue
    def stamp(drafts: list[Draft]) -> Iterator[None]:
        drafts[0].tags.append(REQUEST.get())
        yield

    @app.job
    async def take(a: int) -> None: ...

    REQUEST.set("r-1")
    # As in a request of Flask or Django, which has a thread and a context.
    handle = await asyncio.to_thread(take.enqueue_sync, 1)
    assert (await handle.get()).tags == ["r-1"]


async def test_the_callers_trace_goes_along(app: Fencepost, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    @app.job
    async def take(a: int) -> None: ...

    assert (await (await take.enqueue(1)).get()).trace_context is None
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    with provider.get_tracer("test").start_as_current_span("request") as span:
        for handle in (await take.enqueue(1), await asyncio.to_thread(take.enqueue_sync, 1)):
            trace_context = (await handle.get()).trace_context
            assert trace_context is not None
            assert trace_context.split("-")[1] == f"{span.get_span_context().trace_id:032x}"
    names = [span.name for span in exporter.get_finished_spans()]
    assert names == ["enqueue take", "enqueue take", "request"]


async def test_a_function_around_that_hides_an_error_is_told(app: Fencepost) -> None:
    @app.around_enqueue
    def hide(drafts: list[Draft]) -> Iterator[None]:
        with contextlib.suppress(KeyConflict):
            yield

    @app.job
    async def take(a: int) -> None: ...

    keyed = take.options(idempotency_key="k")
    await keyed.enqueue(1)
    with pytest.raises(FencepostError, match="caught its error"):
        await keyed.enqueue(2)


async def test_listeners_hear_of_what_was_stored(app: Fencepost, database_url: str) -> None:
    events: list[Event] = []
    app.on_event(events.append)

    @app.on_event
    def broken(event: Event) -> None:
        raise RuntimeError

    @app.job
    async def take(a: int) -> None: ...

    keyed = take.options(idempotency_key="k", delay=60)
    handle = await keyed.enqueue(1)
    await keyed.enqueue(1)
    assert events == [JobEnqueued(handle.id, "take", "default")]
    async with app.worker():
        await (await take.enqueue(1)).result(timeout=5)
        await wait_until(lambda: any(isinstance(event, AttemptEnded) for event in events), 5)


async def test_the_retry_of_a_dead_letter_by_its_handle(app: Fencepost) -> None:
    tries: list[int] = []

    @app.job(max_attempts=1)
    async def fragile(context: Context) -> int:
        tries.append(context.attempt)
        if len(tries) == 1:
            raise ValueError("broken")
        return len(tries)

    async with app.worker():
        handle = await fragile.enqueue()
        await wait_until(lambda: _is(handle, "dead_letter"), 5)
        await handle.retry()
        assert await handle.result(timeout=5) == 2
        tries.clear()
        handles = [await fragile.enqueue()]
        await wait_until(lambda: _is(handles[0], "dead_letter"), 5)
        result = await app.retry_all(type="fragile", status="dead_letter")
        assert (result.matched, result.changed) == (1, 1)
        assert await handles[0].result(timeout=5) == 2


async def _is(handle: Any, status: str) -> bool:
    return bool(await handle.status() == status)
