"""What a worker process and its parent make of words that aren't those of the other."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from fencepost.cli.processes import messages
from fencepost.cli.processes.messages import Config, Drained, Quiet, Ready, Report
from fencepost.settings import Settings
from tests.patience import limit
from tests.processes.support import QUICK, Processes, gone
from tests.service.support import wait_until

NONSENSE = {
    "no JSON": "(:",
    "no report": '{"type": "Retired"}',
    "too deep": '{"type": "Ready", "why": ' + "[" * 50_000,
    "too much": '{"type": "Counted", "counts": {"active": 1' + "0" * 400 + "}}",
}


@pytest.mark.slow
@pytest.mark.parametrize("said", NONSENSE.values(), ids=NONSENSE)
def test_a_process_that_speaks_nonsense_is_killed_and_replaced(database_url: str, tmp_path: Path, said: str) -> None:
    settings = {**QUICK, "DATABASE_URL": database_url, "PROCESSES": "1", "WORKERS": "1", "SHUTDOWN_TIMEOUT": "1s"}
    with Processes(tmp_path, **settings) as service:
        [pid] = service.pids
        babble = service.post({"type": "babble", "payload": said, "max_attempts": 1, "timeout": "1h"})["id"]
        wait_until((tmp_path / "babbling").exists, 10, "the job to run")
        wait_until(lambda: service.metric("active_workers") == 1, 5, "its slot to be reported")
        service.release()
        wait_until(lambda: len(service.pids) == 2, 10, "another process")
        assert gone(pid)
        [told] = service.events("worker process speaks nonsense; killed")
        assert (told["pid"], told["level"]) == (pid, "error")
        [ended] = service.events("worker process ended; starting another")
        assert ended["ended_by"] == "SIGKILL"
        service.wait_for(babble, "dead_letter")
        job = service.wait_for(service.post({"type": "pid"})["id"], "completed")
        assert job["result"] == service.pids[1]
        wait_until(lambda: service.metric("active_workers") == 0, 5, "its slot to be taken back")
        assert service.metric("worker_processes") == 1


@pytest.mark.parametrize(
    "said", [b"(:\n", b'{"type": "Fly"}\n', b'{"type": "Drain", "why": ' + b"[" * 50_000 + b"\n"], ids=len
)
def test_a_process_that_cannot_read_an_order_stops_in_order(database_url: str, said: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, ours.makefile("rb") as heard:
        with theirs:
            words = [sys.executable, "-m", "fencepost.cli.processes.child", str(theirs.fileno())]
            process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True)
        ours.settimeout(limit(20))
        try:
            config = Config(number=1, dsn=database_url, app=None, settings=Settings(), listen_dsn=None, turn=None)
            ours.sendall(messages.line(config))
            assert _next(heard) == Ready()
            # One that can be read is still obeyed.
            ours.sendall(messages.line(messages.StopClaiming()))
            assert _next(heard) == Quiet()
            ours.sendall(said)
            assert _next(heard) == Drained(0)
            logged, _ = process.communicate(timeout=limit(10))
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0
    assert "what the parent process says can't be read; stopping" in logged


def _next(heard: Iterable[bytes]) -> Report:
    """The next report of more than that it lives."""
    for text in heard:
        report = msgspec.json.decode(text, type=Report)
        if not isinstance(report, messages.Alive | messages.Counted):
            return report
    raise AssertionError("it has ended")
