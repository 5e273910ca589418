"""The plain script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fencepost.embedded.running import find_running
from fencepost.errors import EmbeddedError

from .support import run

SAID = re.compile(
    r"line 1: 4 words\n"
    r"line 2: 3 words\n"
    r"line 3: job \S+ \(count_words\) ended failed: line 3 is empty\n"
    r"index.html, fetched by attempt 2\n"
)


def test_script_prints_what_its_jobs_returned(database_url: str) -> None:
    assert SAID.fullmatch(run("script.py", DATABASE_URL=database_url).stdout)


@pytest.mark.slow
def test_script_needs_no_database_of_its_own(tmp_path: Path) -> None:
    """The embedded one is started, and stopped at the end."""
    data = tmp_path / "data"
    for _ in range(2):
        assert SAID.fullmatch(run("script.py", DATA_DIR=str(data)).stdout)
    try:
        running = find_running(data)
    except EmbeddedError:
        running = None
    assert running is None, "its PostgreSQL still runs"
