"""
Bring a schema up to date, step by step.

Steps are `migrations/NNNN_name.sql`, forward only. Each runs in a transaction of its
own, under an advisory lock and a short `lock_timeout`, and is recorded in
`schema_version` with its checksum in the same transaction. So a runner that is killed
leaves either a whole step or nothing, and twenty that start at once take turns.

A step whose first line is `-- breaking` can't be worked with by older code: older code
that finds such a step refuses to start.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from importlib.resources import files
from typing import Any

import asyncpg
import msgspec

from fencepost.errors import DatabaseUnavailable, FencepostError, PrivilegeMissing, SchemaMismatch
from fencepost.store import pooling
from fencepost.store.database import Database
from fencepost.store.failures import first_line, reaching, translated
from fencepost.store.statements import qualify, quote_schema

_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
PARTITIONS_AHEAD = 1
"""
How many time partitions are kept ready ahead of need.

Every claim opens each of them, and one gives maintenance its whole width in days to make the next.
"""
_ROUNDS = 20
LOWEST_SERVER = 140000
"""The oldest server that will do, as PostgreSQL counts versions."""
_SESSION = {"statement_timeout": "0", "lock_timeout": "3s", "client_min_messages": "warning"}

_VERSION_TABLE = """
create table if not exists fencepost.schema_version (
    number int primary key,
    name text not null,
    checksum text not null,
    breaking bool not null,
    applied_at timestamptz not null default clock_timestamp()
)
"""


class Step(msgspec.Struct, frozen=True):
    """One migration."""

    number: int
    name: str
    source: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the file as it was published."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def breaking(self) -> bool:
        """Whether older code must not run beside it."""
        return self.source.startswith("-- breaking")


APPLIED = "select number, name, checksum, breaking, applied_at from fencepost.schema_version order by 1"
"""Reads what an `Applied` is made of."""


class Applied(msgspec.Struct, frozen=True):
    """A step as the database recorded it."""

    number: int
    name: str
    checksum: str
    breaking: bool
    applied_at: Any


def steps() -> list[Step]:
    """Every step this version knows, in order."""
    found = []
    for file in files("fencepost.store").joinpath("migrations").iterdir():
        match = _NAME.fullmatch(file.name)
        if match:
            found.append(Step(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    return sorted(found, key=lambda step: step.number)


def script(schema: str) -> str:
    """All steps as one SQL text, for people whose migrations run elsewhere. Needs no connection."""
    parts = [
        f"create schema if not exists {quote_schema(schema)};",
        qualify(_VERSION_TABLE, schema).strip() + ";",
    ]
    for step in steps():
        parts.append("begin;\n{};\n{};\ncommit;".format(*(text.rstrip(";") for text in statements(step, schema))))
    return "\n\n".join(parts) + "\n"


def opening(schema: str) -> list[str]:
    """
    What must come first in a transaction that isn't ours: the lock, the schema, and the table of its steps.

    With `statements` it is all that another migration tool needs. Whoever holds the lock is the only one
    who changes the schema, until the transaction ends.
    """
    return [
        locking(schema),
        # Where it exists, a role that may not create schemas can go on.
        f"do $$ begin if not exists (select from pg_namespace where nspname = '{schema}') then "
        f"create schema {quote_schema(schema)}; end if; end $$",
        qualify(_VERSION_TABLE, schema).strip(),
    ]


def statements(step: Step, schema: str) -> list[str]:
    """What applies *step*, and what records that; the first may hold many statements."""
    return [qualify(step.source, schema).strip(), _recording(step, schema)]


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
    if _missing(known, found):
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
    does, and PrivilegeMissing when the schema is ready but this role may not make partitions.
    """
    done = await migrate(database)
    for attempt in range(_ROUNDS):
        try:
            await database.fetch("ensure_partitions", width_seconds=partition_days * 86400.0, ahead=PARTITIONS_AHEAD)
            break
        except PrivilegeMissing:
            raise
        except DatabaseUnavailable:
            # A table is locked just now. The workers' maintenance tries again every hour; there are days left.
            await asyncio.sleep(0.05 * (attempt + 1))
    return done


def check(known: list[Step], found: list[Applied]) -> None:
    """Raise SchemaMismatch when the database's steps aren't ones this code can work with."""
    by_number = {step.number: step for step in known}
    for step in found:
        ours = by_number.get(step.number)
        if ours is None and step.breaking:
            raise SchemaMismatch(
                f"the database has step {step.number} ({step.name}), which this version of fencepost doesn't know and "
                "can't work beside; upgrade this process"
            )
        if ours is not None and ours.checksum != step.checksum:
            raise SchemaMismatch(
                f"step {step.number} ({step.name}) in the database isn't the one this version ships (its checksum "
                "differs); it was changed after it was applied, so compare the schemas before going on"
            )


async def _connect(database: Database) -> Any:
    with reaching():
        return await database.connect(_SESSION, command_timeout=None)


async def _migrate(database: Database, connection: Any) -> list[Step]:
    schema = database.schema
    done: list[Step] = []
    known = steps()
    async with database.begun(connection, session=_SESSION):
        await _check_server(connection)
        if not _missing(known, await _applied(connection, schema)):
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
            await connection.execute(qualify(_VERSION_TABLE, schema))
            missing = _missing(known, await _applied(connection, schema))
            if not missing:
                return done
            await connection.execute(qualify(missing[0].source, schema))
            await connection.execute(_recording(missing[0], schema))
            done.append(missing[0])


async def _check_server(connection: Any) -> None:
    server = await connection.fetchval("select current_setting('server_version_num')::int")
    if server < LOWEST_SERVER:
        raise SchemaMismatch(f"this PostgreSQL is version {server // 10000}; fencepost needs 14 or newer")


def _missing(known: list[Step], found: list[Applied]) -> list[Step]:
    """What is to be applied. Raises SchemaMismatch."""
    check(known, found)
    present = {step.number for step in found}
    return [step for step in known if step.number not in present]


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
            missing = _missing(steps(), await _applied(connection, schema))
    except asyncpg.InsufficientPrivilegeError:
        return PrivilegeMissing(
            f"the role {role!r} may not use the schema {schema!r} ({said}); run `fencepost grant {role} --to worker` "
            f"as its owner, {owner!r} (or --to reader, or producer: docs/how-to/roles.md)"
        )
    names = ", ".join(f"{step.number} ({step.name})" for step in missing)
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


def locking(schema: str) -> str:
    """The statement that waits until nobody else changes this schema; for a transaction."""
    name = schema.replace("'", "''")
    return f"select pg_advisory_xact_lock(hashtextextended('fencepost migrations {name}', 0))"


def _recording(step: Step, schema: str) -> str:
    return qualify(
        "insert into fencepost.schema_version (number, name, checksum, breaking) "
        f"values ({step.number}, '{step.name}', '{step.checksum}', {str(step.breaking).lower()})",
        schema,
    )
