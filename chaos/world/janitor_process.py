"""
Clean up after a runner that was killed.

    python -m chaos.world.janitor_process FOLDER

A process of its own, which waits for the end of its standard input: the kernel closes
that however the runner ends. Then everything that works inside FOLDER is killed, stopped
processes too, and FOLDER is removed, with the shared memory of the servers in it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

from chaos.world import processes
from chaos.world.shared_memory import remove_segment


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
