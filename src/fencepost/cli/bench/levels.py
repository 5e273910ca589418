"""What a worker process holds, measured while it runs many jobs: memory, tasks, threads, open files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import msgspec

from fencepost.cli.bench.child import Config
from fencepost.cli.bench.drains import all_finished
from fencepost.cli.bench.ground import Ground, Level
from fencepost.cli.bench.plan import Figures, Plan, Show, fill
from fencepost.cli.bench.workers import Child, children, open_files, resident_bytes, threads

MEMORY_TIMES = 10
"""How many times the plan's jobs are run to see what a worker's memory comes to."""
LOOKS = 40
"""How often is looked, at even distances of jobs."""
WARM_UP = 0.1
"""Share of the looks that says nothing about the level: caches fill, the pool opens."""


async def memory(ground: Ground, plan: Plan, show: Show) -> Figures:
    """What a worker process holds half-way through ten times as many jobs, and at the end; --failures of them fail."""
    plan = msgspec.structs.replace(plan, jobs=plan.jobs * MEMORY_TIMES)
    await fill(ground, plan, show)
    await ground.database.execute("analyze")
    config = Config(ground.dsn, ground.schema, plan.slots, log_lines=plan.log_lines, counts_tasks=True)
    # Each job that fails is started twice.
    starts = plan.jobs + plan.failing(plan.jobs)
    async with children(1, config) as (child,):
        child.go()
        await all_finished(ground, plan, [child], show, starts=starts, each=_looking(child, ground.levels, starts))
        ground.levels.append(_level(child))
        totals = await child.finish()
    return {**_figures(ground.levels, starts), "peak_memory_megabytes": totals.peak_memory_bytes / 1e6}


def _looking(child: Child, found: list[Level], starts: int) -> Callable[[int], None]:
    """Looks at *child* each time that it has started so many more."""

    def look(started: int) -> None:
        if started * LOOKS >= (len(found) + 1) * starts:
            found.append(_level(child))

    return look


def _level(child: Child) -> Level:
    resident = resident_bytes(child.pid)
    return Level(
        started=child.started,
        memory_megabytes=None if resident is None else resident / 1e6,
        tasks=child.tasks,
        threads=threads(child.pid),
        open_files=open_files(child.pid),
    )


def _figures(levels: Sequence[Level], starts: int) -> Figures:
    half_way = next((level for level in levels if level.started * 2 >= starts), levels[-1])
    half, full = half_way.memory_megabytes, levels[-1].memory_megabytes
    figures: Figures = {
        "half_way_memory_megabytes": half,
        "memory_megabytes": full,
        "ratio_to_half_way": full / half if full and half else None,
    }
    for name in ("memory_megabytes", "tasks", "threads", "open_files"):
        first, second = _halves([getattr(level, name) for level in levels])
        figures |= {f"first_half_{name}": first, f"second_half_{name}": second}
    return figures


def _halves(looks: Sequence[float | None]) -> tuple[float | None, float | None]:
    """The usual level in the first half, without its very beginning, and in the second."""
    values = [value for value in looks[int(len(looks) * WARM_UP) :] if value is not None]
    if not values:
        return None, None
    half = max(1, len(values) // 2)
    return median(values[:half]), median(values[-half:])
