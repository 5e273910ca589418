"""
Clean up after a runner that was killed.

    python -m chaos.world.janitor FOLDER

A process of its own, which waits for the end of its standard input: the kernel closes
that however the runner ends. Then everything that works inside FOLDER is killed, stopped
processes too, and FOLDER is removed, with the shared memory of the servers in it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from chaos.world import processes
from chaos.world.shared_memory import remove_segment

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
            [sys.executable, "-m", "chaos.world.janitor", str(folder.resolve())],
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


def clean(folder: Path, others: list[Path]) -> None:
    """Kill what works in *folder*, then remove it and *others*."""
    for _ in range(50):  # a process may have started another in between
        found = processes.working_in(folder)
        if not found:
            break
        for pid in found:
            processes.send(pid, signal.SIGKILL)
        processes.wait_gone(found, seconds=2.0)
    for pid_file in folder.rglob("postmaster.pid"):
        remove_segment(pid_file.parent)
    for place in (folder, *others):
        shutil.rmtree(place, ignore_errors=True)


def main(folder: Path) -> None:
    """Wait for the owner's end or its word that there is nothing to do."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    others = []
    for line in sys.stdin:
        word, _, place = line.rstrip("\n").partition(" ")
        if word == "done":
            return
        others.append(Path(place))
    clean(folder, others)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
