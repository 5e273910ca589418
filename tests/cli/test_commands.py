"""The commands, as processes: what they print where, and their exit codes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from fencepost.cli import migrate as command
from fencepost.errors import DatabaseUnavailable
from fencepost.store import migrate as migrations
from fencepost.store import partitions
from fencepost.store.database import Database
from tests.patience import limit


def fencepost(*words: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fencepost", *words],
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        check=False,
    )


@pytest.mark.slow
def test_migrate_applies_once_and_says_what(empty_url: str) -> None:
    missing = fencepost("migrate", "--status", DATABASE_URL=empty_url)
    assert missing.returncode == 4
    assert "0001 foundation" in missing.stdout
    assert "missing" in missing.stdout
    first = fencepost("migrate", DATABASE_URL=empty_url)
    assert (first.returncode, first.stdout) == (0, "")
    assert "applied 0001 foundation" in first.stderr
    assert re.search(r"^made partitions for (2 time ranges|1 time range)$", first.stderr, re.M)
    again = fencepost("migrate", DATABASE_URL=empty_url)
    assert (again.returncode, again.stderr) == (0, "nothing to do: the schema is up to date\n")
    assert fencepost("migrate", "--status", DATABASE_URL=empty_url).returncode == 0


async def test_migrate_says_so_when_a_lock_keeps_it_from_making_partitions(
    empty_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failure when this moment has none; and it says whose lock it is."""
    monkeypatch.setattr(partitions, "_ROUNDS", 2)
    monkeypatch.setenv("DATABASE_URL", empty_url)
    await migrations.migrate(Database(empty_url, schema="Job Queue"))
    connection = await asyncpg.connect(empty_url)

    async def migrated() -> int:
        return await asyncio.to_thread(command.migrate, None, print_only=False, status=False, schema="Job Queue")

    async with connection.transaction():
        await connection.fetchval('select count(*) from "Job Queue".jobs_default')
        with pytest.raises(DatabaseUnavailable, match="no partition for this moment, and none could be made") as none:
            await migrated()
        assert none.value.exit_code == 6
        asked = re.search(r"(select pid, .*;) When it has ended", str(none.value))
        assert asked
        assert connection.get_server_pid() in {row["pid"] for row in await fetch(empty_url, asked[1])}
    assert await migrated() == 0
    assert capsys.readouterr().err.startswith("made partitions for")
    # So wide that another one is needed.
    monkeypatch.setenv("PARTITION_DAYS", "60")
    async with connection.transaction():
        await connection.fetchval('select count(*) from "Job Queue".jobs_default')
        assert await migrated() == 0
    assert capsys.readouterr().err.startswith("the next time range has no partitions yet: another transaction")
    await connection.close()


async def fetch(url: str, text: str) -> list[asyncpg.Record]:
    """What a session of its own is told."""
    connection = await asyncpg.connect(url)
    try:
        return list(await connection.fetch(text))
    finally:
        await connection.close()


def test_migrate_declares_the_types_of_an_app(empty_url: str, tmp_path: Path) -> None:
    (tmp_path / "myjobs.py").write_text(
        "from fencepost.app import Fencepost\n"
        "app = Fencepost()\n"
        "async def resize(context, payload): ...\n"
        "app.register('resize', resize)\n"
    )
    ended = fencepost("migrate", "myjobs:app", DATABASE_URL=empty_url, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "applied 0001 foundation" in ended.stderr

    async def declared() -> tuple[set[str], list[str]]:
        connection = await asyncpg.connect(empty_url)
        try:
            types = await connection.fetch("select name from fencepost.job_types")
            lanes = await connection.fetch(
                "select q.name from fencepost.lanes l join fencepost.queues q on q.id = l.queue_id"
            )
            return {row["name"] for row in types}, [row["name"] for row in lanes]
        finally:
            await connection.close()

    types, lanes = asyncio.run(declared())
    assert types == {"resize", "sleep", "webhook", "fail_test", "send_email"}
    assert lanes == ["default"]
    assert f"declared {len(types)} job types" in ended.stderr
    unknown = fencepost("migrate", "nowhere:app", DATABASE_URL=empty_url)
    assert unknown.returncode == 2
    assert "nowhere:app can't be imported" in unknown.stderr


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


@pytest.mark.parametrize("words", [["migrate"], ["migrate", "--status"], ["jobs", "list"], ["doctor"], ["prune"]])
def test_unreachable_database_has_its_exit_code_and_says_where_it_was_looked_for(words: list[str]) -> None:
    ended = fencepost(*words, DATABASE_URL="postgresql://somebody:secret@127.0.0.1:1/none")
    assert ended.returncode == 6
    assert ended.stderr == "fencepost: the database is not available: Connection refused (127.0.0.1:1)\n"


def test_load_test_without_a_service_says_so() -> None:
    ended = fencepost("load-test", "--url", "http://127.0.0.1:1", "--jobs", "1", "--patience", "100ms")
    assert ended.returncode == 6
    assert "fencepost serve" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_load_test_looks_where_the_service_would_be() -> None:
    ended = fencepost("load-test", "--jobs", "1", "--patience", "100ms", PORT="1")
    assert ended.returncode == 6
    assert "http://127.0.0.1:1 can't be reached" in ended.stderr


@pytest.mark.parametrize("words", [["jobs", "list"], ["prune", "--dry-run"], ["grant", "nobody", "--to", "reader"]])
def test_a_schema_that_is_not_there_is_not_called_old(empty_url: str, words: list[str]) -> None:
    ended = fencepost(*words, DATABASE_URL=empty_url, SCHEMA="nope")
    assert ended.returncode == 4
    assert "there is no schema 'nope' of fencepost's in this database" in ended.stderr


@pytest.mark.parametrize("words", [["migrate", "--status"], ["jobs", "list"], ["doctor"], ["prune"]])
@pytest.mark.parametrize("parameter", ["connect_timeout=10", "channel_binding=require", "work_mem=plenty"])
def test_a_parameter_of_the_address_that_is_not_known_is_named(
    empty_url: str, words: list[str], parameter: str
) -> None:
    url = f"{empty_url}{'&' if '?' in empty_url else '?'}{parameter}"
    ended = fencepost(*words, DATABASE_URL=url)
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("fencepost: DATABASE_URL: ")
    assert parameter.partition("=")[0] in ended.stderr


def test_ctrl_c_has_the_exit_code_that_shells_give_it() -> None:
    """Not 1, with which doctor and load-test say that something is wrong."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(limit(20))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with subprocess.Popen(
            [sys.executable, "-m", "fencepost", "load-test", "--url", url, "--jobs", "1"],
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            connection, _ = silent.accept()
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=limit(20))
            connection.close()
    assert process.returncode == 130
    assert said.strip().endswith("fencepost: interrupted")


def test_a_pipe_that_is_closed_is_no_failure_of_ours() -> None:
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, "-m", "fencepost", "migrate", "--print"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["load-test", "--jobs", "0"], "--jobs"),
        (["load-test", "--fail-rate", "2"], "--fail-rate"),
        (["load-test", "--duration", "soon"], "duration"),
        (["load-test", "--token-file", "/nowhere"], "--token-file"),
        (["load-test", "--url", "localhost:8080"], "http://"),
        (["serve", "nowhere:app"], "nowhere:app"),
        (["serve", "os:path"], "os:path is no Fencepost but of type module"),
        (["serve", ":app"], "':app' names no module"),
        (["worker", ".jobs:app"], "'.jobs:app' names no module"),
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
