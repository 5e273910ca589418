"""From single runs to one table: medians, spreads and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents import CONNECTIONS
from reference import LABELS

Run = Mapping[str, Any]
Report = dict[str, Any]


@dataclass(frozen=True)
class Metric:
    """One row of the table."""

    key: str
    measure: str
    title: str
    unit: str
    read: Callable[[Run], float | None]
    less_is_better: bool = False
    in_picture: bool = True


def _field(name: str) -> Callable[[Run], float | None]:
    return lambda run: run.get(name)


def _wal(run: Run) -> float:
    return float(run["wal_bytes_enqueue"] + run["wal_bytes_drain"])


def _cpu(name: str) -> Callable[[Run], float | None]:
    return lambda run: None if run[name] is None else run[name] * 1e6 / run["done"]


_RATE = _field("per_second")
_FIRST, _LAST = _field("first_per_second"), _field("last_per_second")

METRICS = (
    Metric("one", "one", "Enqueue, one at a time", "jobs/s", _RATE),
    Metric("concurrent", "concurrent", "Enqueue, 32 callers", "jobs/s", _RATE),
    Metric("bulk", "bulk", "Enqueue in bulk", "jobs/s", _RATE),
    Metric("drain", "drain", "Drain, one process", "jobs/s", _RATE),
    Metric("drain2", "drain2", "Drain, two processes", "jobs/s", _RATE),
    Metric("pinned_first", "pinned", "Under a held snapshot, first part", "jobs/s", _FIRST, in_picture=False),
    Metric("pinned_last", "pinned", "Under a held snapshot, last part", "jobs/s", _LAST),
    Metric("small_first", "pinned-small", "The same, 10 slots, first part", "jobs/s", _FIRST, in_picture=False),
    Metric("small_last", "pinned-small", "The same, 10 slots, last part", "jobs/s", _LAST),
    Metric("p50", "latency", "Pick-up, p50", "ms", _field("p50_ms"), less_is_better=True, in_picture=False),
    Metric("p99", "latency", "Pick-up, p99", "ms", _field("p99_ms"), less_is_better=True),
    Metric("wal", "drain", "WAL, enqueue and drain", "bytes/job", _wal, less_is_better=True),
    Metric(
        "worker_cpu",
        "drain",
        "CPU of the worker",
        "µs/job",
        _cpu("worker_cpu_seconds"),
        less_is_better=True,
        in_picture=False,
    ),
    Metric(
        "server_cpu",
        "drain",
        "CPU of PostgreSQL",
        "µs/job",
        _cpu("server_cpu_seconds"),
        less_is_better=True,
        in_picture=False,
    ),
)


def summarise(runs: Sequence[Run], peers: Sequence[str], reference: str) -> dict[str, dict[str, Any]]:
    """For each metric and peer: median, least, most, number of runs, and ratio to the reference peer's median."""
    table: dict[str, dict[str, Any]] = {}
    for metric in METRICS:
        row: dict[str, Any] = {}
        for peer in peers:
            mine = [
                run for run in runs if run["peer"] == peer and run["measure"] == metric.measure and "error" not in run
            ]
            values = [value for run in mine if (value := metric.read(run)) is not None]
            if values:
                row[peer] = {
                    "median": statistics.median(values),
                    "least": min(values),
                    "most": max(values),
                    "runs": len(values),
                    "cut_short": any(run.get("left", 0) for run in mine),
                }
        base = row.get(reference, {}).get("median")
        for cell in row.values():
            cell["ratio"] = cell["median"] / base if base else None
        if row:
            table[metric.key] = row
    return table


def medians(rounds: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """The reference figures of all rounds as one."""
    found: dict[str, float | None] = {}
    for name in LABELS:
        values = [value for one in rounds if (value := one.get(name)) is not None]
        found[name] = statistics.median(values) if values else None
    return found


def number(value: float) -> str:
    """A figure with as many digits as mean something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def ratio(value: float | None) -> str:
    """How many times the reference; empty where there is none."""
    if value is None:
        return ""
    return f"{value:.0f}×" if value >= 20 else f"{value:.1f}×" if value >= 1 else f"{value:.2f}×"


def markdown(report: Report) -> str:
    """The table, and below it everything one has to know to read it."""
    peers = list(report["peers"])
    lines = ["| | " + " | ".join(peers) + " |", "|---|" + "---:|" * len(peers)]
    for metric in METRICS:
        row = report["summary"].get(metric.key)
        if row:
            less = ", less is better" if metric.less_is_better else ""
            cells = [_cell(row.get(peer)) for peer in peers]
            lines.append(f"| {metric.title} ({metric.unit}{less}) | " + " | ".join(cells) + " |")
    for title, field in (("A finished job can be looked up", "kept"), ("A superseded outcome is refused", "fenced")):
        lines.append(f"| {title} | " + " | ".join(report["peers"][peer][field] for peer in peers) + " |")
    return "\n".join([*lines, "", *_notes(report)]) + "\n"


def _cell(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "–"
    short = "\\*" if cell["cut_short"] else ""
    return f"{number(cell['median'])}{short} {ratio(cell['ratio'])}".strip()


def _notes(report: Report) -> list[str]:
    """Sizes, server, machine, versions and settings: one bullet each."""
    sizes, machine = report["sizes"], report["machine"]
    lines = ["A quick run: these figures say that everything works, not how fast it is.", ""] if report["quick"] else []
    lines += [
        f"Medians of {report['repeat']}; × is the ratio to {report['reference_peer']}. \\* cut short after "
        f"{sizes['limit_seconds']:g} s. The parts under a held snapshot are {sizes['span']:,} jobs of "
        f"{sizes['pinned']:,}; a drain is {sizes['drain']:,}; bulk is {sizes['batch']:,} a call; "
        f"{sizes['callers']} callers share at most {CONNECTIONS} connections.",
        "",
        f"- Machine: {machine['cpus']} × {machine['processor']}, {machine['memory_gib']:.0f} GiB, {machine['system']}; "
        f"{report['began_at']}",
        "- PostgreSQL: " + ", ".join(f"{name} {value}" for name, value in report["server"].items()),
    ]
    lines += [
        f"- Bare server: {number(value)} {LABELS[name]}"
        for name, value in report["reference"]["medians"].items()
        if value is not None
    ]
    for name, peer in report["peers"].items():
        settings = ", ".join(f"{key} {_shown(value)}" for key, value in peer["settings"].items())
        small = ", ".join(
            f"{key} {_shown(value)}" for key, value in peer["small_settings"].items() if value != peer["settings"][key]
        )
        lines.append(f"- {name} {peer['version']} on {peer['runtime']}: {settings}. With 10 slots: {small}")
    lines += [f"- Left out: {name}: {reason}" for name, reason in report["left_out"].items()]
    lines += [
        f"- FAILED: {run['peer']}, {run['measure']}: {run['error'].splitlines()[0][:200]}"
        for run in report["runs"]
        if "error" in run
    ]
    return lines


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key} {inner}" for key, inner in value.items())
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
