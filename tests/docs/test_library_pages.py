"""The Python of the library's pages runs as written, and prints what it says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .library_page import ROOT, blocks

PAGES = [
    "docs/how-to/declare.md",
    "docs/how-to/endings.md",
    "docs/how-to/transactions.md",
    "docs/how-to/from-celery.md",
    "docs/how-to/from-rq.md",
    "docs/how-to/from-procrastinate.md",
]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.slow
def test_page_runs(page: str, database_url: str) -> None:
    assert blocks(page)
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.docs.library_page", page],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": database_url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
