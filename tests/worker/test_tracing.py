"""OpenTelemetry spans: from whoever enqueues to the attempts."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from fencepost.domain.context import Context
from fencepost.domain.job import Status
from fencepost.errors import Permanent, Snooze
from fencepost.telemetry import tracing
from fencepost.types.jobtype import Kind

from .process_jobs import TYPES
from .runtimes import job_type, result_of, start_worker
from .support import Bench, records, wait_until

pytestmark = pytest.mark.anyio

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """A tracer provider, for this test only."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def name_of(traceparent: str | None) -> tuple[str, ...]:
    """Its trace and its span; the flags depend on the SDK's version."""
    return tuple((traceparent or "").split("-")[1:3])


def ids_of(span: ReadableSpan) -> tuple[str, ...]:
    assert span.context is not None
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


async def the_span(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    await wait_until(lambda: [span for span in spans.get_finished_spans() if span.name == name], 3, f"the span {name}")
    return next(span for span in spans.get_finished_spans() if span.name == name)


async def test_an_attempt_is_a_span_of_the_trace_that_its_job_came_with(
    bench: Bench, spans: InMemorySpanExporter
) -> None:
    seen: list[str | None] = []

    async def work(context: Context, payload: Any) -> None:
        seen.append(tracing.current_traceparent())

    job_id = await bench.enqueue("work", queue="letters", trace_context=PARENT)
    await start_worker(bench, job_type("work", work))
    await bench.ended(job_id)
    span = await the_span(spans, "process work")
    assert span.kind is SpanKind.CONSUMER
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == tuple(PARENT.split("-")[1:3])
    assert [name_of(text) for text in seen] == [ids_of(span)]
    assert dict(span.attributes or {}) == {
        "messaging.system": "fencepost",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "letters",
        "messaging.message.id": str(job_id),
        "fencepost.job.type": "work",
        "fencepost.job.attempt": 1,
        "fencepost.job.max_attempts": 3,
        "fencepost.job.outcome": "succeeded",
    }
    assert span.status.status_code is StatusCode.UNSET


async def test_how_an_attempt_ended_is_in_its_span(bench: Bench, spans: InMemorySpanExporter) -> None:
    async def fails(context: Context, payload: Any) -> None:
        raise ValueError("wrong")

    async def snoozes(context: Context, payload: Any) -> None:
        if context.token == 1:
            raise Snooze(60)

    async def never(context: Context, payload: Any) -> None:
        raise Permanent("no")

    async def hangs(context: Context, payload: Any) -> None:
        await asyncio.sleep(30)

    await start_worker(
        bench, *(job_type(handler.__name__, handler) for handler in (fails, snoozes, never, hangs)), TYPES["fail"]
    )
    await bench.enqueue("fails", max_attempts=1)
    await bench.enqueue("snoozes")
    await bench.enqueue("never")
    await bench.enqueue("hangs", timeout_seconds=0.1, max_attempts=1)
    await bench.enqueue("fail", "other", max_attempts=1)
    await bench.enqueue("nobody_knows_it")
    for name, outcome, error_type in (
        ("fails", "failed", "ValueError"),
        ("never", "permanent", "Permanent"),
        ("hangs", "timed_out", "Timeout"),
        ("fail", "failed", "ValueError"),
        ("nobody_knows_it", "permanent", "UnknownJobType"),
    ):
        span = await the_span(spans, f"process {name}")
        attributes = span.attributes or {}
        assert (attributes["fencepost.job.outcome"], attributes["error.type"]) == (outcome, error_type)
        assert span.status.status_code is StatusCode.ERROR
        (event,) = span.events
        assert event.name == "exception"
        assert event.attributes is not None
        assert event.attributes["exception.type"] == error_type
        has_trace = "exception.stacktrace" in event.attributes
        assert has_trace == (error_type in ("ValueError", "Permanent"))
    span = await the_span(spans, "process snoozes")
    assert (span.attributes or {})["fencepost.job.outcome"] == "snoozed"
    assert span.status.status_code is StatusCode.UNSET


async def test_a_handler_that_comes_back_late_does_not_change_how_its_span_ends(
    bench: Bench, spans: InMemorySpanExporter
) -> None:
    let_go = threading.Event()

    def work(context: Context, payload: Any) -> str:
        let_go.wait(10)
        return "late"

    await start_worker(bench, job_type("work", work, kind=Kind.THREAD))
    await bench.ended(await bench.enqueue("work", timeout_seconds=0.1, max_attempts=1))
    let_go.set()
    span = await the_span(spans, "process work")
    assert (span.attributes or {})["fencepost.job.outcome"] == "timed_out"
    assert span.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize("text", [None, "", "00-nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
async def test_without_a_trace_to_continue_it_begins_one(
    bench: Bench, spans: InMemorySpanExporter, text: str | None
) -> None:
    """And isn't in one that happened to be current where the worker was started."""
    with trace.get_tracer("test").start_as_current_span("the start of the worker"):
        await start_worker(bench, job_type("work", lambda context, payload: None, kind=Kind.THREAD))
    job_id = await bench.enqueue("work", trace_context=text)
    assert (await bench.ended(job_id)).status is Status.COMPLETED
    assert (await the_span(spans, "process work")).parent is None


async def test_what_is_traced_in_threads_and_children_is_inside_of_the_attempt(
    bench: Bench, spans: InMemorySpanExporter
) -> None:
    def in_thread(context: Context, payload: Any) -> None:
        with trace.get_tracer("test").start_as_current_span("inner"):
            pass

    await start_worker(bench, job_type("in_thread", in_thread, kind=Kind.THREAD), TYPES["traced"])
    await bench.ended(await bench.enqueue("in_thread"))
    outer, inner = await the_span(spans, "process in_thread"), await the_span(spans, "inner")
    assert inner.parent is not None
    assert outer.context is not None
    assert inner.parent.span_id == outer.context.span_id
    seen = result_of(await bench.ended(await bench.enqueue("traced")))
    outer = await the_span(spans, "process traced")
    assert name_of((seen or b"").decode().strip('"')) == ids_of(outer)


def test_an_enqueue_is_a_span_whose_traceparent_goes_with_the_jobs(spans: InMemorySpanExporter) -> None:
    with tracing.enqueue_span(["send"], "mail"):
        inside = tracing.current_traceparent()
    with tracing.enqueue_span(["send", "fetch", "send"]):
        pass
    one, several = spans.get_finished_spans()
    assert name_of(inside) == ids_of(one)
    assert (one.name, one.kind) == ("enqueue send", SpanKind.PRODUCER)
    assert dict(one.attributes or {}) == {
        "messaging.system": "fencepost",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "fencepost.job.type": "send",
    }
    assert (several.name, (several.attributes or {})["messaging.batch.message_count"]) == ("enqueue", 3)
    assert tracing.current_traceparent() is None


async def test_nothing_is_traced_until_somebody_has_set_it_up(bench: Bench) -> None:
    assert tracing.find_tracer() is None
    with tracing.enqueue_span(["send"]):
        assert tracing.current_traceparent() is None
    worker = await start_worker(bench, job_type("work", lambda context, payload: None, kind=Kind.THREAD))
    assert worker._executor._tracer is None


def test_it_is_not_imported_and_need_not_be_installed() -> None:
    program = (
        "import sys\n"
        "from fencepost.telemetry import tracing\n"
        "assert 'opentelemetry' not in sys.modules, 'imported'\n"
        "import importlib.util\n"
        "importlib.util.find_spec = lambda name, package=None: None\n"
        "assert tracing.find_tracer() is None\n"
        "assert tracing.current_traceparent() is None\n"
        "with tracing.enqueue_span(['send'], 'mail'), tracing.continuing('00-a-b-01'):\n"
        "    pass\n"
        "assert 'opentelemetry' not in sys.modules, 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


@pytest.mark.parametrize("moment", ["on_start", "on_end"])
async def test_a_span_processor_that_raises_changes_no_outcome(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, moment: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("a processor's own fault")

    processor = SpanProcessor()
    monkeypatch.setattr(processor, moment, refuse)
    provider = TracerProvider()
    provider.add_span_processor(processor)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    runs = 0

    async def work(context: Context, payload: Any) -> str:
        nonlocal runs
        runs += 1
        return "done"

    await start_worker(bench, job_type("work", work))
    with tracing.enqueue_span(["work"]):
        job_id = await bench.enqueue("work")
    job = await bench.ended(job_id)
    assert (job.status, job.attempts, runs, bytes(job.result or b"")) == (Status.COMPLETED, 1, 1, b'"done"')
    assert len(records(caplog, f"a span can't be {'started' if moment == 'on_start' else 'ended'}")) == 2
