"""`fencepost bench`: every measure once at a tiny size, what it refuses, and that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import msgspec
import pytest

from fencepost.cli.bench import ground
from fencepost.domain.ids import new_id
from fencepost.domain.job import NewJob
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.migrate import prepare
from fencepost.store.queues import Queues

TINY = ["--jobs", "60", "--slots", "8", "--seconds", "1", "--rate", "100", "--repeat", "1"]

DRAINED = {
    "jobs_per_second",
    "first_jobs_per_second",
    "last_jobs_per_second",
    "wal_bytes_per_job",
    "worker_cpu_seconds",
    "server_cpu_seconds",
    "peak_memory_megabytes",
}
WAITED = {"p50_ms", "p95_ms", "p99_ms"}
MIXED = {
    "jobs_per_second",
    "left_at_the_end",
    *(part + name for part in ("", "first_third_", "last_third_") for name in WAITED),
}
READ = {
    "get_p99_ms",
    *(
        f"list_{which}_p99_ms"
        for which in (
            *("all", "pending", "processing", "completed", "failed", "dead_letter", "cancelled"),
            *("queue", "type"),
        )
    ),
}
LEVELS = ("memory_megabytes", "tasks", "threads", "open_files")
FIGURES = {
    "insert-one": {"commits_per_second"},
    "enqueue-one": {"jobs_per_second"},
    "enqueue-concurrent": {"jobs_per_second"},
    "enqueue-bulk": {"jobs_per_second", "wal_bytes_per_job"},
    "drain": DRAINED,
    "drain-pinned": DRAINED,
    "serial": {*DRAINED, "insert_commits_per_second", "ratio_to_insert"},
    "latency": WAITED,
    "mixed": MIXED,
    "mixed-pinned": MIXED,
    "idle": {"worker_core_percent", "server_core_percent", "transactions_per_second"},
    "http": {
        *WAITED,
        "requests_per_second",
        "api_cpu_microseconds",
        "null_store_requests_per_second",
        "null_store_api_cpu_microseconds",
        "ratio_to_null_store",
    },
    "crowded": {
        *("claim_p50_ms", "claim_p99_ms", "empty_claim_p50_ms", "empty_claim_p99_ms", "ratio_to_empty"),
        *READ,
    },
    "memory": {
        *("half_way_memory_megabytes", "memory_megabytes", "ratio_to_half_way", "peak_memory_megabytes"),
        *(f"{half}_half_{level}" for half in ("first", "second") for level in LEVELS),
    },
}
MAY_BE_NOTHING = {
    "left_at_the_end",
    "worker_cpu_seconds",
    "server_cpu_seconds",
    "worker_core_percent",
    "server_core_percent",
    "transactions_per_second",
}
MAY_BE_UNKNOWN = {
    "server_cpu_seconds",
    "server_core_percent",
    "worker_core_percent",
    "half_way_memory_megabytes",
    "memory_megabytes",
    "ratio_to_half_way",
    *(f"{half}_half_{level}" for half in ("first", "second") for level in LEVELS),
}


def bench(*words: str, url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fencepost", "bench", *words],
        env=environment(url),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def environment(url: str) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "DATABASE_URL": url}


def databases(url: str) -> set[str]:
    return {name for (name,) in rows(url, "select datname from pg_database where datname like 'fencepost_bench%'")}


def rows(url: str, sql: str) -> list[Any]:
    async def fetch() -> list[Any]:
        connection = await asyncpg.connect(url)
        try:
            found: list[Any] = await connection.fetch(sql)
            return found
        finally:
            await connection.close()

    return asyncio.run(fetch())


@pytest.fixture
def nothing_left(server_url: str) -> Iterator[None]:
    """The test leaves no database behind."""
    before = databases(server_url)
    yield
    assert databases(server_url) <= before


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.slow
def test_every_measure_has_its_figures(server_url: str) -> None:
    ended = bench(*TINY, "--failures", "0.05", "--json", url=server_url)
    assert ended.returncode == 0, ended.stderr
    said = msgspec.json.decode(ended.stdout)
    assert set(said) == {"fencepost", "python", "machine", "server", "plan", "repeats", "medians", "runs", "levels"}
    assert {"server_version", "fsync", "synchronous_commit"} <= set(said["server"])
    assert said["plan"] == {
        "jobs": 60,
        "slots": 8,
        "processes": 1,
        "payload": '{"n": 1}',
        "log_lines": False,
        "seconds": 1.0,
        "rate": 100.0,
        "failures": 0.05,
    }
    assert {kind: set(figures) for kind, figures in said["medians"].items()} == FIGURES
    for kind, figures in said["medians"].items():
        assert said["runs"][kind] == [figures]
        for name, value in figures.items():
            if value is None:
                assert name in MAY_BE_UNKNOWN, f"{kind}: {name}"
            else:
                assert value > 0 or (value == 0 and name in MAY_BE_NOTHING), f"{kind}: {name} is {value}"

    ((*looks, last),) = said["levels"]["memory"]
    # 600 jobs, of which 30 ran twice.
    assert last["started"] == 630
    assert [look["started"] for look in looks] == sorted(look["started"] for look in looks)
    assert last["tasks"] > 5
    if Path("/proc/self/fd").exists():
        assert last["threads"] >= 1
        assert last["open_files"] > 5


def test_every_figure_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/benchmarks.md").read_text(encoding="utf-8")
    for name in set().union(*FIGURES.values()):
        if not name.startswith(("first_third_", "last_third_", "list_", "first_half_", "second_half_")):
            assert f"`{name}`" in page, f"{name} is not in the benchmarks page"


@pytest.mark.slow
def test_a_schema_of_its_own_is_used_and_dropped(empty_url: str) -> None:
    ended = bench(
        *("drain", "insert-one", "--jobs", "60", "--processes", "2", "--log-lines", "--repeat", "2"),
        *("--payload-bytes", "10", "--schema", 'Bench "x"'),
        url=empty_url,
    )
    assert ended.returncode == 0, ended.stderr
    assert "drain: No-op jobs" in ended.stdout
    assert "medians of 2" in ended.stdout
    assert "jobs per second" in ended.stdout
    assert "commits per second" in ended.stdout
    assert rows(empty_url, "select from pg_namespace where nspname like 'Bench%' or nspname = 'fencepost'") == []
    assert rows(empty_url, "select from pg_tables where schemaname = 'public'") == []


async def test_a_schema_with_jobs_is_refused_and_kept(empty_url: str) -> None:
    database = Database(empty_url, schema="mine")
    await database.open()
    hints = Hints(database)
    jobs = Jobs(database, Queues(database, hints), hints)
    await prepare(database, partition_days=3)
    await jobs.enqueue([NewJob(id=new_id(), type="noop", max_attempts=5, payload=b"1")])
    ended = await asyncio.to_thread(bench, "drain", *TINY, "--schema", "mine", url=empty_url)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "holds jobs" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert (await jobs.audit())["pending"] == 1
    await hints.close()
    await database.close()


def test_a_schema_with_anything_else_is_refused_and_kept(empty_url: str) -> None:
    rows(empty_url, "create table public.precious ()")
    ended = bench("drain", *TINY, "--schema", "public", url=empty_url)
    assert ended.returncode == 2
    assert "holds tables or other objects" in ended.stderr
    assert rows(empty_url, "select from public.precious") == []


def test_a_measure_that_does_not_exist_is_named(server_url: str) -> None:
    ended = bench("drian", url=server_url)
    assert ended.returncode == 2
    assert "'drian' is no measure" in ended.stderr
    assert "drain-pinned" in ended.stderr


@pytest.mark.usefixtures("nothing_left")
def test_an_interrupted_benchmark_leaves_nothing_behind(server_url: str) -> None:
    working = "select from pg_stat_activity where datname like 'fencepost_bench%' and backend_type = 'client backend'"
    with subprocess.Popen(
        [sys.executable, "-m", "fencepost", "bench", "idle", "--seconds", "300"],
        env=environment(server_url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 20
        # The producer has one connection; the third is the worker's.
        while len(rows(server_url, working)) < 3:
            assert time.monotonic() < deadline, "no worker came to be"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in said


async def test_a_database_is_dropped_after_a_failure(server_url: str) -> None:
    before = await asyncio.to_thread(databases, server_url)
    made: set[str] = set()

    async def fail() -> None:
        async with ground.fresh(server_url, None):
            made.update(await asyncio.to_thread(databases, server_url) - before)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert made
    assert not made & await asyncio.to_thread(databases, server_url)


async def test_a_schema_is_dropped_after_a_failure(empty_url: str) -> None:
    async def fail() -> None:
        async with ground.fresh(empty_url, "mine"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await asyncio.to_thread(rows, empty_url, "select from pg_namespace where nspname = 'mine'") == []


@pytest.fixture
async def plain_url(empty_url: str) -> AsyncIterator[str]:
    """A database of a role that owns it and may do nothing else."""
    role = f"bench_{os.getpid()}"
    connection = await asyncpg.connect(empty_url)
    database, owner = await connection.fetchval("select current_database()"), "current_user"
    await connection.execute(f"create role {role} login password 'x'")
    await connection.execute(f"alter database {database} owner to {role}")
    parts = urlsplit(empty_url)
    yield urlunsplit(parts._replace(netloc=f"{role}:x@{parts.netloc.rpartition('@')[2]}"))
    await connection.execute(f"alter database {database} owner to {owner}")
    await connection.execute(f"drop role {role}")
    await connection.close()


async def test_a_role_that_may_not_create_databases_is_told(plain_url: str) -> None:
    ended = await asyncio.to_thread(bench, "drain", *TINY, url=plain_url)
    assert ended.returncode == 2
    assert "--schema" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
async def test_a_role_without_rights_can_use_a_schema(plain_url: str) -> None:
    ended = await asyncio.to_thread(bench, "drain", *TINY, "--schema", "mine", "--json", url=plain_url)
    assert ended.returncode == 0, ended.stderr
    figures = msgspec.json.decode(ended.stdout)["medians"]["drain"]
    assert figures["jobs_per_second"] > 0
    assert figures["server_cpu_seconds"] is None
