"""Where a benchmark runs: a database of its own, made before and dropped after."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import msgspec

from fencepost.cli.bench.reaching import settings_of, with_database
from fencepost.embedded import EmbeddedPostgres
from fencepost.errors import InvalidSettings
from fencepost.settings import Settings
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.migrate import applied, prepare
from fencepost.store.queues import Queues
from fencepost.store.statements import quote_schema

CONNECTIONS = 40
"""Of the producer: one for each of its callers, and some."""
PARTITION_DAYS = 3

_INSUFFICIENT_PRIVILEGE = "42501"
_TICKS = os.sysconf("SC_CLK_TCK")


class Level(msgspec.Struct, frozen=True):
    """What a worker process held at one moment; None for what can't be seen."""

    started: int
    """How many handlers had started."""
    memory_megabytes: float | None
    tasks: int
    threads: int | None
    open_files: int | None


class Ground(msgspec.Struct, frozen=True):
    """A fresh schema to measure in, and a producer's way into it."""

    dsn: str
    schema: str
    database: Database
    queues: Queues
    jobs: Jobs
    levels: list[Level] = []
    """Where a measure leaves what it has seen over time."""


@contextmanager
def server(settings: Settings) -> Iterator[str]:
    """The server of DATABASE_URL, or an embedded one in a temporary folder, durable like any other."""
    if settings.database_url is not None:
        yield settings.database_url.reveal()
        return
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder:
        Path(folder).chmod(0o711)
        with EmbeddedPostgres(Path(folder) / "data") as embedded:
            yield embedded.dsn


@asynccontextmanager
async def fresh(url: str, schema: str | None) -> AsyncIterator[Ground]:
    """
    A new database on the server of *url*, dropped afterwards; or *schema* in the database of *url* itself.

    A schema is dropped afterwards too, so one that holds anything is refused: raises InvalidSettings.
    """
    if schema is not None:
        async with _opened(url, schema) as ground:
            try:
                yield ground
            finally:
                await ground.database.execute(f"drop schema {quote_schema(schema)} cascade")
        return
    name = f"fencepost_bench_{uuid4().hex[:8]}"
    admin = Database.of(settings_of(url, "fencepost"), url, connections=1)
    await admin.open()
    try:
        with _needing_rights("a benchmark makes a database of its own; use a role with CREATEDB, or name a --schema"):
            await admin.execute_alone(f"create database {name}")
        try:
            async with _opened(with_database(url, f"/{name}"), "fencepost") as ground:
                yield ground
        finally:
            await admin.execute_alone(f"drop database {name} with (force)")
    finally:
        await admin.close()


@asynccontextmanager
async def _opened(url: str, schema: str) -> AsyncIterator[Ground]:
    database = Database.of(settings_of(url, schema), url, connections=CONNECTIONS)
    await database.open()
    hints = Hints(database)
    queues = Queues(database, hints)
    jobs = Jobs(database, queues, hints)
    try:
        await _refuse_contents(database, jobs)
        with _needing_rights("a benchmark makes its schema; use a role that may create one in this database"):
            await prepare(database, partition_days=PARTITION_DAYS)
        await checkpoint(database)
        yield Ground(url, schema, database, queues, jobs)
    finally:
        await hints.close()
        await database.close()


async def checkpoint(database: Database) -> None:
    """See to it that no checkpoint of what was before falls into what is measured. Only some roles may."""
    with suppress(InvalidSettings), _needing_rights("a checkpoint is not for this role"):
        await database.execute_alone("checkpoint")


async def _refuse_contents(database: Database, jobs: Jobs) -> None:
    found = await database.fetch("schema_contents", schema=database.schema)
    if not found or not found[0]["objects"]:
        return
    holds = "jobs" if await applied(database) and (await jobs.audit())["jobs"] else "tables or other objects"
    raise InvalidSettings(
        f"the schema {database.schema!r} holds {holds}, and a benchmark drops what it ran in; name a new schema"
    )


@contextmanager
def _needing_rights(otherwise: str) -> Iterator[None]:
    """Say *otherwise* where the role lacks a right, as InvalidSettings."""
    try:
        yield
    except Exception as error:
        if _INSUFFICIENT_PRIVILEGE not in (getattr(said, "sqlstate", None) for said in (error, error.__cause__)):
            raise
        raise InvalidSettings(otherwise) from error


async def facts(database: Database) -> dict[str, str]:
    """What of the server decides how fast it is."""
    rows = await database.fetch("server_facts")
    return {row["name"]: row["value"] for row in rows}


async def wal_bytes(database: Database) -> int:
    """How much WAL the server has written so far."""
    return int((await database.fetch("server_progress"))[0]["wal_bytes"])


async def transactions(database: Database) -> int:
    """How many transactions the database has seen so far."""
    return int((await database.fetch("server_progress"))[0]["transactions"])


async def server_cpu(database: Database) -> float | None:
    """CPU seconds of all processes of a server on this machine so far; None where they can't be seen."""
    with suppress(InvalidSettings), _needing_rights("the server's files can't be read"):
        return _cpu_of_all(int((await database.fetch("server_process"))[0]["pid"]))
    return None


def _cpu_of_all(postmaster: int) -> float | None:
    # Another machine's server may share its number with some process here.
    try:
        name = Path(f"/proc/{postmaster}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
    if not name.startswith("postgres"):
        return None
    return sum(_cpu_of(entry, postmaster) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _cpu_of(process: Path, postmaster: int) -> float:
    try:
        fields = (process / "stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    if int(process.name) == postmaster:
        return _own_cpu(process, fields) + (int(fields[13]) + int(fields[14])) / _TICKS
    return _own_cpu(process, fields) if int(fields[1]) == postmaster else 0.0


def _own_cpu(process: Path, fields: list[str]) -> float:
    try:
        # In nanoseconds, where there is such a file; `stat` counts hundredths of a second.
        return int((process / "schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except OSError:
        return (int(fields[11]) + int(fields[12])) / _TICKS
