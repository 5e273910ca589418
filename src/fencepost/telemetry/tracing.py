"""
OpenTelemetry spans, for programs that have set it up: from whoever enqueued a job to its attempts.

Names and attributes follow the semantic conventions for messaging. Without the package
`opentelemetry-api` nothing here does anything, and with it nothing until somebody has set a
tracer provider: that is an SDK's part, which is the program's choice.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from fencepost.domain.job import Lease
from fencepost.domain.outcome import Ending, Outcome
from fencepost.logger import get_logger

log = get_logger("fencepost.telemetry")

SYSTEM = "fencepost"
_QUIET = {Ending.SUCCEEDED, Ending.RELEASED, Ending.SNOOZED}
"""Endings that are no errors."""


@cache
def _has_api() -> bool:
    # Looked for first: a program that doesn't trace shouldn't load it.
    if importlib.util.find_spec("opentelemetry") is None:
        return False
    try:
        importlib.import_module("opentelemetry.trace")
    except ImportError:
        # Something else that shares the name.
        return False
    return True


def _is_set_up() -> bool:
    """Whether somebody has set a tracer provider; without one, spans would be made for nobody."""
    # A provider can only be set by whoever has imported it.
    if "opentelemetry.trace" not in sys.modules or not _has_api():
        return False
    from opentelemetry import trace

    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)


def find_tracer() -> Tracer | None:
    """What makes spans of attempts; None when nobody would see them."""
    return Tracer() if _is_set_up() else None


def current_traceparent() -> str | None:
    """The current span as a W3C `traceparent`, to be stored with a job; None when there is none."""
    if not _is_set_up():
        return None
    from opentelemetry.trace.propagation import tracecontext

    carrier: dict[str, str] = {}
    tracecontext.TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


@contextmanager
def enqueue_span(types: Sequence[str], queue: str | None = None) -> Iterator[None]:
    """
    Make a span (PRODUCER) around the enqueueing of jobs of these *types*, one for each job.

    Ask for `current_traceparent` inside of it. *queue* is None when they go to several.
    """
    if not _is_set_up():
        yield
        return
    names = sorted(set(types))
    attributes: dict[str, Any] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
    }
    if queue is not None:
        attributes["messaging.destination.name"] = queue
    if len(names) == 1:
        attributes["fencepost.job.type"] = names[0]
    if len(types) > 1:
        attributes["messaging.batch.message_count"] = len(types)
    name = f"enqueue {names[0]}" if len(names) == 1 else "enqueue"
    with _span(_tracer(), name, kind="PRODUCER", attributes=attributes):
        yield


@contextmanager
def continuing(traceparent: str | None) -> Iterator[None]:
    """Make what *traceparent* names the current span: what is traced inside is its child."""
    if traceparent is None or not _has_api():
        yield
        return
    from opentelemetry import context

    token = context.attach(_remote(traceparent))
    try:
        yield
    finally:
        context.detach(token)


class Tracer:
    """Makes spans of attempts."""

    def __init__(self) -> None:
        self._tracer = _tracer()

    @contextmanager
    def attempt(self, lease: Lease) -> Iterator[AttemptSpan]:
        """Make a span (CONSUMER) of an attempt; its parent is whoever enqueued the job."""
        with _span(
            self._tracer,
            f"process {lease.type}",
            context=_remote(lease.trace_context),
            kind="CONSUMER",
            attributes={
                "messaging.system": SYSTEM,
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.destination.name": lease.queue,
                "messaging.message.id": str(lease.id),
                "fencepost.job.type": lease.type,
                "fencepost.job.attempt": lease.attempt,
                "fencepost.job.max_attempts": lease.max_attempts,
            },
        ) as span:
            yield AttemptSpan(span)


class AttemptSpan:
    """The span of one attempt."""

    def __init__(self, span: Any) -> None:
        self._span = span

    def ended(self, result: Outcome | None, *, may_be_completed: bool = False) -> None:
        """
        Say how it ended; None is a lost lease.

        With *may_be_completed* a transaction of the handler's decides, so that nothing is called an error.
        """
        from opentelemetry import trace

        if may_be_completed:
            self._span.set_attribute("fencepost.job.completed_in", True)
            return
        ending = Ending.LOST if result is None else result.ending
        self._span.set_attribute("fencepost.job.outcome", ending.value)
        if ending in _QUIET:
            return
        error_type = (result and result.error_type) or "LeaseLost"
        message = (result and result.error) or "the lease was lost, so nothing was recorded"
        self._span.set_attribute("error.type", error_type)
        self._span.set_status(trace.Status(trace.StatusCode.ERROR, message))
        event = {"exception.type": error_type, "exception.message": message}
        if result is not None and result.traceback is not None:
            event["exception.stacktrace"] = result.traceback
        self._span.add_event("exception", event)


@contextmanager
def _span(tracer: Any, name: str, *, kind: str, attributes: dict[str, Any], context: Any = None) -> Iterator[Any]:
    """
    Make a span, which is the current one meanwhile.

    A processor of the program's may raise when it starts or ends: what is traced is worth more than its span.
    """
    from opentelemetry import trace

    try:
        span = tracer.start_span(name, context=context, kind=trace.SpanKind[kind], attributes=attributes)
    except Exception:
        log.exception("a span can't be started")
        span = trace.INVALID_SPAN
    try:
        with trace.use_span(span):
            yield span
    finally:
        try:
            span.end()
        except Exception:
            log.exception("a span can't be ended")


def _tracer() -> Any:
    from opentelemetry import trace

    import fencepost

    return trace.get_tracer("fencepost", fencepost.__version__)


def _remote(traceparent: str | None) -> Any:
    """The context of *traceparent*; in one that says nothing valid, a span begins a trace of its own."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation import tracecontext

    carrier = {} if traceparent is None else {"traceparent": traceparent}
    return tracecontext.TraceContextTextMapPropagator().extract(carrier, context=Context())
