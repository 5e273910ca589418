"""The pages about testing and about many jobs: their files saved, their commands run, in their order."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testing.test_plugin import PLUGINS

from .test_examples import ROOT, bash, blocks

TESTING = "docs/how-to/testing.md"
MANY_JOBS = "docs/how-to/many-jobs.md"


def save(page: str, folder: Path) -> list[str]:
    """Save the files of a page; returns their names."""
    names = []
    for block in blocks(page, "python"):
        named = re.match(r"# (\w+\.py)\n", block)
        assert named, f"a block that says no file: {block[:60]}"
        (folder / named[1]).write_text(block)
        names.append(named[1])
    return names


def run(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_the_tests_of_the_page_pass(tmp_path: Path, server_url: str) -> None:
    assert save(TESTING, tmp_path) == ["shop.py", "test_units.py", "test_shop.py", "without_pytest.py"]
    (tmp_path / "conftest.py").write_text(
        "import pytest\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    )
    ended = run(
        tmp_path,
        *("-m", "pytest", "-q", "-W", "error", "-c", os.devnull, "--rootdir", str(tmp_path), *PLUGINS),
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
        FENCEPOST_TEST_DATABASE_URL=server_url,
    )
    assert ended.stdout.strip().splitlines()[-1].startswith("6 passed"), ended.stdout + ended.stderr


def test_a_kit_works_without_pytest(tmp_path: Path, empty_url: str) -> None:
    save(TESTING, tmp_path)
    ended = run(tmp_path, "without_pytest.py", TEST_DATABASE=empty_url)
    assert ended.stdout == "send_receipt (attempt 1) succeeded, now completed\n", ended.stderr


def test_the_message_that_the_page_shows_is_the_message(tmp_path: Path) -> None:
    save(TESTING, tmp_path)
    (tmp_path / "fails.py").write_text(
        "import asyncio\nfrom fencepost.testing import recording\nfrom shop import app, charge, place_order\n"
        "with recording(app) as enqueued:\n    asyncio.run(place_order(1, 990))\n"
        "try:\n    enqueued.assert_enqueued(charge, order=2)\nexcept AssertionError as error:\n    print(error)\n"
    )
    said = run(tmp_path, "fails.py").stdout
    page = (ROOT / TESTING).read_text(encoding="utf-8")
    assert said
    assert "".join(f"    {line}\n" for line in said.splitlines()) in page


def test_every_method_of_the_kit_is_on_the_page() -> None:
    from fencepost.testing import Kit

    page = (ROOT / TESTING).read_text(encoding="utf-8")
    methods = {name for name, item in vars(Kit).items() if callable(item) and not name.startswith("_")}
    assert {name for name in methods if f"kit.{name}" not in page} == set()


@pytest.fixture
def imports(tmp_path: Path, database_url: str) -> Path:
    """A folder with the page's app, whose batch 4711 has run."""
    assert save(MANY_JOBS, tmp_path) == ["imports.py", "clean_up.py"]
    (tmp_path / "run.py").write_text(
        "import asyncio\nfrom imports import app, import_batch\nfrom fencepost.testing import Kit\n"
        "async def main():\n"
        f"    async with Kit(app, {database_url!r}) as kit:\n"
        "        await import_batch('4711', 100)\n"
        "        report = await kit.drain()\n"
        "        print(report.completed, report.dead_letter, report.failed)\n"
        "asyncio.run(main())\n"
    )
    assert run(tmp_path, "run.py").stdout == "86 10 4\n"
    return tmp_path


@pytest.mark.slow
def test_the_commands_of_the_page_do_what_it_says(imports: Path, database_url: str) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    listed, retried, cancelled, deleted = (
        bash(f"export DATABASE_URL='{database_url}'\n{block}", path) for block in blocks(MANY_JOBS, "bash")
    )
    assert listed.stdout.count(" dead_letter import_row default 1/1 [import, import-4711] the warehouse is down") == 3
    assert "Counter({'there is no such article': 4})" in listed.stdout
    assert "put 10 jobs back" in retried.stderr
    assert "cancelled 10 jobs" in cancelled.stderr
    assert "deleted 10 jobs" in deleted.stderr
    assert json.loads(deleted.stdout)["matched"] == 0, "none is as old as that"


def test_the_script_of_the_page_runs(tmp_path: Path, database_url: str) -> None:
    save(MANY_JOBS, tmp_path)
    ended = run(tmp_path, "clean_up.py", DATABASE_URL=database_url)
    assert ended.returncode == 0, ended.stderr
