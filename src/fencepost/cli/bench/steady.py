"""Workers that keep up, measured: how soon a job begins, and what doing nothing takes."""

from __future__ import annotations

import asyncio
import time

from fencepost.cli.bench.child import Config
from fencepost.cli.bench.drains import pinned_snapshot
from fencepost.cli.bench.ground import Ground, server_cpu, transactions
from fencepost.cli.bench.plan import Figures, Plan, Show, timed_job
from fencepost.cli.bench.reading import percentiles
from fencepost.cli.bench.workers import Child, changed, children, cpu_seconds

LATENCY_RATE = 20
"""Jobs a second: far apart enough that each finds the worker idle."""
REPORT_SECONDS = 0.25
"""How long after a start the worker says so: seldom, because what it would delay is being measured."""
TICK_SECONDS = 0.002
UNDER_WAY = 32
"""Calls of the steady producer that may be waiting for their commit."""
CATCH_UP_SECONDS = 60.0
"""Longest wait for what is left when the last job has been handed in."""


async def latency(ground: Ground, plan: Plan, show: Show) -> Figures:
    """From just before the enqueue to the handler's first line, an idle worker in another process, 20 jobs a second."""
    count = max(LATENCY_RATE, plan.jobs // 250)
    async with children(1, _config(ground, plan)) as (child,):
        await _settle_down(ground, plan, child)
        start = time.monotonic()
        with show("one at a time", count) as advance:
            for number in range(count):
                await asyncio.sleep(max(0.0, start + number / LATENCY_RATE - time.monotonic()))
                await ground.jobs.enqueue([timed_job(plan)])
                advance("")
        await _until_started(child, count + 1, seconds=10)
        delays = (await child.finish()).delays_ns[1:]
    return percentiles(delays)


async def mixed(ground: Ground, plan: Plan, show: Show) -> Figures:
    """A steady rate in and out: how long jobs wait, in the first and in the last third, and what is left."""
    total = int(plan.rate * plan.seconds)
    async with pinned_snapshot(ground, plan), children(1, _config(ground, plan)) as (child,):
        await _settle_down(ground, plan, child)
        seconds = await _hand_in_steadily(ground, plan, total, show)
        left = (await ground.queues.state("default")).depth
        await _until_started(child, total + 1, seconds=CATCH_UP_SECONDS)
        delays = (await child.finish()).delays_ns[1:]
    third = max(1, len(delays) // 3)
    return {
        "jobs_per_second": total / seconds,
        "left_at_the_end": left,
        **percentiles(delays),
        **{f"first_third_{name}": value for name, value in percentiles(delays[:third]).items()},
        **{f"last_third_{name}": value for name, value in percentiles(delays[-third:]).items()},
    }


async def idle(ground: Ground, plan: Plan, show: Show) -> Figures:
    """A worker with nothing to do: what it takes of a core, and of the server."""
    seconds = int(plan.seconds)
    async with children(1, _config(ground, plan)) as (child,):
        await _settle_down(ground, plan, child)
        await asyncio.sleep(2)
        worker, server, count = cpu_seconds(child.pid), await server_cpu(ground.database), await _transactions(ground)
        with show("seconds", seconds) as advance:
            for _ in range(seconds):
                await asyncio.sleep(1)
                advance("")
        worker_after, server_after = cpu_seconds(child.pid), await server_cpu(ground.database)
        count_after = await _transactions(ground)
        await child.finish()
    return {
        "worker_core_percent": _percent_of_core(worker, worker_after, seconds),
        "server_core_percent": _percent_of_core(server, server_after, seconds),
        # Three of them were ours: the end of the first look, the server's CPU, the beginning of the second.
        "transactions_per_second": max(0, count_after - count - 3) / seconds,
    }


async def _hand_in_steadily(ground: Ground, plan: Plan, total: int, show: Show) -> float:
    """
    Hand in at the plan's rate, whatever is due in one call; returns how long it took.

    A call that takes long holds up no later one: it would hide how long jobs wait meanwhile.
    """
    start, sent = time.monotonic(), 0
    free = asyncio.Semaphore(UNDER_WAY)
    failures: list[Exception] = []

    async def hand_in(count: int) -> None:
        try:
            await ground.jobs.enqueue([timed_job(plan) for _ in range(count)])
        except Exception as error:  # noqa: BLE001 - raised below, without a group around it
            failures.append(error)
        finally:
            free.release()

    with show("steady", total) as advance:
        async with asyncio.TaskGroup() as calls:
            while sent < total and not failures:
                due = min(total, int((time.monotonic() - start) * plan.rate) + 1)
                if due > sent:
                    await free.acquire()
                    calls.create_task(hand_in(due - sent))
                    advance("", due - sent)
                    sent = due
                await asyncio.sleep(TICK_SECONDS)
    if failures:
        raise failures[0]
    return time.monotonic() - start


async def _settle_down(ground: Ground, plan: Plan, child: Child) -> None:
    """Begin, and let one job through, so that everything is connected, prepared and idle."""
    child.go()
    await ground.jobs.enqueue([timed_job(plan)])
    await _until_started(child, 1, seconds=20)
    await asyncio.sleep(0.5)


async def _until_started(child: Child, count: int, *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while child.started < count:
        await changed([child], seconds=deadline - time.monotonic())


async def _transactions(ground: Ground) -> int:
    await ground.database.execute("select pg_stat_clear_snapshot()")
    return await transactions(ground.database)


def _config(ground: Ground, plan: Plan) -> Config:
    return Config(ground.dsn, ground.schema, plan.slots, log_lines=plan.log_lines, report_seconds=REPORT_SECONDS)


def _percent_of_core(before: float | None, after: float | None, seconds: int) -> float | None:
    return None if before is None or after is None else 100 * (after - before) / seconds
