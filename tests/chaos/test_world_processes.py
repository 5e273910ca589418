"""Processes of the fleet: frozen, killed with all their children, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.world import processes
from chaos.world.janitor import python_path
from tests.chaos.world_support import eventually

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""
RUNNER = """
import os, sys, time
from pathlib import Path
from chaos.world import processes
folder = Path(sys.argv[1])
spawned = processes.spawn([sys.executable, "-c", "import time; time.sleep(600)"],
    folder=folder, env=os.environ, log=folder / "log")
print(spawned.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[processes.Process]:
    log = tmp_path / "log"
    spawned = processes.spawn([sys.executable, "-c", PARENT], folder=tmp_path, env=dict(os.environ), log=log)
    assert eventually(lambda: log.read_text().endswith("\n"))
    yield spawned
    spawned.kill()


def test_a_tree_is_killed_to_its_last_leaf(parent: processes.Process) -> None:
    child = int(parent.log.read_text())
    assert processes.tree(parent.pid) == [parent.pid, child]
    parent.kill()
    assert parent.returncode == -signal.SIGKILL
    assert not processes.is_alive(child)
    assert not processes.is_alive(parent.pid)
    assert processes.tree(parent.pid) == []
    assert not parent.signal(signal.SIGTERM)


def test_a_tree_is_frozen_and_goes_on(parent: processes.Process) -> None:
    pids = processes.tree(parent.pid)
    assert parent.pause()
    assert [seen.state for seen in map(processes.status, pids) if seen] == ["T", "T"]
    parent.resume()
    assert eventually(lambda: [seen.state for seen in map(processes.status, pids) if seen] == ["S", "S"])


def test_who_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    )
    spawned = processes.spawn([sys.executable, "-c", stubborn], folder=tmp_path, env=dict(os.environ), log=log)
    assert eventually(lambda: log.read_text() == "1\n")
    assert not spawned.end(patience=0.1)
    assert spawned.returncode == -signal.SIGKILL
    polite = processes.spawn([sys.executable, "-c", PARENT], folder=tmp_path, env=dict(os.environ), log=log)
    assert eventually(lambda: log.read_text().count("\n") == 2)
    polite.pause()
    assert polite.end()
    assert polite.returncode == -signal.SIGTERM


def test_a_spawned_process_dies_with_its_runner(tmp_path: Path) -> None:
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(tmp_path)], env=python_path(), stdout=subprocess.PIPE, text=True
    )
    assert runner.stdout is not None
    spawned = int(runner.stdout.readline())
    assert processes.is_alive(spawned)
    runner.kill()
    runner.wait()
    runner.stdout.close()
    assert processes.wait_gone([spawned], seconds=20) == []


def test_those_that_work_in_a_folder_are_found(parent: processes.Process, tmp_path: Path) -> None:
    assert sorted(processes.working_in(tmp_path)) == sorted(processes.tree(parent.pid))
    assert processes.working_in(tmp_path / "below") == []


def test_waiting_says_who_is_left(parent: processes.Process) -> None:
    assert processes.wait_gone([parent.pid], seconds=0.05) == [parent.pid]
    assert not processes.pause(2**22 + 1)
