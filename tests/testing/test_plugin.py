"""The pytest plugin, in runs of pytest of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
PLUGINS = ("-p", "anyio.pytest_plugin", "-p", "fencepost.testing.plugin", "-p", "no:cacheprovider")
"""Named one by one: whether fencepost's entry point is known depends on how it was installed."""


def run_pytest(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-W",
            "error",
            "-c",
            os.devnull,
            "--rootdir",
            str(folder),
            *PLUGINS,
            *words,
        ],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/nonexistent"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def outcome(ended: subprocess.CompletedProcess[str]) -> str:
    """The last line, without the time it took."""
    lines = ended.stdout.strip().splitlines() or [ended.stderr]
    return re.sub(r" in .*", "", lines[-1])


@pytest.fixture
async def databases(server_url: str) -> set[str]:
    """Those that are on the server before the test."""
    return await names_on(server_url)


async def names_on(server_url: str) -> set[str]:
    sql = await asyncpg.connect(server_url)
    rows = await sql.fetch("select datname from pg_database where datname like 'fencepost_test_%'")
    await sql.close()
    return {row[0] for row in rows}


@pytest.mark.slow
async def test_the_example_suite_passes_and_leaves_no_database(server_url: str, databases: set[str]) -> None:
    ended = run_pytest(ROOT / "examples" / "testing", FENCEPOST_TEST_DATABASE_URL=server_url)
    assert outcome(ended) == "8 passed", ended.stdout + ended.stderr
    assert await names_on(server_url) == databases


@pytest.mark.slow
async def test_workers_of_xdist_have_a_template_each(server_url: str, databases: set[str]) -> None:
    ended = run_pytest(ROOT / "examples" / "testing", "-p", "xdist", "-n", "2", FENCEPOST_TEST_DATABASE_URL=server_url)
    assert outcome(ended) == "8 passed", ended.stdout + ended.stderr
    assert await names_on(server_url) == databases


@pytest.mark.slow
def test_without_a_server_it_brings_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import asyncio, asyncpg\n"
        "def test_first(fencepost_database):\n"
        "    async def look():\n"
        "        sql = await asyncpg.connect(fencepost_database)\n"
        "        assert await sql.fetchval('select count(*) from fencepost.jobs') == 0\n"
        "        await sql.execute(\"select fencepost.enqueue('work')\")\n"
        "        await sql.close()\n"
        "    asyncio.run(look())\n"
        "test_second = test_first\n"
    )
    ended = run_pytest(tmp_path)
    assert outcome(ended) == "2 passed", ended.stdout + ended.stderr


@pytest.mark.slow
def test_a_run_that_asks_for_nothing_starts_and_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys, threading\n"
        "def test_it():\n"
        "    assert not {'asyncpg', 'fencepost.embedded', 'fencepost.store', 'fencepost.worker'} & set(sys.modules)\n"
        "    assert threading.active_count() == 1\n"
    )
    ended = run_pytest(tmp_path)
    assert outcome(ended) == "1 passed", ended.stdout + ended.stderr


def test_importing_it_loads_nothing_beside_it() -> None:
    """Every run of pytest pays for it, wherever fencepost is installed."""
    code = (
        "import sys, pytest; before = set(sys.modules); import fencepost.testing.plugin; "
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == ["fencepost", "fencepost.testing", "fencepost.testing.plugin"]


@pytest.mark.slow
def test_a_failure_shows_the_line_of_the_handler(tmp_path: Path, server_url: str) -> None:
    (tmp_path / "test_it.py").write_text(
        "from fencepost import Fencepost\n"
        "app = Fencepost()\n"
        "@app.job\n"
        "async def work(n: int):\n"
        "    return 1 / n  # the line\n"
        "def test_it(fencepost_kit):\n"
        "    with fencepost_kit(app) as kit:\n"
        "        work.enqueue_sync(0)\n"
        "        kit.drain_sync(raise_errors=True)\n"
    )
    ended = run_pytest(tmp_path, FENCEPOST_TEST_DATABASE_URL=server_url)
    assert outcome(ended) == "1 failed"
    assert re.search(r"^>? +return 1 / n  # the line$", ended.stdout, re.M), ended.stdout
    assert "ZeroDivisionError" in ended.stdout


def test_the_entry_point_is_declared() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"fencepost": "fencepost.testing.plugin"}
