"""
A test database's own clock: it can be stopped, and put forward.

Due times, leases and everything else that has a time get it from the database, so that is
where time is changed: for every worker and every connection to that database at once, also
for jobs that are stored in a transaction of another driver. How is told in
`sql/install_clock.sql`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache
from importlib.resources import files

from fencepost.store.database import Database
from fencepost.store.sessions import look_first
from fencepost.store.statements import qualify


async def install(database: Database) -> None:
    """Give *database* such a clock. Sessions follow it if they are opened after `obey`. Safe to call again."""
    await database.execute(qualify(_read("install_clock"), database.schema))


def obey() -> None:
    """Have every session that this process opens from now on follow the clock of its database, if that has one."""
    look_first("fencepost_clock")


async def freeze(database: Database, at: datetime | None) -> None:
    """Stop the clock, at a moment or where it is."""
    await _run(database, "freeze", at)


async def travel(database: Database, by: timedelta) -> None:
    """Put the clock forward."""
    await _run(database, "travel", by)


async def unfreeze(database: Database) -> None:
    """Let it be PostgreSQL's again."""
    await _run(database, "unfreeze")


async def _run(database: Database, name: str, *arguments: object) -> None:
    async with database.connection() as connection:
        await connection.execute(_read(name), *arguments)


@cache
def _read(name: str) -> str:
    return files("fencepost.testing").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
