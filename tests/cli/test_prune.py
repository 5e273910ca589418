"""`fencepost prune` as a process: what it says, what it does, and its exit codes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.store.history import History

from .test_commands import fencepost


def prepare(url: str, work: Callable[[History, Any], Awaitable[Any]]) -> Any:
    """Run *work* on the history of a database."""

    async def run() -> Any:
        connection = await asyncpg.connect(url)
        try:
            history = History(connection)
            await history.begin()
            return await work(history, connection)
        finally:
            await connection.close()

    return asyncio.run(run())


async def make_history(history: History, _: Any) -> None:
    await history.range(days=20)
    await history.ended(days=19, count=1200, key="k")
    await history.ended("failed", days=18, count=3)
    await history.ended(days=500, count=2)


async def count_jobs(_: History, connection: Any) -> int:
    return int(await connection.fetchval("select count(*) from fencepost.jobs"))


def test_a_dry_run_says_what_would_go_and_changes_nothing(database_url: str) -> None:
    prepare(database_url, make_history)
    ended = fencepost("prune", "--dry-run", DATABASE_URL=database_url)
    assert ended.returncode == 0, ended.stderr
    outside, old = ended.stdout.splitlines()
    assert outside.split() == ["outside", "any", "time", "range", "2", "to", "go", "0", "to", "stay"]
    assert old.split()[3:] == ["1,200", "to", "go", "3", "to", "stay,", "by", "dropping", "its", "partitions"]
    assert "1,202 jobs are past their time; nothing was changed" in ended.stderr
    assert prepare(database_url, count_jobs) == 1205


@pytest.mark.slow
def test_a_run_removes_and_says_how_much(database_url: str) -> None:
    prepare(database_url, make_history)
    ended = fencepost("prune", DATABASE_URL=database_url)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert "removed 1,202 jobs and 1,200 idempotency keys" in ended.stderr
    assert "dropped the partitions of 1 time ranges; moved 3 jobs out of them" in ended.stderr
    assert prepare(database_url, count_jobs) == 3
    again = fencepost("prune", DATABASE_URL=database_url)
    assert again.returncode == 0
    assert "removed 0 jobs" in again.stderr


@pytest.mark.slow
def test_the_benchmark_beside_a_run_works(server_url: str) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "retention.py"
    ended = subprocess.run(
        [sys.executable, str(script), "--jobs", "3000", "--seconds", "0.3", "--url", server_url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "removed 3,900 jobs" in ended.stdout
    assert "beside a run" in ended.stdout


def test_a_setting_counts(database_url: str) -> None:
    prepare(database_url, make_history)
    ended = fencepost("prune", DATABASE_URL=database_url, RETAIN_COMPLETED="0", RETAIN_FAILED="10d")
    assert "removed 3 jobs and 0 idempotency keys" in ended.stderr
    assert prepare(database_url, count_jobs) == 1202


@pytest.mark.slow
def test_what_stands_in_the_way_is_said_with_exit_code_6(database_url: str) -> None:
    async def at_work(history: History, connection: Any) -> Any:
        await make_history(history, connection)
        async with connection.transaction():
            await connection.fetchval("select fencepost.retention_turn()")
            return await asyncio.to_thread(fencepost, "prune", DATABASE_URL=database_url)

    ended = prepare(database_url, at_work)
    assert ended.returncode == 6
    assert "another process is removing old jobs right now" in ended.stderr

    async def locked(_: History, connection: Any) -> Any:
        async with connection.transaction():
            await connection.fetchval("select count(*) from fencepost.finished")
            return await asyncio.to_thread(fencepost, "prune", DATABASE_URL=database_url)

    ended = prepare(database_url, locked)
    assert ended.returncode == 6
    assert "left 1 time ranges for another time" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_database_without_the_schema_is_not_touched(empty_url: str) -> None:
    ended = fencepost("prune", DATABASE_URL=empty_url)
    assert ended.returncode == 4
    assert "fencepost migrate" in ended.stderr


def test_without_a_database_it_says_what_to_do() -> None:
    ended = fencepost("prune")
    assert ended.returncode == 2
    assert "DATABASE_URL" in ended.stderr


def test_a_time_that_is_none_is_refused(database_url: str) -> None:
    ended = fencepost("prune", DATABASE_URL=database_url, RETAIN_FAILED="30s")
    assert ended.returncode == 2
    assert "RETAIN_FAILED: must be 0, to keep for ever, or at least 1m" in ended.stderr
