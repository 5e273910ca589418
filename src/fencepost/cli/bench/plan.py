"""What every measure is given: how much to do, with which jobs, and how to show how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import msgspec

from fencepost.cli.bench.ground import Ground
from fencepost.cli.output import Advance
from fencepost.domain.ids import new_id
from fencepost.domain.job import NewJob

Figures = dict[str, float | None]
"""What a measure returns: figures with their unit in the name; None where something can't be seen."""

Show = Callable[[str, int], AbstractContextManager[Advance]]
"""Shows the progress of one part of a measure, given its name and its length."""

BATCH = 1000
"""Jobs a call, where they are handed in in bulk."""


class Plan(msgspec.Struct, frozen=True):
    """How much is measured, and with what."""

    jobs: int = 50_000
    slots: int = 500
    processes: int = 1
    payload: bytes = b'{"n": 1}'
    pinned: bool = False
    log_lines: bool = False
    seconds: float = 20.0
    rate: float = 3000.0
    failures: float = 0.0
    """Share of the jobs of `memory` whose first attempt fails."""

    def failing(self, jobs: int) -> int:
        """How many of so many jobs fail at first."""
        return int(jobs * self.failures)


def job(plan: Plan, *, type: str = "noop", payload: bytes | None = None) -> NewJob:
    """A job as the benchmarks make them."""
    return NewJob(id=new_id(), type=type, max_attempts=5, payload=payload or plan.payload)


def timed_job(plan: Plan) -> NewJob:
    """A job that knows when it was handed in, by the monotonic clock that all processes share."""
    return job(plan, type="timed", payload=b'{"at": %d}' % time.monotonic_ns())


async def fill(ground: Ground, plan: Plan, show: Show) -> float:
    """Hand in the plan's jobs in batches, to the queue `default`; returns how long it took."""
    await ground.queues.ensure("default", 0)
    start = time.perf_counter()
    with show("handing in", plan.jobs) as advance:
        for done in range(0, plan.jobs, BATCH):
            count = min(BATCH, plan.jobs - done)
            # Spread evenly.
            before, after = plan.failing(done), plan.failing(done + count)
            made = [job(plan, type="fails") for _ in range(after - before)]
            await ground.jobs.enqueue(made + [job(plan) for _ in range(count - len(made))])
            advance("", count)
    return time.perf_counter() - start
