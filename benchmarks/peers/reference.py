"""What the bare server does in the same run: the yardstick for comparing runs on different days."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
import time
from pathlib import Path

import asyncpg
from server import Cluster

from fencepost.embedded import find_binaries
from fencepost.errors import EmbeddedError

NAME = "reference"
LABELS = {
    "commits_1": "one-row inserts a second, each committed, 1 connection",
    "commits_16": "one-row inserts a second, each committed, 16 connections",
    "rows": "rows a second by `unnest`, 1,000 a statement, 1 connection",
}
_INSERT = """insert into jobs (queue, payload) values ('default', '{"n": 1}')"""
_TABLE = """
create table jobs (
    id bigint generated always as identity primary key,
    queue text not null,
    payload jsonb not null,
    state smallint not null default 0,
    due timestamptz not null default now()
)
"""


async def prepare(cluster: Cluster) -> None:
    """Make the template: one table with one index."""

    async def install(url: str) -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(_TABLE)
        await connection.close()

    await cluster.make_template(NAME, install)


async def measure(cluster: Cluster, binaries: Path | None, seconds: int) -> dict[str, float | None]:
    """One round of every reference figure; None where pgbench isn't here."""
    pgbench = _find_pgbench(binaries)
    figures: dict[str, float | None] = {}
    for clients in (1, 16):
        async with cluster.fresh(NAME) as database:
            rate = await _commits(pgbench, database.url, clients, seconds) if pgbench else None
            figures[f"commits_{clients}"] = rate
    async with cluster.fresh(NAME) as database:
        figures["rows"] = await _rows(database.url, batches=50 * seconds)
    return figures


def _find_pgbench(binaries: Path | None) -> str | None:
    try:
        beside = find_binaries(binaries).folder / "pgbench"
    except EmbeddedError:
        return shutil.which("pgbench")
    return str(beside) if beside.exists() else shutil.which("pgbench")


async def _commits(pgbench: str, url: str, clients: int, seconds: int) -> float | None:
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(_INSERT + ";\n")
        script.flush()
        options = ["-n", "-M", "prepared", "-f", script.name, "-c", str(clients), "-j", str(min(clients, 2))]
        process = await asyncio.create_subprocess_exec(
            pgbench, *options, "-T", str(seconds), url,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        printed, _ = await process.communicate()
    found = re.search(r"tps = ([\d.]+)", printed.decode())
    return float(found[1]) if found else None


async def _rows(url: str, *, batches: int) -> float:
    connection = await asyncpg.connect(url)
    statement = await connection.prepare(
        "insert into jobs (queue, payload) select 'default', payload from unnest($1::jsonb[]) payload"
    )
    payloads = [f'{{"n": {number}}}' for number in range(1000)]
    begin = time.perf_counter()
    for _ in range(batches):
        await statement.fetch(payloads)
    rate = batches * 1000 / (time.perf_counter() - begin)
    await connection.close()
    return rate
