"""What `fencepost jobs` does: lists, and the same action for many jobs."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

import click
import msgspec

from fencepost.cli.output import progress
from fencepost.domain.durations import parse_duration
from fencepost.domain.job import Job, Status
from fencepost.domain.requests import parse_moment
from fencepost.embedded import default_data_dir
from fencepost.embedded.running import find_running
from fencepost.errors import InvalidJob
from fencepost.settings import from_environment
from fencepost.store import migrate as migrations
from fencepost.store.bulk import Action, Bulk, Result, Selection
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from fencepost.store.listing import Listing, check
from fencepost.store.queues import Queues

_PAGE_JOBS = 500
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""What moves the cursor, or turns text around: an error's words may come from anybody."""
_ERROR_CHARACTERS = 60
_LEFT_ALONE = "left alone, since they moved on meanwhile or stayed locked"


def show(*, limit: int, as_json: bool, schema: str | None, ids: tuple[str, ...], **conditions: str | None) -> int:
    """Run `jobs list`; returns its exit code."""
    which = _selection(ids, conditions)
    check(which)
    return asyncio.run(_show(which, limit=limit, as_json=as_json, schema=schema))


def change(
    action: str,
    *,
    yes: bool,
    as_json: bool,
    schema: str | None,
    ids: tuple[str, ...],
    everything: bool,
    spread: str = "0",
    **conditions: str | None,
) -> int:
    """Run `jobs retry`, `cancel` or `delete`; returns its exit code."""
    which = _selection(ids, conditions, everything=everything)
    if not which.has_condition and not everything:
        raise InvalidJob(f"give a condition to {action} only some jobs, or --all to {action} all of them")
    return asyncio.run(
        _change(Action(action), which, yes=yes, as_json=as_json, schema=schema, spread_seconds=_duration(spread))
    )


async def _show(which: Selection, *, limit: int, as_json: bool, schema: str | None) -> int:
    async with _database(schema) as (database, hints):
        queues = Queues(database, hints)
        listing = Listing(database, queues)
        if which.ids is not None:
            found = await listing.named(which, which.ids, payloads=as_json)
            for job in found[:limit]:
                _write(job, as_json=as_json)
            return _told(len(found), more=len(found) > limit)
        shown, before = 0, None
        while shown < limit:
            page = await listing.page(which, limit=min(limit - shown, _PAGE_JOBS), before=before, payloads=as_json)
            for job in page.jobs:
                _write(job, as_json=as_json)
            shown += len(page.jobs)
            before = page.next_before
            if before is None:
                return _told(shown, more=False)
    return _told(shown, more=True)


def _told(found: int, *, more: bool) -> int:
    """Say on stderr what a list can't show: that there is nothing, or more. Returns the exit code."""
    if found == 0:
        click.echo("no job fits", err=True)
    elif more:
        click.echo("there are more; --limit shows them", err=True)
    return 0


async def _change(
    action: Action, which: Selection, *, yes: bool, as_json: bool, schema: str | None, spread_seconds: float
) -> int:
    async with _database(schema) as (database, hints):
        bulk = Bulk(database, Queues(database, hints), hints)
        count = await bulk.count(action, which)
        if not yes and not _agreed(action, count):
            click.echo("nothing was changed", err=True)
            return 1
        with progress(count, action) as advance:
            seen = 0

            async def advanced(result: Result) -> None:
                nonlocal seen
                advance("", result.matched - seen)
                seen = result.matched

            if action is Action.RETRY:
                result = await bulk.retry(which, spread_seconds=spread_seconds, progress=advanced)
            elif action is Action.CANCEL:
                result = await bulk.cancel(which, progress=advanced)
            else:
                result = await bulk.delete(which, progress=advanced)
    if as_json:
        click.echo(msgspec.json.encode({"action": action.value, **msgspec.structs.asdict(result)}))
    else:
        for line in _lines(action, result):
            click.echo(line, err=True)
    return 0


def _lines(action: Action, result: Result) -> list[str]:
    done = {
        Action.RETRY: f"put {result.changed:,} jobs back",
        Action.CANCEL: f"cancelled {result.changed - result.requested:,} jobs",
        Action.DELETE: f"deleted {result.changed:,} jobs",
    }
    lines = [done[action]]
    if result.requested:
        lines.append(f"asked {result.requested:,} running jobs to stop")
    if result.skipped:
        lines.append(f"{result.skipped:,} {_LEFT_ALONE}")
    return lines


def _agreed(action: Action, count: int) -> bool:
    """Whether somebody at a terminal wants it. Raises InvalidJob where nobody can be asked."""
    if not count:
        return True
    if not sys.stdin.isatty():
        raise InvalidJob(f"{count:,} jobs match; add --yes to {action} them")
    return click.confirm(f"{action} {count:,} jobs?", err=True)


def _write(job: Job, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(job))
        return
    due = f" due {job.run_at:%Y-%m-%dT%H:%M:%SZ}" if job.run_at is not None else ""
    tags = f" [{', '.join(job.tags)}]" if job.tags else ""
    error = ""
    if job.last_error and job.status is not Status.COMPLETED:
        error = " " + job.last_error.split("\n", 1)[0][:_ERROR_CHARACTERS]
    line = f"{job.id} {job.status:11} {job.type} {job.queue} {job.attempts}/{job.max_attempts}{due}{tags}{error}"
    click.echo(_CONTROL.sub("\ufffd", line))


@asynccontextmanager
async def _database(schema: str | None) -> AsyncIterator[tuple[Database, Hints]]:
    settings = from_environment(schema=schema)
    if settings.database_url is not None:
        dsn = settings.database_url.reveal()
    else:
        dsn, _ = find_running(settings.data_dir or default_data_dir())
    database = Database.of(settings, dsn, connections=2)
    await migrations.require_current(database)
    await database.open()
    hints = Hints(database)
    try:
        yield database, hints
    finally:
        await hints.close()
        await database.close()


def _selection(ids: tuple[str, ...], conditions: dict[str, str | None], *, everything: bool = False) -> Selection:
    status = conditions["status"]
    return Selection(
        status=None if status is None else Status(status),
        type=conditions["type"],
        queue=conditions["queue"],
        tag=conditions["tag"],
        since=_moment(conditions["since"], "since"),
        until=_moment(conditions["until"], "until"),
        ids=tuple(_id(text) for text in ids) or None,
        everything=everything,
    )


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidJob(f"{text[:60]!a} is no id of a job, such as 0195c2a8-7d2e-7c31-9b0e-7d3b6a1f2c4d") from None


def _moment(text: str | None, name: str) -> datetime | None:
    """A moment as it is written in requests, or how long ago it was."""
    if text is None:
        return None
    try:
        return datetime.now(UTC) - timedelta(seconds=parse_duration(text))
    except ValueError:
        pass
    try:
        return parse_moment(text, field=f"--{name}")
    except InvalidJob as error:
        raise InvalidJob(f"{error.message}; or how long ago, such as 2h", field=f"--{name}") from None


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidJob(str(error), field="--spread") from None
