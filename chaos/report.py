"""What a run has found, for people and for programs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from chaos.checks import Result
from chaos.measures import Measures, Spread
from chaos.plan import Schedule


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one run."""

    fencepost: str
    python: str
    postgresql: str
    seed: int
    preset: str
    broken: str | None
    replay: str
    """The command that does it again."""
    seconds: float
    """How long all of it took."""
    lease_seconds: float
    recovery_seconds: float
    schedule: Schedule
    faults: dict[str, int]
    """Carried out, by kind."""
    not_carried_out: dict[str, str]
    """Kinds of which one could not be, and why."""
    killed_workers: int
    ends: dict[str, int]
    """How processes of the fleet ended: role and exit code."""
    given_up: list[str]
    """Starts that a supervisor gave up, since a fault had killed one of its processes before it was ready."""
    acknowledged: int
    jobs_by_script: dict[str, int]
    doors: dict[str, int]
    repeats: int
    statuses: dict[str, int]
    attempts: int
    """Attempts in the ledger."""
    too_late: int
    """Attempts that had succeeded, and lost their lease before that was written: nothing of them may be."""
    measures: Measures
    checks: list[Result]

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return all(check.ok for check in self.checks)


def write_report(report: Report, path: Path) -> None:
    """Save it as JSON; each check says whether it is ok."""
    built = msgspec.to_builtins(report)
    built["ok"] = report.ok
    for check, result in zip(built["checks"], report.checks, strict=True):
        check["ok"] = result.ok
    path.write_bytes(msgspec.json.format(msgspec.json.encode(built), indent=1))


def as_text(report: Report) -> str:
    """The same for people."""
    lines = [
        f"fencepost {report.fencepost}, Python {report.python}, PostgreSQL {report.postgresql}"
        + (f", broken on purpose: {report.broken}" if report.broken else ""),
        f"seed {report.seed}, {report.preset}, {report.seconds:.0f} s",
        "",
        f"{sum(report.statuses.values()):,} jobs of {report.acknowledged:,} acknowledged enqueues,"
        f" {report.attempts:,} attempts, {report.repeats:,} requests again",
        f"  ended: {_counts(report.statuses)}",
        f"  scripts: {_counts(report.jobs_by_script)}",
        f"  {report.too_late:,} attempts had succeeded when their lease was lost",
        f"  doors: {_counts(report.doors)}",
        f"{sum(report.faults.values()):,} faults, {report.killed_workers:,} worker processes killed",
        f"  {_counts(report.faults)}",
        f"  ends of processes: {_counts(report.ends)}",
        *(f"  start given up, as it should be: {count:,} × {told}" for told, count in Counter(report.given_up).items()),
        *(f"  not carried out: {kind}: {why}" for kind, why in report.not_carried_out.items()),
        "",
        *_spreads("job of a killed worker is given back", report.measures, "given_back"),
        *_spreads("and runs again", report.measures, "after_kill"),
        *_spreads("first job after PostgreSQL is back", report.measures, "after_restart"),
        "",
    ]
    for check in report.checks:
        lines.append(f"{'ok    ' if check.ok else 'FAILED'} {check.name}: {check.said} ({check.looked_at:,} looked at)")
        if not check.ok:
            lines.append(f"       {check.offences:,} offences:")
            lines += [f"       {offender}" for offender in check.offenders]
    lines += ["", "ok" if report.ok else f"FAILED; again with: {report.replay}"]
    return "\n".join(lines)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in Counter(counts).most_common()) or "none"


def _spreads(name: str, measures: Measures, field: str) -> list[str]:
    return [
        _spread(name, getattr(measures, field)),
        _spread("  amid other faults", getattr(measures, f"{field}_amid_faults")),
    ]


def _spread(name: str, spread: Spread) -> str:
    if not spread.count:
        return f"{name}: not measured"
    return (
        f"{name}: median {spread.median:.2f} s, p95 {spread.p95:.2f}, p99 {spread.p99:.2f}, max {spread.max:.2f}"
        f" (of {spread.count:,}; {spread.over_bar:,} over {spread.bar:g} s)"
    )
