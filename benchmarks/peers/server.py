"""
The one PostgreSQL of a run, and the databases on it.

A peer's schema is installed once, into a template. Every measurement gets a clone of
it and a checkpoint before it begins, so none of them pays for what another one wrote.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from fencepost.embedded import EmbeddedPostgres

PREFIX = "fencepost_bench_"
"""How the databases of a run are named; others on a given server are left alone."""
REPORTED = (
    "server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_level", "shared_buffers",
    "max_wal_size", "max_connections", "autovacuum", "jit",
)  # fmt: skip


@contextmanager
def server(data: Path, binaries: Path | None) -> Iterator[str]:
    """The URL of BENCH_DATABASE_URL's server, or of an embedded one of our own with a new data folder."""
    given = os.environ.get("BENCH_DATABASE_URL")
    if given:
        yield given
        return
    shutil.rmtree(data, ignore_errors=True)
    try:
        with EmbeddedPostgres(data, binaries=binaries, options={"max_connections": "100"}) as embedded:
            yield embedded.dsn
    finally:
        shutil.rmtree(data, ignore_errors=True)


def with_database(url: str, name: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(url)._replace(path="/" + name))


class Cluster:
    """The server while measurements run on it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._postmaster: int | None = None

    async def settings(self) -> dict[str, str]:
        """What the server says about itself; also finds its process, for its CPU time."""
        async with self._admin() as admin:
            self._postmaster = await _postmaster(admin)
            rows = await admin.fetch("select name, setting, unit from pg_settings where name = any($1)", REPORTED)
        found = {row["name"]: row["setting"] + (f" × {row['unit']}" if row["unit"] else "") for row in rows}
        return {name: found[name] for name in REPORTED if name in found}

    async def make_template(self, name: str, install: Callable[[str], Awaitable[object]]) -> None:
        """Make the template of a peer with what *install* puts into an empty database."""
        template = f"{PREFIX}{name}_template"
        async with self._admin() as admin:
            await admin.execute(f'drop database if exists "{template}" with (force)')
            await admin.execute(f'create database "{template}" template template0')
            await install(with_database(self._url, template))

    @asynccontextmanager
    async def fresh(self, name: str) -> AsyncIterator[Database]:
        """A clone of a peer's template, right after a checkpoint. It is dropped at the end."""
        clone, template = f"{PREFIX}{name}", f"{PREFIX}{name}_template"
        async with self._admin() as admin:
            await admin.execute(f'drop database if exists "{clone}" with (force)')
            await _clone(admin, clone, template)
            await admin.execute("checkpoint")
            url = with_database(self._url, clone)
            connection = await asyncpg.connect(url)
            try:
                yield Database(url, connection, self._postmaster)
            finally:
                connection.terminate()
                await admin.execute(f'drop database if exists "{clone}" with (force)')

    async def remove(self, names: list[str]) -> None:
        """Drop the templates."""
        async with self._admin() as admin:
            for name in names:
                await admin.execute(f'drop database if exists "{PREFIX}{name}_template" with (force)')

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(self._url)
        try:
            yield connection
        finally:
            await connection.close()


class Database:
    """One fresh database, watched from outside."""

    def __init__(self, url: str, connection: Any, postmaster: int | None) -> None:
        self.url = url
        self._connection = connection
        self._postmaster = postmaster

    async def execute(self, sql: str) -> None:
        """Run SQL of the benchmark's own."""
        await self._connection.execute(sql)

    async def count(self, sql: str) -> int:
        """The one number that *sql* answers."""
        return int(await self._connection.fetchval(sql) or 0)

    async def wal(self) -> int:
        """Bytes of WAL that the server has written so far."""
        return await self.count("select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint")

    def cpu_seconds(self) -> float | None:
        """CPU time of all the server's processes so far; None when they can't be seen from here."""
        return None if self._postmaster is None else tree_cpu_seconds(self._postmaster)

    @asynccontextmanager
    async def pinned(self) -> AsyncIterator[None]:
        """Hold a snapshot open, as a long report or a forgotten transaction does."""
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute("begin isolation level repeatable read")
            await connection.fetchval("select count(*) from pg_class")
            yield
        finally:
            connection.terminate()


async def _clone(admin: Any, clone: str, template: str) -> None:
    """Clone once the template's last connections are gone, which may be a moment after their program."""
    for _ in range(50):
        with suppress(asyncpg.ObjectInUseError):
            await admin.execute(f'create database "{clone}" template "{template}"')
            return
        await asyncio.sleep(0.1)
    await admin.execute(f'create database "{clone}" template "{template}"')


async def _postmaster(admin: Any) -> int | None:
    """The server's first process, when it runs on this machine and we may ask."""
    try:
        text = await admin.fetchval("select pg_read_file('postmaster.pid')")
        pid = int(text.split("\n")[0])
        name = Path(f"/proc/{pid}/comm").read_text()  # noqa: ASYNC240 - a moment, before anything is measured
    except (asyncpg.PostgresError, OSError, ValueError):
        return None
    return pid if name.startswith("postgres") else None


def tree_cpu_seconds(root: int) -> float:
    """CPU time of a process, of its living children, and of those it has waited for."""
    total = 0.0
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with suppress(OSError):
            fields = Path("/proc", entry, "stat").read_text().rsplit(")", 1)[1].split()
            own, reaped = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
            if int(entry) == root:
                total += own + reaped
            elif int(fields[1]) == root:
                total += own
    return total / os.sysconf("SC_CLK_TCK")
