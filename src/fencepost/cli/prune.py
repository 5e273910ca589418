"""`fencepost prune`."""

from __future__ import annotations

import asyncio
from uuid import UUID

import click

from fencepost.cli.output import progress
from fencepost.errors import InvalidSettings
from fencepost.settings import from_environment
from fencepost.store import migrate as migrations
from fencepost.store.database import Database
from fencepost.store.retention import MOVED_JOBS, Keep, Retention, Span
from fencepost.telemetry.events import Events
from fencepost.worker.pruner import SURVEYED_ROWS, Pruner, Report

UNFINISHED = 6
"""The exit code when something has to wait: trying again later is safe."""


def prune(*, dry_run: bool, schema: str | None) -> int:
    """Run the command; returns its exit code."""
    settings = from_environment(schema=schema)
    if settings.database_url is None:
        raise InvalidSettings(
            "DATABASE_URL isn't set; old jobs of the embedded PostgreSQL are removed by `fencepost serve` while it runs"
        )
    database = Database.of(settings, settings.database_url.reveal(), connections=2)
    return asyncio.run(_prune(database, Keep.of(settings), dry_run=dry_run))


async def _prune(database: Database, keep: Keep, *, dry_run: bool) -> int:
    await migrations.require_current(database)
    await database.open()
    try:
        retention = Retention(database, keep)
        return await (_count(retention) if dry_run else _remove(retention))
    finally:
        await database.close()


async def _remove(retention: Retention) -> int:
    spans, _ = await retention.spans()
    with progress(len(spans), "prune") as advance:
        report = await Pruner(retention, events=Events(), advance=advance, everything=True).run()
    for line in _lines(report):
        click.echo(line, err=True)
    return UNFINISHED if report.left or report.interrupted else 0


def _lines(report: Report) -> list[str]:
    lines = [f"removed {report.jobs:,} jobs and {report.keys:,} idempotency keys"]
    if report.ranges:
        lines.append(
            f"dropped the partitions of {report.ranges:,} time ranges; moved {report.moved:,} jobs out of them"
        )
    if report.left:
        lines.append(
            f"left {report.left:,} time ranges for another time: a transaction keeps a table locked; look for a long "
            "one in pg_stat_activity"
        )
    if report.interrupted:
        lines.append("another process is removing old jobs right now; the rest is left to it")
    return lines


async def _count(retention: Retention) -> int:
    """Say what would go, range by range, on stdout."""
    spans, horizon = await retention.spans()
    total = 0
    with progress(len(spans), "count") as advance:
        for span in spans:
            before = retention.keep.reach(span, horizon)
            if before is not None:
                expired, kept = await _count_in(retention, span, before)
                total += expired
                if expired or span.past:
                    click.echo(f"{_name(span):44} {expired:>13,} to go {kept:>13,} to stay{_how(span, kept)}")
            advance("", 1)
    click.echo(f"{total:,} jobs are past their time; nothing was changed", err=True)
    return 0


async def _count_in(retention: Retention, span: Span, before: UUID) -> tuple[int, int]:
    expired = looked = 0
    after = span.after
    while True:
        step = await retention.count(after=after, before=before, rows=SURVEYED_ROWS)
        if step.last_id is None:
            return expired, looked - expired
        expired += step.jobs
        looked += step.looked
        after = step.last_id


def _name(span: Span) -> str:
    if span.starts_at is None or span.ends_at is None:
        return "outside any time range"
    return f"{span.starts_at:%Y-%m-%dT%H:%MZ} to {span.ends_at:%Y-%m-%dT%H:%MZ}"


def _how(span: Span, kept: int) -> str:
    return ", by dropping its partitions" if span.past and kept <= MOVED_JOBS else ""
