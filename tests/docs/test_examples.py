"""The commands of the pages run as written, in their order, against a service started as they say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.support import Service, wait_until

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.S | re.M)


def curls(page: str) -> list[str]:
    """The shell blocks that talk to the service."""
    found = [block for block in blocks(page, "bash") if "localhost:8080" in block]
    assert found
    return found


@pytest.fixture
def service(database_url: str, tmp_path: Path) -> Iterator[Service]:
    """The service with the tutorial's own module, webhooks to private targets allowed as the job types page does."""
    [greetings] = blocks("docs/tutorial/quick-start.md", "python")
    (tmp_path / "greetings.py").write_text(greetings)
    with Service(
        "greetings:app",
        DATABASE_URL=database_url,
        PYTHONPATH=str(tmp_path),
        WEBHOOK_ALLOW_PRIVATE="true",
        BACKOFF_BASE="100ms",
    ) as service:
        yield service


def run(block: str, service: Service) -> list[str]:
    """Run a block as written, but for the port; returns the answers it printed. Every one must be a success."""
    script = block.replace("localhost:8080", service.url.removeprefix("http://"))
    script = re.sub(r"\bcurl -s\b", r"curl -s --fail-with-body -w '\\n'", script)
    # What is over by then where nothing else runs is waited for; `bash` has an end for it.
    ended = f"{service.url.removeprefix('http://')}/jobs/$id/status | grep -Eq 'completed|dead_letter'"
    script = re.sub(r"^sleep \d+$", lambda _: f"until curl -s {ended}; do sleep 0.05; done", script, flags=re.M)
    return bash(script, f"{os.environ['PATH']}:{ROOT / 'tests/docs/substitutes'}").stdout.strip().splitlines()


def bash(script: str, path: str) -> subprocess.CompletedProcess[str]:
    """Run a script, in which every command must succeed, with programs from *path*."""
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env={"PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, f"{script}\n{ended.stdout}{ended.stderr}"
    return ended


@pytest.mark.parametrize(
    "page", ["README.md", "docs/tutorial/quick-start.md", "docs/reference/http.md", "docs/reference/job-types.md"]
)
@pytest.mark.slow
def test_curl_lines_run_as_written(page: str, service: Service) -> None:
    # One script a page, as in one terminal: what a block has set is there for the next.
    answers = run("".join(curls(page)), service)
    assert answers
    for answer in answers:
        if answer.startswith("{"):
            assert "error" not in json.loads(answer)


@pytest.mark.slow
def test_readme_story_comes_true(service: Service) -> None:
    """The failing job of the README is in the dead letter when it says so, and is put back."""
    story = next(block for block in curls("README.md") if "/retry" in block)
    record, _ = (json.loads(line) for line in run(story, service))
    assert record["status"] == "dead_letter"
    assert [past["outcome"] for past in record["history"]] == ["failed"]
    # It was put back, and by now may have run, and failed, again.
    wait_until(lambda: len(service.job(record["id"])["history"]) == 2, 10, "the second failure")
    assert service.wait_for(record["id"], "dead_letter")["attempts"] == 1


def test_tutorial_handler_does_what_it_says(service: Service) -> None:
    greeted = service.wait_for(service.post({"type": "greet", "payload": {"name": "Ada"}})["id"], "completed")
    assert greeted["result"] == "Hello, Ada! This was attempt 1."
    refused = service.wait_for(service.post({"type": "greet", "payload": {"nom": "Ada"}})["id"], "failed")
    assert "`nom`" in refused["last_error"]


def test_tutorial_key_makes_one_job_and_conflicts(service: Service) -> None:
    block = next(block for block in curls("docs/tutorial/quick-start.md") if "welcome-ada" in block)
    first, second = json.loads(run(block, service)[0]), json.loads(run(block, service)[0])
    assert first["id"] == second["id"]
    with pytest.raises(AssertionError, match="already made"):
        run(block.replace("ada@example.org", "bob@example.org"), service)


@pytest.mark.slow
def test_load_test_of_the_readme_runs_small(service: Service) -> None:
    block = next(block for block in blocks("README.md", "bash") if "load-test" in block)
    words = block.split()
    assert words[:2] == [".venv/bin/fencepost", "load-test"]
    small = ["100" if word == "5000" else word for word in words[1:]]
    ended = subprocess.run(
        [sys.executable, "-m", "fencepost", *small, "--url", service.url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"^lost +0$", ended.stdout, re.M)


def test_job_types_module_works(database_url: str) -> None:
    """The module of the job types page: its result, its permanent failure, its retry."""
    [module] = [block for block in blocks("docs/reference/job-types.md", "python") if "Fencepost()" in block]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "mymodule.py").write_text(module)
        with Service("mymodule:app", DATABASE_URL=database_url, PYTHONPATH=folder) as service:
            good = service.post({"type": "resize", "payload": {"picture": "cat", "width": 10}})["id"]
            narrow = service.post({"type": "resize", "payload": {"picture": "cat", "width": 0}})["id"]
            busy = service.post({"type": "resize", "payload": {"picture": "busy", "width": 10}})["id"]
            assert service.wait_for(good, "completed")["result"] == {"picture": "cat", "attempt": 1}
            assert service.wait_for(narrow, "failed")["last_error"] == "a picture can't be that narrow"
            service.wait_for(busy, "pending")


@pytest.mark.parametrize("page", ["docs/how-to/operate.md", "docs/how-to/retention.md"])
def test_queries_of_the_pages_run(page: str, database_url: str) -> None:
    import asyncio

    import asyncpg

    async def check() -> None:
        connection = await asyncpg.connect(database_url)
        try:
            for query in blocks(page, "sql"):
                await connection.fetch(query)
        finally:
            await connection.close()

    asyncio.run(check())


def test_retention_page_commands_run(database_url: str) -> None:
    for_ever, prune = blocks("docs/how-to/retention.md", "bash")
    script = for_ever + prune.replace("postgresql://…", f"'{database_url}'")
    ended = bash(script, f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert "0 jobs are past their time; nothing was changed" in ended.stderr
    assert "removed 0 jobs" in ended.stderr
