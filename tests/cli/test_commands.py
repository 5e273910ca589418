"""The commands, as processes: what they print where, and their exit codes."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import asyncpg
import pytest


def fencepost(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fencepost.cli.main", *words],
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_migrate_applies_once_and_says_what(empty_url: str) -> None:
    missing = fencepost("migrate", "--status", DATABASE_URL=empty_url)
    assert missing.returncode == 4
    assert "0001 foundation" in missing.stdout
    assert "missing" in missing.stdout
    first = fencepost("migrate", DATABASE_URL=empty_url)
    assert (first.returncode, first.stdout) == (0, "")
    assert "applied 0001 foundation" in first.stderr
    again = fencepost("migrate", DATABASE_URL=empty_url)
    assert again.returncode == 0
    assert "nothing to do" in again.stderr
    assert fencepost("migrate", "--status", DATABASE_URL=empty_url).returncode == 0


def test_migrate_prints_sql_that_can_be_applied_elsewhere(empty_url: str) -> None:
    printed = fencepost("migrate", "--print", "--schema", "Job Queue")
    assert printed.returncode == 0

    async def apply() -> None:
        connection = await asyncpg.connect(empty_url)
        try:
            await connection.execute(printed.stdout)
        finally:
            await connection.close()

    asyncio.run(apply())
    assert fencepost("migrate", "--status", DATABASE_URL=empty_url, SCHEMA="Job Queue").returncode == 0


def test_migrate_without_a_database_says_what_to_do() -> None:
    ended = fencepost("migrate")
    assert ended.returncode == 2
    assert "DATABASE_URL" in ended.stderr


def test_unreachable_database_has_its_exit_code() -> None:
    ended = fencepost("migrate", DATABASE_URL="postgresql://127.0.0.1:1/none")
    assert ended.returncode == 6
    assert "Traceback" not in ended.stderr


def test_load_test_without_a_service_says_so() -> None:
    ended = fencepost("load-test", "--url", "http://127.0.0.1:1", "--jobs", "1", "--patience", "100ms")
    assert ended.returncode == 6
    assert "fencepost serve" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["load-test", "--jobs", "0"], "--jobs"),
        (["load-test", "--fail-rate", "2"], "--fail-rate"),
        (["load-test", "--duration", "soon"], "duration"),
        (["load-test", "--token-file", "/nowhere"], "--token-file"),
        (["load-test", "--url", "localhost:8080"], "http://"),
        (["serve", "nowhere:app"], "nowhere:app"),
        (["serve", "os:path"], "not a Fencepost"),
        (["serve", "--workers", "-1"], "--workers"),
        (["sevre"], "sevre"),
    ],
)
def test_misuse_is_exit_code_2_and_a_sentence(words: list[str], said: str) -> None:
    ended = fencepost(*words, DATABASE_URL="postgresql://127.0.0.1:1/none")
    assert ended.returncode == 2, ended.stderr
    assert said in ended.stderr
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr


def test_version_is_quick_and_loads_no_server() -> None:
    code = """
import sys
import fencepost.cli.main as command
sys.argv = ["fencepost", "--version"]
try:
    command.main()
except SystemExit:
    pass
print([name for name in ("asyncpg", "uvicorn", "structlog") if name in sys.modules])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20)
    assert ended.stdout.splitlines()[-1] == "[]"
