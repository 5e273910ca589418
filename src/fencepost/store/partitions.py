"""Time partitions, made ahead of need by workers and by `fencepost migrate`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from fencepost.errors import DatabaseUnavailable, PrivilegeMissing, SchemaMismatch
from fencepost.store import statements
from fencepost.store.database import Database
from fencepost.store.failures import first_line, prepared, translated, waited_too_long
from fencepost.store.statements import quote_schema

PARTITIONS_AHEAD = 1
"""
How many time partitions are kept ready ahead of need.

Every claim opens each of them, and one gives maintenance its whole width in days to make the next.
"""
HOLD_SECONDS = 5.0
"""
How long making partitions may keep the tables from everybody when nobody has asked for it.

It takes milliseconds, but for what the default partitions hold: that is read, and what belongs to a new range moved.
"""
_ROUNDS = 20


class TooMuchToMove(DatabaseUnavailable):
    """The default partitions hold too much for partitions to be made unasked."""


async def ensure(database: Database, *, partition_days: int, within_seconds: float | None = None) -> int:
    """
    Make the time partitions that will soon be needed; returns for how many ranges.

    Meanwhile nothing else gets on. Gives up after *within_seconds*, or else `HOLD_SECONDS`; 0 is no limit.

    Raises DatabaseUnavailable when a table is locked just now, TooMuchToMove when it took too long, and SchemaMismatch
    when a table that is there under a partition's name can't be one. In each case nothing is made.
    """
    seconds = HOLD_SECONDS if within_seconds is None else within_seconds
    statement = statements.load("ensure_partitions", database.schema)
    values = statement.arguments({"width_seconds": partition_days * 86400.0, "ahead": PARTITIONS_AHEAD})
    try:
        async with _alone(database, seconds) as connection:
            return int(await connection.fetchval(statement.text, *values))
    except DatabaseUnavailable as error:
        if isinstance(error.__cause__, asyncpg.QueryCanceledError):
            raise TooMuchToMove(
                f"partitions can't be made within {seconds:g} s: much in the default partitions has to be moved. "
                "Run `fencepost migrate` when jobs may stand still for as long as it takes"
            ) from error
        raise
    except asyncpg.PostgresError as error:
        raise SchemaMismatch(
            f"partitions can't be made in the schema {database.schema!r}: {first_line(error)}. Look into that table; "
            "then detach it, if it is attached, and rename it or drop it"
        ) from error


@asynccontextmanager
async def _alone(database: Database, seconds: float) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A transaction on a connection of its own, whose statements may take *seconds*."""
    limit = {"statement_timeout": f"{seconds:g}s"}
    with translated(), prepared(database.schema):
        connection = await database.connect(limit, command_timeout=None)
        try:
            async with database.begun(connection, session=limit):
                yield connection
        finally:
            await connection.close()


async def ensure_in_time(database: Database, *, partition_days: int, within_seconds: float | None = None) -> int:
    """Like `ensure`, and tried again for a while when a table is locked."""
    attempt = 1
    while True:
        try:
            return await ensure(database, partition_days=partition_days, within_seconds=within_seconds)
        except (PrivilegeMissing, TooMuchToMove):
            raise
        except DatabaseUnavailable:
            if attempt == _ROUNDS:
                raise
        await asyncio.sleep(0.05 * attempt)
        attempt += 1


async def require(database: Database, *, partition_days: int) -> int | None:
    """
    Like `ensure_in_time`, for as long as it takes; None when a table stays locked and only a later moment lacks its
    partition.

    Raises DatabaseUnavailable, with what to do, when this moment has none.
    """
    try:
        return await ensure_in_time(database, partition_days=partition_days, within_seconds=0)
    except DatabaseUnavailable as error:
        if not waited_too_long(error):
            raise
        [row] = await database.fetch("doctor/partitions_ahead")
        if row["has_now"]:
            return None
        raise DatabaseUnavailable(
            "there is no partition for this moment, and none could be made: another transaction keeps a table locked. "
            f"Jobs go to the default partitions meanwhile. Find out whose it is: {_holders(database.schema)} When it "
            "has ended, run `fencepost migrate` again"
        ) from error


def _holders(schema: str) -> str:
    return (
        "select pid, usename, state, query from pg_stat_activity where pid in (select l.pid from pg_locks l "
        f"join pg_class c on c.oid = l.relation where c.relnamespace = '{quote_schema(schema)}'::regnamespace) "
        "order by xact_start;"
    )
