"""Starts that can't work, `fencepost worker`, and hangups."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.cli.processes.supervisor import LONGEST_PAUSE_SECONDS, STEADY_SECONDS, Pauses
from tests.patience import limit
from tests.processes.support import QUICK, Processes, WorkerCommand, gone, hangups_ignored, run
from tests.service.support import Service, wait_until

ONE_HANGS = """import os, time
    try:
        os.mkdir(str(seen) + "-too")
    except OSError:
        os._exit(9)
    time.sleep(3600)"""
"""One of two processes imports for ever while the other dies."""


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A folder for an embedded PostgreSQL; other accounts may pass through, as it needs when we are root."""
    with tempfile.TemporaryDirectory(prefix="fencepost-processes-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder) / "data"


def test_pause_grows_up_to_its_cap() -> None:
    pauses = Pauses()
    assert [pauses.after(uptime) for uptime in (0.1, 29, 0, 0)] == [0.5, 1, 2, 4]
    assert [pauses.after(0) for _ in range(2000)][-1] == LONGEST_PAUSE_SECONDS
    assert [pauses.after(uptime) for uptime in (STEADY_SECONDS, 0, 0, 31, 0)] == [0, 0.5, 1, 0, 0.5]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve", "nowhere:app", "--processes", "2"], "nowhere:app"),
        (["worker", "nowhere:app", "--processes", "2"], "nowhere:app"),
        (["worker", "os:path"], "os:path is no Fencepost but of type module"),
        (["worker", "--processes", "-1"], "--processes"),
        (["worker", "--workers", "0"], "--workers"),
    ],
)
def test_misuse_is_exit_code_2_and_a_sentence(words: list[str], said: str, database_url: str) -> None:
    ended = run(*words, DATABASE_URL=database_url)
    assert ended.returncode == 2, ended.stderr
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "worker process" not in ended.stdout


def test_worker_without_slots_is_refused(database_url: str) -> None:
    ended = run("worker", DATABASE_URL=database_url, WORKERS="0")
    assert ended.returncode == 2
    assert "WORKERS" in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", ["serve", "worker"])
@pytest.mark.parametrize(
    ("second_import", "code", "said"),
    [
        ("raise ImportError('no such library')", 2, "no such library"),
        ("import os; os._exit(9)", 1, "exit code 9"),
        (ONE_HANGS, 1, "exit code 9"),
    ],
)
def test_first_start_that_fails_in_a_process_ends_the_parent(
    database_url: str, tmp_path: Path, command: str, second_import: str, code: int, said: str
) -> None:
    (tmp_path / "fragile.py").write_text(
        "from pathlib import Path\n"
        "from fencepost.app import Fencepost\n"
        "seen = Path(__file__).with_name('seen')\n"
        "if seen.exists():\n"
        f"    {second_import}\n"
        "seen.touch()\n"
        "app = Fencepost()\n"
    )
    ended = run(command, "fragile:app", "--processes", "2", DATABASE_URL=database_url, PYTHONPATH=str(tmp_path))
    assert ended.returncode == code, ended.stderr
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "starting another" not in ended.stdout
    assert "the parent process is gone" not in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "how"), [(Processes, "stopped"), (WorkerCommand, "stopped"), (WorkerCommand, "killed")]
)
def test_stop_while_the_processes_are_starting(
    database_url: str, tmp_path: Path, command: type[Processes], how: str
) -> None:
    """An import that takes for ever holds nobody up."""
    (tmp_path / "slow").touch()
    starting = command(tmp_path, DATABASE_URL=database_url, PROCESSES="2")
    try:
        wait_until(lambda: len(list(tmp_path.glob("importing-*"))) == 2, 20, "both to import")
        if how == "stopped":
            starting.signal(signal.SIGTERM)
            assert starting.wait(limit(5)) == 0
        else:
            starting.process.kill()
        starting.wait_until_gone(2)
    finally:
        starting.kill()


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["0", "2"])
def test_worker_command_works_and_stops(database_url: str, tmp_path: Path, processes: str) -> None:
    with (
        Processes(tmp_path, DATABASE_URL=database_url, WORKERS="0", PROCESSES="2") as api,
        WorkerCommand(tmp_path, DATABASE_URL=database_url, PROCESSES=processes, WORKERS="1") as worker,
    ):
        assert api.pids == []
        assert any(", 0 workers" in line for line in api.said)
        own = [worker.process.pid] if processes == "0" else worker.pids
        held = api.hold(len(own))
        assert sorted(held.values()) == sorted(own)
        worker.signal(signal.SIGTERM)
        wait_until(lambda: bool(worker.events("stopping")), 5, "it to stop")
        api.release()
        assert worker.wait() == 0
        assert all(map(gone, worker.pids))
        for job_id in held:
            job = api.job(job_id)
            assert (job["status"], job["attempts"]) == ("completed", 1)


@pytest.mark.slow
def test_worker_shares_the_embedded_server_of_a_running_service(data_dir: Path, tmp_path: Path) -> None:
    alone = run("worker", DATA_DIR=str(data_dir))
    assert alone.returncode == 6
    assert "DATABASE_URL" in alone.stderr
    assert "fencepost serve" in alone.stderr
    assert not data_dir.exists()
    with Processes(tmp_path, DATA_DIR=str(data_dir), WORKERS="0") as api:
        worker = WorkerCommand(tmp_path, DATA_DIR=str(data_dir), PROCESSES="1", **QUICK)
        worker.wait_until_listening()
        assert any(str(api.process.pid) in line for line in worker.said)
        job = api.wait_for(api.post({"type": "pid"})["id"], "completed")
        assert [job["result"]] == worker.pids
    # Killed, and its server with it. The worker finds the next one.
    with worker, Processes(tmp_path, DATA_DIR=str(data_dir), WORKERS="0") as api:
        job = api.wait_for(api.post({"type": "pid"})["id"], "completed")
        assert [job["result"]] == worker.pids
        worker.signal(signal.SIGINT)
        assert worker.wait() == 0


@pytest.mark.slow
def test_hangup_stops_in_order_however_often_it_comes(database_url: str, tmp_path: Path) -> None:
    with Processes(tmp_path, DATABASE_URL=database_url, PROCESSES="1", WORKERS="1") as service:
        [(job_id, _)] = service.hold(1).items()
        for _ in range(3):
            service.signal(signal.SIGHUP)
            wait_until(lambda: len(service.events("stopping")) == 2, 5, "it and its process to stop")
        service.release()
        assert service.wait() == 0
        service.wait_until_gone(1)
    with Service(DATABASE_URL=database_url, WORKERS="0") as service:
        assert service.job(job_id)["status"] == "completed"


def test_hangup_that_was_ignored_from_the_start_stays_so(database_url: str, tmp_path: Path) -> None:
    with hangups_ignored():
        started = Processes(tmp_path, DATABASE_URL=database_url, PROCESSES="1")
    with started as service:
        for pid in (service.process.pid, *service.pids):
            subprocess.run(["kill", "-HUP", str(pid)], check=True)
        service.wait_for(service.post({"type": "pid"})["id"], "completed")
        assert not service.events("stopping")


def test_process_that_cannot_end_is_ended() -> None:
    code = (
        "import threading, time\n"
        "from fencepost.cli.endings import end_within\n"
        "end_within(0.2, 1)\n"
        "threading.Thread(target=time.sleep, args=(3600,)).start()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=10, check=False).returncode == 1
