"""`make bench-peers` still runs: with fencepost alone, at tiny sizes. The other queues need the network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "peers" / "run.py"


@pytest.mark.slow
def test_every_measure_of_the_comparison_runs_once(tmp_path: Path) -> None:
    answered = subprocess.run(
        [
            *(sys.executable, str(SCRIPT), "--quick", "--peers", "fencepost", "--reference", "fencepost"),
            *("--cache", str(tmp_path / "cache"), "--json", str(tmp_path / "out.json")),
            *("--markdown", str(tmp_path / "out.md"), "--svg", str(tmp_path / "out.svg")),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert answered.returncode == 0, answered.stderr[-2000:]
    assert json.loads((tmp_path / "out.json").read_text())
    table = (tmp_path / "out.md").read_text()
    for measure in (
        "Enqueue, one at a time",
        "Enqueue in bulk",
        "Drain, two processes",
        "held snapshot",
        "Pick-up, p99",
    ):
        assert measure in table, table
    assert (tmp_path / "out.svg").read_text().startswith("<svg")
