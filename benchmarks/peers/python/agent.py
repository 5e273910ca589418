"""
The side of the benchmark that runs inside a Python peer's own environment.

    agent.py ADAPTER describe SLOTS | install | one N | concurrent N CALLERS | bulk N SIZE
                     | latency N RATE | work SLOTS

The database is in BENCH_DSN. What only one peer needs is in `adapters/`; an adapter has

    describe(slots)            its version, settings, and the SQL that counts unfinished jobs
    install(dsn)               make the schema in an empty database
    producer(dsn, connections) an object with `one(payload)`, `many(payloads)` (or None) and `close()`
    work(dsn, slots, go)       await go(), then run jobs for ever; each handler calls meter.record

Nothing here depends on the project, and only the standard library is assumed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import meter

CONNECTIONS = int(os.environ.get("BENCH_CONNECTIONS", "10"))
"""What a producer with many callers may open."""
WARM_UP = 20
"""Calls before the clock starts, in the runs that are made of single calls."""


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop where the environment has it."""
    try:
        import uvloop
    except ModuleNotFoundError:
        asyncio.run(work)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work)


def load(name: str) -> Any:
    """Import an adapter by its file, so that it may carry its peer's name."""
    path = Path(__file__).parent / "adapters" / f"{name}.py"
    spec = importlib.util.spec_from_file_location("peer_adapter", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def one(adapter: Any, dsn: str, count: int) -> dict[str, Any]:
    """Enqueue job by job, each acknowledged before the next."""
    producer = await adapter.producer(dsn, 1)
    for number in range(WARM_UP):
        await producer.one({"n": -1 - number})
    begin = time.perf_counter()
    for number in range(count):
        await producer.one({"n": number})
    seconds = time.perf_counter() - begin
    await producer.close()
    return {"jobs": count, "seconds": seconds}


async def concurrent(adapter: Any, dsn: str, count: int, callers: int) -> dict[str, Any]:
    """Enqueue job by job from many tasks that share one producer."""
    producer = await adapter.producer(dsn, CONNECTIONS)
    await asyncio.gather(*(producer.one({"n": -1 - number}) for number in range(callers)))
    numbers = iter(range(count))

    async def call() -> None:
        for number in numbers:
            await producer.one({"n": number})

    begin = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(callers)))
    seconds = time.perf_counter() - begin
    await producer.close()
    return {"jobs": count, "seconds": seconds}


async def bulk(adapter: Any, dsn: str, count: int, size: int) -> dict[str, Any]:
    """Enqueue in batches; exactly *count* jobs, because a drain counts on it."""
    producer = await adapter.producer(dsn, CONNECTIONS)
    if producer.many is None:
        await producer.close()
        return {**await _without_bulk(adapter, dsn, count), "how": "no bulk call: 32 callers, one job each"}
    begin = time.perf_counter()
    for start in range(0, count, size):
        await producer.many([{"n": number} for number in range(start, min(start + size, count))])
    seconds = time.perf_counter() - begin
    await producer.close()
    return {"jobs": count, "seconds": seconds, "how": f"{size} a call"}


async def _without_bulk(adapter: Any, dsn: str, count: int) -> dict[str, Any]:
    producer = await adapter.producer(dsn, CONNECTIONS)
    numbers = iter(range(count))

    async def call() -> None:
        for number in numbers:
            await producer.one({"n": number})

    begin = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(32)))
    seconds = time.perf_counter() - begin
    await producer.close()
    return {"jobs": count, "seconds": seconds}


async def latency(adapter: Any, dsn: str, count: int, rate: int) -> dict[str, Any]:
    """Enqueue at a steady pace; each job carries the moment just before its enqueue call."""
    producer = await adapter.producer(dsn, 1)
    for _ in range(3):
        await producer.one({"n": -1})
        await asyncio.sleep(0.05)
    begin = time.monotonic()
    for number in range(count):
        await asyncio.sleep(max(0.0, begin + number / rate - time.monotonic()))
        await producer.one({"n": number, "t": time.monotonic_ns() // 1000})
    await producer.close()
    return {"jobs": count, "seconds": time.monotonic() - begin}


async def obey(adapter: Any, command: str, numbers: list[int]) -> None:
    """Run one command and answer it."""
    dsn = os.environ.get("BENCH_DSN", "")
    answer: dict[str, Any] = {}
    if command == "describe":
        answer = {"runtime": f"Python {platform.python_version()}", **adapter.describe(*numbers)}
    elif command == "install":
        await adapter.install(dsn)
    elif command == "work":
        await adapter.work(dsn, *numbers, meter.wait_for_go)
    else:
        kinds = {"one": one, "concurrent": concurrent, "bulk": bulk, "latency": latency}
        answer = await kinds[command](adapter, dsn, *numbers)
    meter.emit("done", **answer)


if __name__ == "__main__":
    run(obey(load(sys.argv[1]), sys.argv[2], [int(word) for word in sys.argv[3:]]))
