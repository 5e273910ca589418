"""Running a backlog, measured: from the first handler's start until nothing is unfinished."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from fencepost.cli.bench.child import Config
from fencepost.cli.bench.ground import Ground, server_cpu, wal_bytes
from fencepost.cli.bench.measures import insert_one
from fencepost.cli.bench.plan import Figures, Plan, Show, fill
from fencepost.cli.bench.reading import merged, rate_between
from fencepost.cli.bench.workers import Child, changed, check_alive, children

SPAN = 10_000
"""How many jobs the first and the last rate of a drain are taken over, at the most."""


async def drain(ground: Ground, plan: Plan, show: Show) -> Figures:
    """No-op jobs run to the last settlement, from the first handler's start."""
    async with pinned_snapshot(ground, plan):
        wal_before = await wal_bytes(ground.database)
        await fill(ground, plan, show)
        await ground.database.execute("analyze")
        return await _drain(ground, plan, show, wal_before)


async def serial(ground: Ground, plan: Plan, show: Show) -> Figures:
    """No-op jobs strictly one after the other: one slot."""
    reference = (await insert_one(ground, plan, show))["commits_per_second"]
    few = msgspec.structs.replace(plan, jobs=max(1, plan.jobs // 10), slots=1, processes=1)
    figures = await drain(ground, few, show)
    rate = figures["jobs_per_second"]
    return {
        **figures,
        "insert_commits_per_second": reference,
        "ratio_to_insert": rate / reference if rate and reference else None,
    }


@asynccontextmanager
async def pinned_snapshot(ground: Ground, plan: Plan) -> AsyncIterator[None]:
    """
    Where the plan says so, hold a snapshot open under a transaction id, as a long report elsewhere would.

    Nothing that dies meanwhile can be vacuumed.
    """
    if not plan.pinned:
        yield
        return
    # Not one of the pool's: behind a pooler those begin their transactions themselves.
    connection = await ground.database.connect()
    try:
        await connection.execute(
            "begin isolation level repeatable read;"
            "set local idle_in_transaction_session_timeout = 0;"
            "select pg_current_xact_id()"
        )
        yield
    finally:
        await connection.close()


async def _drain(ground: Ground, plan: Plan, show: Show, wal_before: int) -> Figures:
    config = Config(ground.dsn, ground.schema, plan.slots, log_lines=plan.log_lines)
    async with children(plan.processes, config) as workers:
        server_before = await server_cpu(ground.database)
        for child in workers:
            child.go()
        await all_finished(ground, plan, workers, show, starts=plan.jobs)
        end = time.monotonic_ns()
        server_after = await server_cpu(ground.database)
        written = await wal_bytes(ground.database) - wal_before
        totals = [await child.finish() for child in workers]
    first = min(child.first_at_ns or end for child in workers)
    samples = merged([child.progress for child in workers])
    span = max(1, min(SPAN, plan.jobs // 3))
    return {
        "jobs_per_second": plan.jobs / ((end - first) / 1e9),
        "first_jobs_per_second": rate_between(samples, first, 0, span),
        "last_jobs_per_second": rate_between(samples, first, plan.jobs - span, plan.jobs),
        "wal_bytes_per_job": written / plan.jobs,
        "worker_cpu_seconds": sum(total.cpu_seconds for total in totals),
        "server_cpu_seconds": None if server_before is None or server_after is None else server_after - server_before,
        "peak_memory_megabytes": max(total.peak_memory_bytes for total in totals) / 1e6,
    }


async def all_finished(
    ground: Ground,
    plan: Plan,
    workers: list[Child],
    show: Show,
    *,
    starts: int,
    each: Callable[[int], None] = lambda started: None,
) -> None:
    """Until *starts* handlers have started, telling *each* how many, and then until nothing is pending or leased."""
    said = 0
    with show("running", starts) as advance:
        while (done := sum(child.started for child in workers)) < starts:
            advance("", done - said)
            said = done
            await changed(workers)
            each(sum(child.started for child in workers))
        advance("", starts - said)
    # Asked only now: before all have begun the answer is known, and asking would slow what is measured.
    while (await ground.database.fetch("unfinished"))[0]["some"]:
        check_alive(workers)
        await asyncio.sleep(0.002)
