"""The commands of the page about several processes run as written, on a database of the test's."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.support import MODULE
from tests.service.support import START_SECONDS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "processes.md"
BLOCKS = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)


def test_the_page_shows_both_commands() -> None:
    assert [re.findall(r"fencepost (serve|worker) ", block) for block in BLOCKS] == [["serve"], ["worker"], ["worker"]]


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS)
def test_a_command_starts_as_many_processes_as_the_page_says(block: str, database_url: str, tmp_path: Path) -> None:
    (tmp_path / "myapp").mkdir()
    (tmp_path / "myapp" / "jobs.py").write_text(MODULE)
    script = re.sub(r"postgresql://\S+", f"'{database_url}'", block).replace(
        "fencepost ", f"exec {sys.executable} -m fencepost "
    )
    with subprocess.Popen(
        ["bash", "-euc", script],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "DATABASE_URL": database_url, "HTTP_ADDR": "127.0.0.1:0"},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            said = process.stderr.readline()
            assert ("50 workers in each of 4 processes" if "--processes" in block else "4 workers, no API") in said
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(START_SECONDS) == 0
