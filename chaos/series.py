"""`python -m chaos.series`: the long campaign, one run after another, and a table of what it came to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from chaos.measures import Measures
from chaos.names import Names
from chaos.report import Report

CAUGHT_SECONDS = 300.0
"""How long it may take until a build that is broken on purpose is found out."""
TWO_OWNERS = ("leases_apart", "tokens_once")


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of it."""

    name: str
    seed: int
    minutes: float
    rate: float
    preset: str = "mixed"
    broken: str | None = None

    def command(self, report: Path) -> list[str]:
        """What runs it; *report* is where its findings go."""
        arguments = ["--preset", self.preset, "--seed", str(self.seed), "--minutes", f"{self.minutes:g}"]
        arguments += ["--rate", f"{self.rate:g}", "--report", str(report)]
        return ["-m", "chaos", *arguments, *(["--broken", self.broken] if self.broken is not None else [])]


RUNS = (
    Run(name="kills", preset="kills", seed=12, minutes=9, rate=150),
    Run(name="failovers", preset="failovers", seed=13, minutes=9.5, rate=150),
    Run(name="postgres", preset="postgres", seed=14, minutes=10.5, rate=150),
    Run(name="outages", preset="outages", seed=11, minutes=15, rate=200),
    Run(name="outages-2", preset="outages", seed=16, minutes=4.5, rate=200),
    Run(name="mixed", seed=15, minutes=5, rate=50),
    Run(name="recovery", preset="recovery", seed=2, minutes=2, rate=50),
    Run(name="fence", broken="fence", seed=7, minutes=2, rate=50),
    Run(name="skip-locked", broken="skip-locked", seed=3, minutes=1.5, rate=50),
    Run(name="transaction", broken="transaction", seed=3, minutes=1.2, rate=50),
)
"""Together 1,000 kills of workers, 100 of PostgreSQL, 50 failovers, 20 outages, 200,000 jobs; then what is broken."""


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--only",
    type=Names(run.name for run in RUNS),
    metavar="RUN,RUN",
    help="These of its runs alone: " + ", ".join(run.name for run in RUNS) + ".",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".chaos/series"),
    show_default=True,
    help="Where each run leaves its report; the table is of those that are there.",
)
@click.option("--table", "just_table", is_flag=True, help="Run nothing; print the table.")
def main(only: tuple[str, ...] | None, folder: Path, just_table: bool) -> None:
    """
    Run the long fault campaign, about an hour, and print what it came to as a Markdown table.

    Ends with 0 if every check held and every broken build was caught.
    """
    runs = [run for run in RUNS if only is None or run.name in only]
    folder.mkdir(parents=True, exist_ok=True)
    if not just_table:
        for number, run in enumerate(runs, 1):
            click.echo(f"{run.name}, {number} of {len(runs)}: about {run.minutes:g} minutes", err=True)
            report = folder / f"{run.name}.json"
            # What a run before this one found says nothing about this one.
            report.unlink(missing_ok=True)
            with (folder / f"{run.name}.txt").open("wb") as output:
                subprocess.run([sys.executable, *run.command(report)], stdout=output, check=False)
    missing = [run.name for run in runs if not (folder / f"{run.name}.json").exists()]
    reports = {run.name: read(folder / f"{run.name}.json") for run in runs if run.name not in missing}
    click.echo(as_table(reports))
    for name in missing:
        click.echo(f"{name} left no report; {folder / name}.txt says why", err=True)
    sys.exit(0 if not missing and all(map(is_as_it_should_be, reports.values())) else 1)


def read(path: Path) -> Report:
    """A report that `python -m chaos --report` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=Report)


def is_as_it_should_be(report: Report) -> bool:
    """Whether all checks held; of a broken build, whether it was caught, and in time."""
    if report.broken is None:
        return report.ok
    return not report.ok and report.seconds <= CAUGHT_SECONDS


def as_table(reports: dict[str, Report]) -> str:
    """What the runs came to, as Markdown: sound builds side by side and in all, how fast they heal, broken builds."""
    sound = {name: report for name, report in reports.items() if report.broken is None}
    timed = [report.measures for report in sound.values() if report.preset == "recovery"]
    broken = [report for report in reports.values() if report.broken is not None]
    parts = [
        _side_by_side(sound) if sound else [],
        _recovery(timed) if timed else [],
        _caught(broken) if broken else [],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _side_by_side(reports: dict[str, Report]) -> list[str]:
    each = list(reports.values())
    lines = [
        _row("", *reports, "in all"),
        _rule(len(each) + 1),
        _row("seed", *(str(report.seed) for report in each), ""),
    ]
    for title, count in _COUNTS.items():
        numbers = [count(report) for report in each]
        lines.append(_row(title, *(f"{number:,}" for number in [*numbers, sum(numbers)])))
    held = ["all" if report.ok else "not " + ", ".join(_failed(report)) for report in each]
    return [*lines, _row("checks that held", *held, "all" if all(report.ok for report in each) else "not all")]


def _recovery(all_measures: list[Measures]) -> list[str]:
    lines = [_row("each by itself", "median", "longest", "times", "allowed"), _rule(4)]
    for measures in all_measures:
        for title, spread in (
            ("from a worker's kill until its job is given back", measures.given_back),
            ("until that job runs again", measures.after_kill),
            ("from PostgreSQL's return to the first job", measures.after_restart),
        ):
            figures = f"{spread.median:.2f} s", f"{spread.max:.2f} s", str(spread.count), f"{spread.bar:g} s"
            lines.append(_row(title, *figures))
    return lines


def _caught(reports: list[Report]) -> list[str]:
    lines = [_row("broken on purpose", "caught by", "after"), _rule(2)]
    for report in reports:
        by = ", ".join(f"`{name}`" for name in _failed(report)) or "nothing"
        lines.append(_row(f"`{report.broken}`", by, f"{report.seconds:.0f} s"))
    return lines


def _count(*kinds: str) -> Callable[[Report], int]:
    return lambda report: sum(report.faults.get(kind, 0) for kind in kinds)


def _offences(*checks: str) -> Callable[[Report], int]:
    return lambda report: sum(check.offences for check in report.checks if check.name in checks)


_COUNTS: dict[str, Callable[[Report], int]] = {
    "seconds": lambda report: round(report.seconds),
    "jobs": lambda report: sum(report.statuses.values()),
    "enqueues acknowledged": lambda report: report.acknowledged,
    "requests again": lambda report: report.repeats,
    "attempts": lambda report: report.attempts,
    "faults": lambda report: sum(report.faults.values()),
    "worker processes killed": lambda report: report.killed_workers,
    "PostgreSQL killed": _count("kill_postmaster"),
    "failovers": _count("failover"),
    "outages": _count("outage"),
    "attempts that succeeded after their lease was lost": lambda report: report.too_late,
    "jobs lost": _offences("nothing_lost"),
    "two owners of a job, or of a token": _offences(*TWO_OWNERS),
    "stale writes": _offences("no_stale_write"),
}


def _failed(report: Report) -> list[str]:
    return [check.name for check in report.checks if not check.ok]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(numbers: int) -> str:
    return _row("---", *["---:"] * numbers)


if __name__ == "__main__":
    main()
