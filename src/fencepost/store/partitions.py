"""Time partitions, made ahead of need by workers and by `fencepost migrate`."""

from __future__ import annotations

import asyncio

import asyncpg

from fencepost.errors import DatabaseUnavailable, PrivilegeMissing, SchemaMismatch
from fencepost.store.database import Database
from fencepost.store.failures import first_line, waited_too_long
from fencepost.store.statements import quote_schema

PARTITIONS_AHEAD = 1
"""
How many time partitions are kept ready ahead of need.

Every claim opens each of them, and one gives maintenance its whole width in days to make the next.
"""
_ROUNDS = 20


async def ensure(database: Database, *, partition_days: int) -> int:
    """
    Make the time partitions that will soon be needed; returns for how many ranges.

    Raises DatabaseUnavailable when a table is locked just now, and SchemaMismatch when one that is there under a
    partition's name can't be one.
    """
    try:
        rows = await database.fetch("ensure_partitions", width_seconds=partition_days * 86400.0, ahead=PARTITIONS_AHEAD)
    except asyncpg.PostgresError as error:
        raise SchemaMismatch(
            f"partitions can't be made in the schema {database.schema!r}: {first_line(error)}. Look into that table; "
            "then detach it, if it is attached, and rename it or drop it"
        ) from error
    return int(rows[0]["made"])


async def ensure_in_time(database: Database, *, partition_days: int) -> int:
    """Like `ensure`, and tried again for a while when a table is locked."""
    attempt = 1
    while True:
        try:
            return await ensure(database, partition_days=partition_days)
        except PrivilegeMissing:
            raise
        except DatabaseUnavailable:
            if attempt == _ROUNDS:
                raise
        await asyncio.sleep(0.05 * attempt)
        attempt += 1


async def require(database: Database, *, partition_days: int) -> int | None:
    """
    Like `ensure_in_time`, but None when a table stays locked and only a later moment lacks its partition.

    Raises DatabaseUnavailable, with what to do, when this moment has none.
    """
    try:
        return await ensure_in_time(database, partition_days=partition_days)
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
