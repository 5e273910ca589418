"""
What is measured. Each measure is a function of a peer's processes and a fresh database.

All return a flat dict for the JSON; `per_second` and the other names that
`report.METRICS` mentions end up in the table.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agents import Agent, AgentFailed, Agents
from server import Database

Result = dict[str, Any]
Sample = tuple[int, int]
"""A moment, and how many handlers had begun by then."""

SMALL_SLOTS = 10
"""Jobs at once, where small claims are asked for. 0 stands for the peer's best setting."""
_POLL_SECONDS = 0.005
_CONNECTIONS = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
_SETTLE_SECONDS = 20.0
"""How long the last outcomes may take to be recorded after the last handler has begun."""


@dataclass(frozen=True)
class Sizes:
    """How much work each measure is."""

    one: int = 2_000
    concurrent: int = 10_000
    callers: int = 32
    bulk: int = 50_000
    batch: int = 1_000
    drain: int = 50_000
    pinned: int = 100_000
    span: int = 10_000
    """Jobs in the first and in the last part of a pinned drain."""
    latency: int = 200
    rate: int = 20
    idle_seconds: float = 2.0
    """How long the worker of the latency run is idle before the first job."""
    limit_seconds: float = 60.0
    """When a drain is cut short; its rate is then that of what was done."""
    reference_seconds: int = 4


QUICK = Sizes(
    one=50, concurrent=200, bulk=1_000, batch=250, drain=300, pinned=600, span=200, latency=10,
    idle_seconds=0.3, limit_seconds=15, reference_seconds=1,
)  # fmt: skip
"""Large enough to notice what is broken, too small to say how fast it is."""


@dataclass(frozen=True)
class Bench:
    """What a measure works with."""

    agents: Agents
    database: Database
    sizes: Sizes
    left: str
    """The SQL that counts the peer's unfinished jobs."""


async def one(bench: Bench) -> Result:
    """Enqueue one at a time."""
    return _rate(await bench.agents.ask("one", bench.sizes.one, url=bench.database.url))


async def concurrent(bench: Bench) -> Result:
    """Enqueue one job a call, from many callers in one process."""
    sizes = bench.sizes
    answer = await bench.agents.ask("concurrent", sizes.concurrent, sizes.callers, url=bench.database.url)
    return _rate(answer)


async def bulk(bench: Bench) -> Result:
    """Enqueue in batches."""
    return _rate(await bench.agents.ask("bulk", bench.sizes.bulk, bench.sizes.batch, url=bench.database.url))


async def drain(bench: Bench) -> Result:
    """Run what is there, in one process."""
    result, _ = await _drain(bench, bench.sizes.drain, processes=1)
    return result


async def drain2(bench: Bench) -> Result:
    """Run what is there, in two processes."""
    result, _ = await _drain(bench, bench.sizes.drain, processes=2)
    return result


async def pinned(bench: Bench) -> Result:
    """Run what is there while a snapshot from before the first job is held."""
    return await _pinned(bench, slots=0)


async def pinned_small(bench: Bench) -> Result:
    """The same with few jobs at once, so that claims are many and small."""
    return await _pinned(bench, slots=SMALL_SLOTS)


