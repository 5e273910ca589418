"""`fencepost migrate`."""

from __future__ import annotations

import asyncio

import click

from fencepost.app import Fencepost
from fencepost.cli.application import application, settings_with
from fencepost.errors import InvalidSettings
from fencepost.settings import Settings, from_environment
from fencepost.store import migrate as migrations
from fencepost.store import partitions, steps
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from fencepost.store.job_types import JobTypes
from fencepost.store.queues import Queues
from fencepost.worker.maintenance import Declaration


def migrate(app_name: str | None, *, print_only: bool, status: bool, schema: str | None) -> int:
    """Run the command; returns its exit code."""
    settings = from_environment(schema=schema)
    if print_only:
        click.echo(steps.script(settings.schema), nl=False)
        return 0
    app = None if app_name is None else application(app_name, settings)
    if app is not None:
        settings = settings_with(app, settings)
    if settings.database_url is None:
        raise InvalidSettings(
            "DATABASE_URL isn't set; the embedded PostgreSQL is migrated by `fencepost serve` when it starts"
        )
    database = Database.of(settings, settings.database_url.reveal(), connections=2)
    return asyncio.run(_status(database) if status else _apply(database, settings, app))


async def _apply(database: Database, settings: Settings, app: Fencepost | None) -> int:
    await database.open()
    try:
        done = await migrations.migrate(database)
        for step in done:
            click.echo(f"applied {step.number:04} {step.name}", err=True)
        made = await partitions.require(database, partition_days=settings.partition_days)
        if app is not None:
            await Declaration(app.types.values(), JobTypes(database), Queues(database, Hints(database))).declare()
    finally:
        await database.close()
    if made:
        click.echo(f"made partitions for {made} time range{'' if made == 1 else 's'}", err=True)
    if made is None:
        click.echo(
            "the next time range has no partitions yet: another transaction keeps a table locked. Workers try again "
            "each hour",
            err=True,
        )
    elif not done and not made:
        click.echo("nothing to do: the schema is up to date", err=True)
    if app is not None:
        click.echo(f"declared {len(app.types)} job types", err=True)
    return 0


async def _status(database: Database) -> int:
    applied = {step.number: step for step in await migrations.applied(database)}
    known = steps.steps()
    steps.check(known, list(applied.values()))
    for step in known:
        found = applied.get(step.number)
        state = f"applied {found.applied_at:%Y-%m-%dT%H:%M:%SZ}" if found else "missing"
        click.echo(f"{step.number:04} {step.name:30} {state}")
    return 0 if all(step.number in applied for step in known) else 4
