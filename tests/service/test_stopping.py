"""A stop ends in time, whatever handlers, lifespans and clients do."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import psycopg
import pytest

from fencepost.cli.endings import LEFT_SECONDS
from tests.patience import limit

from .support import START_SECONDS, Service, wait_until

pytestmark = pytest.mark.slow

HANGS_AT_THE_START = """
import asyncio, contextlib
from pathlib import Path
from fencepost import Fencepost

@contextlib.asynccontextmanager
async def lifespan(app):
    Path(__file__).with_name("opening").touch()
    {how}
    yield

app = Fencepost(lifespan=lifespan)
"""
LEAVES_A_THREAD = """
import asyncio, time
from pathlib import Path
from fencepost import Fencepost

app = Fencepost()

def stay():
    Path(__file__).with_name("staying").touch()
    time.sleep(600)

@app.job
async def work():
    await asyncio.to_thread(stay)

@app.job
async def cancels_all():
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()
"""


class Worker(Service):
    """A running `fencepost worker`, which listens nowhere."""

    command = "worker"


@pytest.mark.parametrize("command", [Service, Worker])
@pytest.mark.parametrize("processes", ["0", "1"])
@pytest.mark.parametrize("how", ["await asyncio.sleep(3600)", "import time; time.sleep(3600)"])
def test_a_lifespan_that_never_opens_keeps_nobody_from_stopping(
    database_url: str, tmp_path: Path, command: type[Service], processes: str, how: str
) -> None:
    (tmp_path / "hanging.py").write_text(HANGS_AT_THE_START.format(how=how))
    environment = {"DATABASE_URL": database_url, "PROCESSES": processes, "PYTHONPATH": str(tmp_path)}
    service = command("hanging:app", SHUTDOWN_TIMEOUT="1s", **environment)
    try:
        wait_until((tmp_path / "opening").exists, START_SECONDS, "the lifespan to be entered")
        service.signal(signal.SIGTERM)
        assert service.wait(limit(8)) == 0
    finally:
        service.kill()


def test_a_thread_that_a_handler_has_left_does_not_keep_the_process(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(LEAVES_A_THREAD)
    environment = {"DATABASE_URL": database_url, "PYTHONPATH": str(tmp_path)}
    with Service("leaves:app", SHUTDOWN_TIMEOUT="100ms", **environment) as service:
        job_id = service.post({"type": "work"})["id"]
        wait_until((tmp_path / "staying").exists, 20, "the thread to be there")
        service.signal(signal.SIGTERM)
        assert service.wait(limit(LEFT_SECONDS + 5)) == 0
    with Service(DATABASE_URL=database_url, WORKERS="0") as service:
        job = service.job(job_id)
        assert (job["status"], job["attempts"]) == ("pending", 0)


def test_a_slow_client_takes_none_of_the_time_in_which_jobs_are_given_back(database_url: str) -> None:
    """
    a client                    the service                     a job
    begins a request
                                is told to stop
    doesn't go on               waits for it                    runs on
                                SHUTDOWN_TIMEOUT is over:
                                for both
    """
    timeout = 8.0
    with Service(DATABASE_URL=database_url, SHUTDOWN_TIMEOUT=f"{timeout:g}s") as service:
        job_id = service.post({"type": "sleep", "payload": {"duration": "1h"}, "timeout": "2h"})["id"]
        service.wait_until_running(job_id)
        host, port = service.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            head = "POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n"
            client.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
            assert client.recv(100).startswith(b"HTTP/1.1 100"), "it is read"
            service.signal(signal.SIGTERM)
            began = time.monotonic()
            assert service.wait(4 * timeout) == 0
            assert timeout - 1 < time.monotonic() - began < 2 * timeout - 1
    with Service(DATABASE_URL=database_url, WORKERS="0") as service:
        job = service.job(job_id)
        assert (job["status"], job["attempts"]) == ("pending", 0)


def test_a_worker_that_fails_ends_its_process_though_a_thread_goes_on(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(LEAVES_A_THREAD)
    environment = {"DATABASE_URL": database_url, "PYTHONPATH": str(tmp_path)}
    with Service("fails:app", SHUTDOWN_TIMEOUT="100ms", **environment) as service:
        service.post({"type": "work"})
        wait_until((tmp_path / "staying").exists, 20, "the thread to be there")
        # Not by a request, which would be among what is cancelled if its job begins before it is answered.
        with psycopg.connect(database_url) as connection:
            connection.execute("select fencepost.enqueue('cancels_all')")
        assert service.wait(limit(LEFT_SECONDS + 5)) == 1
