"""Have a process of its own clean up when the runner is killed. `janitor_process` is that process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds the package `chaos`."""


def python_path() -> dict[str, str]:
    """This environment, in which `python -m chaos.…` finds us from every working folder."""
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *([known] if known else [])])}


class Janitor:
    """The runner's side: as long as it is open, or until the runner ends, nothing is touched."""

    def __init__(self, folder: Path) -> None:
        """Watch over *folder*, which may not exist yet."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.world.janitor_process", str(folder.resolve())],
            env=python_path(),
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def also(self, folder: Path) -> None:
        """Have *folder*, which is elsewhere, removed too."""
        self._tell(f"also {folder.resolve()}")

    def dismiss(self) -> None:
        """Everything was put away in good order: nothing is left to do."""
        if self._process.poll() is None:
            self._tell("done")
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._process.wait(10)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
