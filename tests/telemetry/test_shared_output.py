"""Several processes on one stdout."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections import Counter

import pytest

from fencepost.telemetry.shared_output import PATIENCE_SECONDS, make_turn
from tests.patience import limit

WRITER = """
import logging, sys
from fencepost.settings import Settings
from fencepost.telemetry import logs
logs.configure(Settings(log_format=sys.argv[3]), worker_process=int(sys.argv[1]), turn=int(sys.argv[2]))
log = logging.getLogger("fencepost.test")
for n in range(90):
    log.info("short" if n % 3 else "x" * 30_000, extra={"n": n})
"""


def write_from_three(log_format: str) -> list[str]:
    """What three processes write at once into a pipe that is read a little at a time, and so always full."""
    turn = make_turn()
    assert turn is not None
    read, write = os.pipe()
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(number), str(turn), log_format], stdout=write, pass_fds=[turn]
        )
        for number in (1, 2, 3)
    ]
    os.close(write)
    os.close(turn)
    written = b""
    while part := os.read(read, 4096):
        written += part
        # Slower than they write, or the pipe would have room for everything.
        time.sleep(0.0002)
    os.close(read)
    assert [writer.wait(10) for writer in writers] == [0, 0, 0]
    return written.decode().splitlines()


def test_lines_longer_than_a_pipe_takes_at_once_stay_whole() -> None:
    lines = [json.loads(line) for line in write_from_three("json")]
    assert Counter(line["worker_process"] for line in lines) == {1: 90, 2: 90, 3: 90}
    assert {len(line["event"]) for line in lines} == {5, 30_000}


def test_text_lines_name_their_process_too() -> None:
    lines = write_from_three("text")
    assert len(lines) == 270
    assert Counter(line.rsplit("worker_process=", 1)[1].strip() for line in lines) == {"1": 90, "2": 90, "3": 90}


@pytest.mark.slow
def test_a_stopped_process_that_has_the_turn_stops_nobody() -> None:
    turn = make_turn()
    assert turn is not None
    fcntl.lockf(turn, fcntl.LOCK_EX)
    started = time.monotonic()
    command = [sys.executable, "-c", WRITER, "1", str(turn), "json"]
    written = subprocess.run(command, stdout=subprocess.PIPE, pass_fds=[turn], timeout=30, check=True).stdout
    os.close(turn)
    assert [json.loads(line)["n"] for line in written.splitlines()] == list(range(90))
    assert PATIENCE_SECONDS < time.monotonic() - started < PATIENCE_SECONDS + limit(5)
