"""`fencepost grant`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import click

from fencepost.errors import InvalidSettings
from fencepost.settings import from_environment
from fencepost.store import grants
from fencepost.store.database import Database
from fencepost.store.grants import Purpose


def grant(role: str, *, purposes: Collection[str], revoke: bool, print_only: bool, schema: str | None) -> int:
    """Run the command; returns its exit code."""
    if bool(purposes) == revoke:
        raise InvalidSettings("say what the role is for, with --to producer, worker or reader; or --revoke, alone")
    wanted = {Purpose(purpose) for purpose in purposes}
    settings = from_environment(schema=schema)
    if print_only:
        click.echo("begin;")
        for statement in grants.statements(role, wanted, settings.schema):
            click.echo(f"{statement};")
        click.echo("commit;")
        return 0
    if settings.database_url is None:
        raise InvalidSettings("DATABASE_URL isn't set; set it to the database, as the owner of the schema")
    database = Database.of(settings, settings.database_url.reveal(), connections=2)
    more = asyncio.run(_apply(database, role, wanted))
    what = "nothing" if revoke else " and ".join(sorted(wanted))
    click.echo(f"{role} is set to: {what}, in the schema {settings.schema}", err=True)
    if more:
        words = ", ".join(more[:5]) + (f" and {len(more) - 5} more" if len(more) > 5 else "")
        click.echo(f"it may do more, through PUBLIC, another role or default privileges: {words}", err=True)
    return 0


async def _apply(database: Database, role: str, purposes: Collection[Purpose]) -> list[str]:
    await database.open()
    try:
        return await grants.apply(database, role, purposes)
    finally:
        await database.close()
