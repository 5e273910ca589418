"""`fencepost migrate`."""

from __future__ import annotations

import asyncio

import click

from fencepost.errors import InvalidSettings
from fencepost.settings import from_environment
from fencepost.store import migrate as migrations
from fencepost.store.database import Database


def migrate(*, print_only: bool, status: bool, schema: str | None) -> int:
    """Run the command; returns its exit code."""
    settings = from_environment(schema=schema)
    if print_only:
        click.echo(migrations.script(settings.schema), nl=False)
        return 0
    if settings.database_url is None:
        raise InvalidSettings(
            "DATABASE_URL isn't set; the embedded PostgreSQL is migrated by `fencepost serve` when it starts"
        )
    database = Database(settings.database_url.reveal(), schema=settings.schema, connections=2)
    return asyncio.run(_status(database) if status else _apply(database, settings.partition_days))


async def _apply(database: Database, partition_days: int) -> int:
    await database.open()
    try:
        done = await migrations.prepare(database, partition_days=partition_days)
    finally:
        await database.close()
    for step in done:
        click.echo(f"applied {step.number:04} {step.name}", err=True)
    if not done:
        click.echo("nothing to do: the schema is up to date", err=True)
    return 0


async def _status(database: Database) -> int:
    applied = {step.number: step for step in await migrations.applied(database)}
    known = migrations.steps()
    migrations.check(known, list(applied.values()))
    for step in known:
        found = applied.get(step.number)
        state = f"applied {found.applied_at:%Y-%m-%dT%H:%M:%SZ}" if found else "missing"
        click.echo(f"{step.number:04} {step.name:30} {state}")
    return 0 if all(step.number in applied for step in known) else 4
