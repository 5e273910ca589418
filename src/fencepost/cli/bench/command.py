"""`fencepost bench`: runs the measures, several times over, and reports medians."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Awaitable, Callable
from statistics import median

import click
import msgspec

import fencepost
from fencepost.cli.bench import crowded, drains, ground, http, levels, measures, steady
from fencepost.cli.bench.plan import Figures, Plan, Show
from fencepost.cli.output import progress
from fencepost.cli.worker_thread import new_event_loop
from fencepost.settings import from_environment

Measure = Callable[[ground.Ground, Plan, Show], Awaitable[Figures]]


class Kind(msgspec.Struct, frozen=True):
    """One thing that can be measured."""

    run: Measure
    pinned: bool = False
    """Whether a snapshot is held open meanwhile."""

    @property
    def text(self) -> str:
        """What it is, in a line."""
        said = (self.run.__doc__ or "").strip().splitlines()[0]
        return f"{said.removesuffix('.')}; with a snapshot held open elsewhere." if self.pinned else said


KINDS: dict[str, Kind] = {
    "insert-one": Kind(measures.insert_one),
    "enqueue-one": Kind(measures.enqueue_one),
    "enqueue-concurrent": Kind(measures.enqueue_concurrent),
    "enqueue-bulk": Kind(measures.enqueue_bulk),
    "drain": Kind(drains.drain),
    "drain-pinned": Kind(drains.drain, pinned=True),
    "serial": Kind(drains.serial),
    "latency": Kind(steady.latency),
    "mixed": Kind(steady.mixed),
    "mixed-pinned": Kind(steady.mixed, pinned=True),
    "idle": Kind(steady.idle),
    "http": Kind(http.http),
    "crowded": Kind(crowded.crowded),
    "memory": Kind(levels.memory),
}


class Result(msgspec.Struct):
    """What `--json` prints."""

    fencepost: str
    python: str
    machine: str
    server: dict[str, str]
    plan: dict[str, object]
    repeats: int
    medians: dict[str, Figures]
    runs: dict[str, list[Figures]]
    levels: dict[str, list[list[ground.Level]]]
    """What was seen over time, of each run of a measure that looks."""


def bench(*, kinds: tuple[str, ...], plan: Plan, repeats: int, schema: str | None, as_json: bool) -> int:
    """Run the command; returns its exit code."""
    settings = from_environment()
    with ground.server(settings) as url, asyncio.Runner(loop_factory=new_event_loop) as runner:
        result = runner.run(_bench(url, kinds or tuple(KINDS), plan, repeats, schema))
    click.echo(msgspec.json.format(msgspec.json.encode(result)).decode() if as_json else as_text(result))
    return 0


async def _bench(url: str, kinds: tuple[str, ...], plan: Plan, repeats: int, schema: str | None) -> Result:
    runs: dict[str, list[Figures]] = {kind: [] for kind in kinds}
    seen: dict[str, list[list[ground.Level]]] = {}
    server: dict[str, str] = {}
    # Round and round rather than each in turn, so that a machine that slows down meanwhile slows all alike.
    for repeat in range(repeats):
        for kind in kinds:
            async with ground.fresh(url, schema) as place:
                server = await ground.facts(place.database)
                its_plan = msgspec.structs.replace(plan, pinned=KINDS[kind].pinned)
                runs[kind].append(await KINDS[kind].run(place, its_plan, _show(f"{kind} {repeat + 1}/{repeats}")))
                if place.levels:
                    seen.setdefault(kind, []).append(place.levels)
    return Result(
        fencepost=fencepost.__version__,
        python=platform.python_version(),
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        server=server,
        plan=_as_options(plan),
        repeats=repeats,
        medians={kind: _medians(figures) for kind, figures in runs.items()},
        runs=runs,
        levels=seen,
    )


def _show(label: str) -> Show:
    return lambda part, total: progress(total, f"{label} {part}")


def _as_options(plan: Plan) -> dict[str, object]:
    """The plan as it was asked for: what each measure makes of it isn't part of it."""
    options = {name: value for name, value in msgspec.structs.asdict(plan).items() if name != "pinned"}
    return {**options, "payload": plan.payload.decode()}


def _medians(runs: list[Figures]) -> Figures:
    def of(name: str) -> float | None:
        values = [value for run in runs if (value := run[name]) is not None]
        return median(values) if values else None

    return {name: of(name) for name in runs[0]}


def as_text(result: Result) -> str:
    """The figures for people."""
    lines = [
        f"fencepost {result.fencepost}, Python {result.python}, PostgreSQL {result.server.get('server_version')} "
        f"(fsync {result.server.get('fsync')}, synchronous_commit {result.server.get('synchronous_commit')}), "
        f"{result.machine}; medians of {result.repeats}"
    ]
    for kind, figures in result.medians.items():
        lines.append(f"\n{kind}: {KINDS[kind].text}")
        lines += [f"  {name.replace('_', ' '):28} {_number(value)}" for name, value in figures.items()]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
