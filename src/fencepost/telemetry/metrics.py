"""
Counts what happens, for Prometheus.

The names without a prefix are the contract's, kept as they are because scrapers match
them. Every label has a bounded set of values, whatever is sent here. Depths are read
from the database at scrape time and are the same in every process: `max by (queue)`,
not `sum`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending
from fencepost.telemetry.pulses import Look, worst
from fencepost.telemetry.tally import JOB_BUCKETS, Counts, Durations, ProcessEvents

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
QUEUE_LABELS = 200
"""Queues that get a series of their own; the others are summed up in `other`."""
HTTP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_RETRYABLE = (Ending.FAILED, Ending.TIMED_OUT)


class QueueNumbers(Protocol):
    """What is shown of a queue."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def depth(self) -> int:
        """Pending jobs."""
        ...

    @property
    def in_flight(self) -> int:
        """Jobs in processing."""
        ...


class Metrics(ProcessEvents):
    """
    The metrics of one process and of its worker processes, in a registry of their own.

    Its methods may be called from any thread.
    """

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        self._submitted = Counter("jobs_submitted", "Jobs stored; replays excluded.", registry=registry)
        self._completed = Counter("jobs_completed", "Jobs completed here.", registry=registry)
        failed = Counter("jobs_failed", "Jobs that ended here without success.", ["status"], registry=registry)
        self._failed = {status: failed.labels(status.value) for status in (Status.FAILED, Status.DEAD_LETTER)}
        self._retried = Counter("jobs_retried", "Retries scheduled after a failure, or by hand.", registry=registry)
        self._recovered = Counter("jobs_recovered", "Expired leases taken back here.", registry=registry)
        self._pruned = Counter("jobs_pruned", "Finished jobs removed here: their time was over.", registry=registry)
        self._durations = _Durations()
        registry.register(self._durations)
        self._active = Gauge("active_workers", "Slots that are busy here.", registry=registry)
        self._stuck = Gauge("stuck_handlers", "Handlers that ignore their cancellation.", registry=registry)
        self._processes = Gauge("worker_processes", "Worker processes that run under this one.", registry=registry)
        self._process_ends = Counter(
            "worker_process_ends", "Worker processes that ended without being told to.", registry=registry
        )
        self._http = Histogram(
            "http_request_duration_seconds",
            "How long requests took.",
            ["method", "route", "status"],
            buckets=HTTP_BUCKETS,
            registry=registry,
        )
        self._requests: dict[tuple[str, str, int], Histogram] = {}
        self._queues = _Queues()
        registry.register(self._queues)
        self._loops = _Loops()
        registry.register(self._loops)

    def submitted(self, count: int) -> None:
        """Jobs were stored."""
        self._submitted.inc(count)

    def started(self) -> None:
        """An attempt started."""
        self._active.inc()

    def ended(self, ending: Ending, status: str | None, seconds: float) -> None:
        """An attempt ended; its job is now in *status*, or the lease was lost (None)."""
        self._active.dec()
        self._durations.observe(Ending.LOST if status is None else ending, seconds)
        self._count(ending, status, 1)

    def _count(self, ending: Ending, status: str | None, times: int) -> None:
        if status == Status.COMPLETED:
            self._completed.inc(times)
        elif status == Status.PENDING and ending in _RETRYABLE:
            self._retried.inc(times)
        elif status is not None:
            failed = self._failed.get(Status(status))
            if failed is not None:
                failed.inc(times)

    def retried_by_hand(self) -> None:
        """A dead-lettered job was put back."""
        self._retried.inc()

    def recovered(self, count: int) -> None:
        """Expired leases were taken back."""
        self._recovered.inc(count)

    def pruned(self, count: int) -> None:
        """Finished jobs were removed: their time was over."""
        self._pruned.inc(count)

    def stuck(self, change: int) -> None:
        """A handler keeps its slot beyond its attempt (+1), or let go of it (−1)."""
        self._stuck.inc(change)
        self._active.inc(change)

    def merge(self, counts: Counts) -> None:
        """A worker process has counted these."""
        for ended in counts.ended:
            self._durations.add(Ending.LOST if ended.status is None else ended.ending, ended.durations)
            self._count(ended.ending, ended.status, ended.durations.count)
        self._recovered.inc(counts.recovered)
        self._pruned.inc(counts.pruned)
        self._active.inc(counts.active)
        self._stuck.inc(counts.stuck)

    def process_started(self) -> None:
        """A worker process was started."""
        self._processes.inc()

    def process_ended(self, *, expected: bool) -> None:
        """A worker process has ended: as it was told to, or by itself."""
        self._processes.dec()
        if not expected:
            self._process_ends.inc()

    def requested(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request to *route*, a template, was answered."""
        key = (method if method in _METHODS else "other", route, status)
        child = self._requests.get(key)
        if child is None:
            child = self._requests[key] = self._http.labels(key[0], route, str(status))
        child.observe(seconds)

    def watch(self, look: Look) -> None:
        """Show how these loops are, at each scrape."""
        self._loops.look = look

    def exposition(self, queues: Sequence[QueueNumbers] | None) -> bytes:
        """Write everything down. Without *queues* (the database didn't answer) their gauges are left out."""
        self._queues.states = queues
        return generate_latest(self.registry)


class _Durations(Collector):
    """The histogram of attempts. The library's own can't be given what another process has counted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_ending = {ending: Durations() for ending in Ending}

    def observe(self, ending: Ending, seconds: float) -> None:
        """One attempt took so long."""
        with self._lock:
            self._by_ending[ending].observe(seconds)

    def add(self, ending: Ending, durations: Durations) -> None:
        """Attempts of another process."""
        with self._lock:
            self._by_ending[ending].add(durations)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily("job_processing_duration_seconds", "How long attempts ran.", labels=["outcome"])
        bounds = [*map(floatToGoString, JOB_BUCKETS), "+Inf"]
        with self._lock:
            for ending, durations in self._by_ending.items():
                buckets = list(zip(bounds, accumulate(durations.buckets), strict=True))
                family.add_metric([ending.value], buckets, durations.seconds)
        yield family


class _Queues(Collector):
    """The gauges about queues, made anew at each scrape."""

    def __init__(self) -> None:
        self.states: Sequence[QueueNumbers] | None = None
        self._named: set[str] = set()

    def collect(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily(
            "queue_depth", "Pending jobs of a queue; the same in every process.", labels=["queue"]
        )
        in_flight = GaugeMetricFamily("jobs_in_flight", "Jobs in processing, everywhere.")
        if self.states is not None:
            depths: dict[str, int] = {}
            for state in self.states:
                label = self._label(state.name)
                depths[label] = depths.get(label, 0) + state.depth
            for name, value in depths.items():
                depth.add_metric([name], value)
            in_flight.add_metric([], sum(state.in_flight for state in self.states))
        yield depth
        yield in_flight

    def _label(self, name: str) -> str:
        if name not in self._named and len(self._named) < QUEUE_LABELS:
            self._named.add(name)
        return name if name in self._named else "other"


class _Loops(Collector):
    """How the loops are, made anew at each scrape. Of several processes the worst is shown."""

    def __init__(self) -> None:
        self.look: Look = list

    def collect(self) -> Iterator[Metric]:
        age = GaugeMetricFamily(
            "loop_last_turn_age_seconds",
            "How long ago a loop came round; 0 while it has nothing to do.",
            labels=["loop"],
        )
        stuck = GaugeMetricFamily("loop_stuck", "Whether a loop is stuck: 1, or 0.", labels=["loop"])
        for state in worst(self.look()):
            age.add_metric([state.name], state.age_seconds)
            stuck.add_metric([state.name], float(state.trouble is not None))
        yield age
        yield stuck
