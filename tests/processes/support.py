"""Commands with worker processes under them, and job types to see those with."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.service.support import START_SECONDS, Service, wait_until

QUICK = {"BACKOFF_BASE": "100ms", "RECOVERY_INTERVAL": "200ms", "LEASE_DURATION": "2s", "LEASE_EXTENSION": "true"}
"""Short enough for a test to see a lease run out."""

MODULE = """
import asyncio, os, sys, time
from pathlib import Path
from fencepost import Fencepost, Payload

FOLDER = Path(__file__).parent
if (FOLDER / "broken").exists():
    os._exit(3)
if (FOLDER / "slow").exists() and "fencepost.cli.processes.child" in sys.orig_argv:
    (FOLDER / f"importing-{os.getpid()}").touch()
    time.sleep(3600)
app = Fencepost()

@app.job
async def pid():
    await asyncio.sleep(0.1)
    return os.getpid()

@app.job
async def hold(payload: Payload[str]):
    (FOLDER / f"holding-{payload}").write_text(str(os.getpid()))
    while not (FOLDER / "release").exists():
        await asyncio.sleep(0.02)
    return os.getpid()

@app.job
async def babble(payload: Payload[str]):
    # On the link of its process, whose descriptor is the last word of the command.
    (FOLDER / "babbling").touch()
    while not (FOLDER / "release").exists():
        await asyncio.sleep(0.02)
    os.write(int(sys.orig_argv[-1]), payload.encode() + b"\\n")
    await asyncio.sleep(3600)
"""


class Processes(Service):
    """A running `fencepost serve` with worker processes, which run the jobs of MODULE."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.folder = folder
        (folder / "held.py").write_text(MODULE)
        super().__init__("held:app", *arguments, PYTHONPATH=str(folder), **environment)

    def __exit__(self, *_: object) -> None:
        (self.folder / "release").touch()
        self.kill()
        self.wait_until_gone()

    @property
    def pids(self) -> list[int]:
        """The worker processes that were started, in their order."""
        return [line["pid"] for line in self.events("worker process started")]

    def wait_until_gone(self, seconds: float = 10) -> None:
        """Until no worker process is left."""
        wait_until(lambda: all(map(gone, self.pids)), seconds, "the worker processes to be gone")

    def hold(self, count: int) -> dict[str, int]:
        """Start so many jobs that run until `release`; returns in which process each runs."""
        ids = [self.post({"type": "hold", "payload": str(place), "timeout": "1h"})["id"] for place in range(count)]
        files = [self.folder / f"holding-{place}" for place in range(count)]
        wait_until(lambda: all(file.exists() and file.read_text() for file in files), 10, "the jobs to run")
        return {job_id: int(file.read_text()) for job_id, file in zip(ids, files, strict=True)}

    def release(self) -> None:
        """Let the jobs that are held end."""
        (self.folder / "release").touch()

    def metric(self, name: str) -> float:
        """The value of a metric, by its name and labels as they are written."""
        [value] = re.findall(rf"^{re.escape(name)} (\S+)$", self.call("GET", "/metrics").body, re.M)
        return float(value)


class WorkerCommand(Processes):
    """A running `fencepost worker`."""

    command = "worker"

    def wait_until_listening(self) -> None:
        """Until it has said that it works."""

        def greeted() -> bool:
            assert self.process.poll() is None, self.said
            return any("no API" in line for line in list(self.said))

        wait_until(greeted, START_SECONDS, "the worker to start")


def gone(pid: int) -> bool:
    """Whether the process has ended; whether somebody has asked for its exit code doesn't matter."""
    seen = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return seen.stdout.strip() in ("", "Z") or seen.stdout.startswith("Z")


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "fencepost", *words],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "HTTP_ADDR": "127.0.0.1:0", **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@contextmanager
def hangups_ignored() -> Iterator[None]:
    """As `nohup` leaves it to the commands that are started meanwhile."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
