"""
Bring a schema up to date, step by step.

Each step (see steps.py) runs in a transaction of its own, under an advisory lock and a short
`lock_timeout`, and is recorded in `schema_version` with its checksum in the same transaction. So a
runner that is killed leaves either a whole step or nothing, and twenty that start at once take turns.
"""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from fencepost.errors import DatabaseUnavailable, FencepostError, PrivilegeMissing, SchemaMismatch
from fencepost.store import partitions, pooling
from fencepost.store.database import Database
from fencepost.store.failures import first_line, reaching, translated
from fencepost.store.statements import qualify, quote_schema
from fencepost.store.steps import APPLIED, VERSION_TABLE, Applied, Step, check, locking, missing, recording, steps

_ROUNDS = 20
LOWEST_SERVER = 140000
"""The oldest server that will do, as PostgreSQL counts versions."""
_SESSION = {"statement_timeout": "0", "lock_timeout": "3s", "client_min_messages": "warning"}


async def applied(database: Database) -> list[Applied]:
    """The steps the database has; empty when it has no schema of ours. Changes nothing."""
    with pooling.explained(), translated():
        connection = await _connect(database)
        try:
            async with database.begun(connection, session=_SESSION):
                return await _applied(connection, database.schema)
        finally:
            await connection.close()


async def require_current(database: Database) -> None:
    """Raise SchemaMismatch when the database's schema isn't there, lacks a step, or is too new for this code."""
    found = await applied(database)
    known = steps()
    check(known, found)
    if not found:
        raise SchemaMismatch(
            f"there is no schema {database.schema!r} of fencepost's in this database; if SCHEMA and the address are "
            "right, make it with `fencepost migrate`"
        )
    if missing(known, found):
        raise SchemaMismatch(f"the schema {database.schema!r} isn't up to date; run `fencepost migrate` first")


async def migrate(database: Database) -> list[Step]:
    """
    Apply what is missing and return it. Safe to run from any number of processes at once.

    Any role that may read `schema_version` can find that there is nothing to do; it needs
    the owner's rights only to apply a step.

    Raises SchemaMismatch when the database is newer than this code can work with, holds a
    step that isn't the one this code knows, or lacks one that this role may not apply;
    DatabaseUnavailable when a lock it needs isn't to be had.
    """
    for attempt in range(_ROUNDS):
        with pooling.explained(), translated():
            connection = await _connect(database)
            try:
                return await _migrate(database, connection)
            except asyncpg.InsufficientPrivilegeError as error:
                raise await _refused(database, connection, error) from error
            except asyncpg.LockNotAvailableError:
                # Somebody's transaction holds a table; step aside rather than queue every claim behind us.
                await asyncio.sleep(0.1 * (attempt + 1))
            finally:
                await connection.close()
    raise DatabaseUnavailable(
        "the schema could not be brought up to date: another transaction keeps a table locked; "
        "look for a long one in pg_stat_activity and run `fencepost migrate` again"
    )


async def prepare(database: Database, *, partition_days: int) -> list[Step]:
    """
    Make *database* ready for use: `migrate`, and partitions for the coming days. Returns the new steps.

    Rows that arrive before their partition is there are kept all the same, in the default one. Raises what `migrate`
    does, SchemaMismatch too when a table is in a partition's place, and PrivilegeMissing when the schema is ready but
    this role may not make partitions.
    """
    done = await migrate(database)
    try:
        await partitions.ensure_in_time(database, partition_days=partition_days)
    except PrivilegeMissing:
        raise
    except DatabaseUnavailable:
        # A table is locked. The workers' maintenance tries again every hour; there are days left.
        pass
    return done


async def _connect(database: Database) -> Any:
    with reaching():
        return await database.connect(_SESSION, command_timeout=None)


async def _migrate(database: Database, connection: Any) -> list[Step]:
    schema = database.schema
    done: list[Step] = []
    known = steps()
    async with database.begun(connection, session=_SESSION):
        await _check_server(connection)
        if not missing(known, await _applied(connection, schema)):
            # Without so much as asking for the lock, or for the right to make anything.
            return []
    while True:
        # The lock belongs to the transaction, so a pooler can't strand it on another session.
        async with database.begun(connection, session=_SESSION):
            await connection.execute("set local lock_timeout = 0")
            await connection.execute(locking(schema))
            await connection.execute("set local lock_timeout = '3s'")
            if not await connection.fetchval("select exists (select from pg_namespace where nspname = $1)", schema):
                await connection.execute(f"create schema {quote_schema(schema)}")
            await connection.execute(qualify(VERSION_TABLE, schema))
            left = missing(known, await _applied(connection, schema))
            if not left:
                return done
            await connection.execute(qualify(left[0].source, schema))
            await connection.execute(recording(left[0], schema))
            done.append(left[0])


async def _check_server(connection: Any) -> None:
    server = await connection.fetchval("select current_setting('server_version_num')::int")
    if server < LOWEST_SERVER:
        raise SchemaMismatch(f"this PostgreSQL is version {server // 10000}; fencepost needs 14 or newer")


async def _refused(database: Database, connection: Any, error: BaseException) -> FencepostError:
    """What it means that this role may not read the steps, or not apply one."""
    schema, said = database.schema, first_line(error)
    try:
        async with database.begun(connection, session=_SESSION):
            role, owner = await connection.fetchrow(
                "select current_user, (select pg_get_userbyid(n.nspowner) from pg_namespace n where n.nspname = $1)",
                schema,
            )
            if owner is None:
                return SchemaMismatch(
                    f"there is no schema {schema!r} in this database, and the role {role!r} may not make one ({said}); "
                    "run `fencepost migrate` as a role that may"
                )
            left = missing(steps(), await _applied(connection, schema))
    except asyncpg.InsufficientPrivilegeError:
        return PrivilegeMissing(
            f"the role {role!r} may not use the schema {schema!r} ({said}); run `fencepost grant {role} --to worker` "
            f"as its owner, {owner!r} (or --to reader, or producer: docs/how-to/roles.md)"
        )
    names = ", ".join(f"{step.number} ({step.name})" for step in left)
    return SchemaMismatch(
        f"the schema {schema!r} lacks step {names}, and the role {role!r} may not change it; run `fencepost migrate` "
        f"as its owner, {owner!r}"
    )


async def _applied(connection: Any, schema: str) -> list[Applied]:
    present = await connection.fetchval(
        "select exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname = $1 and c.relname = 'schema_version')",
        schema,
    )
    if not present:
        return []
    rows = await connection.fetch(qualify(APPLIED, schema))
    return [Applied(**dict(row)) for row in rows]