async def latency(bench: Bench) -> Result:
    """Time from the enqueue call to the first line of the handler, in an idle worker."""
    sizes, url = bench.sizes, bench.database.url
    [worker] = await bench.agents.workers(1, slots=0, url=url)
    try:
        worker.go()
        await asyncio.sleep(sizes.idle_seconds)
        await bench.agents.ask("latency", sizes.latency, sizes.rate, url=url)
        deadline = time.monotonic() + 10
        while len(worker.pickups) < sizes.latency and time.monotonic() < deadline:  # noqa: ASYNC110 - bounded
            await asyncio.sleep(0.02)
    finally:
        await worker.stop()
    took = sorted(microseconds / 1000 for microseconds in worker.pickups)
    if not took:
        raise AgentFailed(f"no job was picked up: {worker.last_words()}")
    return {
        "jobs": sizes.latency,
        "done": len(took),
        "p50_ms": took[len(took) // 2],
        "p99_ms": took[min(len(took) - 1, len(took) * 99 // 100)],
        "max_ms": took[-1],
    }


MEASURES: dict[str, Callable[[Bench], Awaitable[Result]]] = {
    "one": one,
    "concurrent": concurrent,
    "bulk": bulk,
    "drain": drain,
    "drain2": drain2,
    "pinned": pinned,
    "pinned-small": pinned_small,
    "latency": latency,
}


def _rate(answer: Result) -> Result:
    kept = {name: value for name, value in answer.items() if name != "event"}
    return {**kept, "per_second": answer["jobs"] / answer["seconds"]}


async def _pinned(bench: Bench, *, slots: int) -> Result:
    async with bench.database.pinned():
        result, samples = await _drain(bench, bench.sizes.pinned, processes=1, slots=slots)
    span = min(bench.sizes.span, samples[-1][1] // 3)
    if span:
        end = samples[-1][1]
        result["span"] = span
        result["first_per_second"] = span / _between(samples, 0, span)
        result["last_per_second"] = span / _between(samples, end - span, end)
    return result


async def _drain(bench: Bench, jobs: int, *, processes: int, slots: int = 0) -> tuple[Result, list[Sample]]:
    """Enqueue, then let workers run it all; the samples are the first worker's."""
    database, sizes = bench.database, bench.sizes
    wal = await database.wal()
    filled = _rate(await bench.agents.ask("bulk", jobs, sizes.batch, url=database.url))
    wal = await database.wal() - wal
    await database.execute("analyze")
    workers = await bench.agents.workers(processes, slots=slots, url=database.url)
    try:
        result = await _work(bench, workers, jobs)
        samples = [(workers[0].first_at or 0, 0), *workers[0].samples]
    finally:
        for worker in workers:
            await worker.stop()
    return {**result, "fill_per_second": filled["per_second"], "wal_bytes_enqueue": wal / jobs}, samples


async def _work(bench: Bench, workers: Sequence[Agent], jobs: int) -> Result:
    """
    Let the workers go, and watch until nothing is left.

    The clock runs from the first handler's first line until the queue's own tables hold
    nothing unfinished, so neither a peer's start-up nor an outcome that isn't recorded counts.
    """
    database = bench.database
    wal, server_cpu, worker_cpu = await database.wal(), database.cpu_seconds(), _cpu(workers)
    released = time.monotonic_ns()
    for worker in workers:
        worker.go()
    left = await _watch(bench, workers, jobs)
    end = time.monotonic_ns()
    server_after, worker_after = database.cpu_seconds(), _cpu(workers)
    wal = await database.wal() - wal
    connections = await database.count(_CONNECTIONS)
    first = min((worker.first_at for worker in workers if worker.first_at is not None), default=None)
    done = jobs - left
    if first is None or not done:
        raise AgentFailed(f"no job was done within {bench.sizes.limit_seconds:g} seconds: {workers[0].last_words()}")
    return {
        "jobs": jobs,
        "done": done,
        "left": left,
        "handlers_begun": sum(worker.begun for worker in workers),
        "seconds": (end - first) / 1e9,
        "per_second": done * 1e9 / (end - first),
        "startup_ms": (first - released) / 1e6,
        "wal_bytes_drain": wal / done,
        "worker_connections": connections,
        "worker_cpu_seconds": worker_after - worker_cpu,
        "server_cpu_seconds": None if server_after is None or server_cpu is None else server_after - server_cpu,
    }


async def _watch(bench: Bench, workers: Sequence[Agent], jobs: int) -> int:
    """
    Wait until every handler has begun and every outcome is recorded; returns the jobs left.

    The queue's own tables are asked only at the end, so that watching costs the server nothing.
    """
    deadline = time.monotonic() + bench.sizes.limit_seconds
    while sum(worker.begun for worker in workers) < jobs:
        if time.monotonic() > deadline:
            return await bench.database.count(bench.left)
        for worker in workers:
            if not worker.is_running:
                raise AgentFailed(f"the worker ended: {worker.last_words()}")
        await asyncio.sleep(_POLL_SECONDS)
    settled = time.monotonic() + _SETTLE_SECONDS
    while (left := await bench.database.count(bench.left)) and time.monotonic() < settled:  # noqa: ASYNC110 - a table
        await asyncio.sleep(_POLL_SECONDS)
    return left


def _cpu(workers: Sequence[Agent]) -> float:
    return sum(worker.cpu_seconds() for worker in workers)


def _between(samples: Sequence[Sample], low: int, high: int) -> float:
    """Seconds from when *low* handlers had begun until *high* had."""
    return max(_moment(samples, high) - _moment(samples, low), 1) / 1e9


def _moment(samples: Sequence[Sample], count: int) -> float:
    """When so many handlers had begun, on the straight line between two samples."""
    before = samples[0]
    for sample in samples:
        if sample[1] >= count:
            grown = sample[1] - before[1]
            return before[0] + (sample[0] - before[0]) * ((count - before[1]) / grown if grown else 1)
        before = sample
    return samples[-1][0]
