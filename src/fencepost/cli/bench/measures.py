"""
Handing in, measured. Everything is on: durable commits, history, fencing, hints.

Every function here, in `drains` and in `steady` gets a fresh schema.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from fencepost.cli.bench.ground import Ground, wal_bytes
from fencepost.cli.bench.plan import Figures, Plan, Show, fill, job
from fencepost.store.statements import qualify

CALLERS = 32
WARM_UP = 20
"""Calls that aren't timed."""


async def insert_one(ground: Ground, plan: Plan, show: Show) -> Figures:
    """For reference: one-row inserts into a plain table, each committed, on one connection."""
    table = qualify("fencepost.bench_reference", ground.schema)
    insert = f"insert into {table} values ($1, 'x')"
    rows = max(1, plan.jobs // 25)
    numbers = iter(range(rows + WARM_UP))
    await ground.database.execute(f"create table {table} (id bigint primary key, note text)")
    async with ground.database.connection() as connection:
        seconds = await _timed(rows, lambda: connection.execute(insert, next(numbers)), callers=1, show=show)
    await ground.database.execute(f"drop table {table}")
    return {"commits_per_second": rows / seconds}


async def enqueue_one(ground: Ground, plan: Plan, show: Show) -> Figures:
    """Jobs handed in one call at a time, each committed before the next."""
    calls = max(1, plan.jobs // 25)
    seconds = await _timed(calls, lambda: ground.jobs.enqueue([job(plan)]), callers=1, show=show)
    return {"jobs_per_second": calls / seconds}


async def enqueue_concurrent(ground: Ground, plan: Plan, show: Show) -> Figures:
    """The same from 32 callers of one process."""
    calls = max(CALLERS, plan.jobs // 3)
    seconds = await _timed(calls, lambda: ground.jobs.enqueue([job(plan)]), callers=CALLERS, show=show)
    return {"jobs_per_second": calls / seconds}


async def enqueue_bulk(ground: Ground, plan: Plan, show: Show) -> Figures:
    """Jobs handed in a thousand a call."""
    before = await wal_bytes(ground.database)
    seconds = await fill(ground, plan, show)
    written = await wal_bytes(ground.database) - before
    return {"jobs_per_second": plan.jobs / seconds, "wal_bytes_per_job": written / plan.jobs}


async def _timed(count: int, call: Callable[[], Awaitable[object]], *, callers: int, show: Show) -> float:
    """Make *count* calls from some callers, after a few that aren't timed; returns the seconds."""
    for _ in range(WARM_UP):
        await call()
    numbers = iter(range(count))
    with show("calls", count) as advance:

        async def caller() -> None:
            for _ in numbers:
                await call()
                advance("")

        start = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(callers)))
        return time.perf_counter() - start
