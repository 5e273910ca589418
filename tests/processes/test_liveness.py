"""What probes say of processes that are well, that stand still, and that are gone."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.service.support import wait_until

from .probed import ProbedWorker
from .support import QUICK, Processes, run

TOKEN = "probing-" + "x" * 20


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_worker_answers_probes_and_gives_metrics(database_url: str, tmp_path: Path, processes: str) -> None:
    with ProbedWorker(tmp_path, DATABASE_URL=database_url, PROCESSES=processes, WORKERS="2") as worker:
        assert worker.ask("/healthz").status == 200
        ready = worker.ask("/readyz")
        assert (ready.status, json.loads(ready.body)) == (200, {"status": "ready"})
        for path in ("/jobs", "/queues", "/openapi.json"):
            assert worker.ask(path).status == 404
        assert json.loads(worker.ask("/").body)["routes"] == [
            "GET /",
            "GET /healthz",
            "GET /health",
            "GET /readyz",
            "GET /metrics",
        ]
        wait_until(lambda: 'loop_stuck{loop="dispatcher"} 0.0' in worker.ask("/metrics").body, 8, "its loops")
        metrics = worker.ask("/metrics").body
        for name in ("dispatcher", "settler", "lease_keeper", "recovery", "event_loop", "listener", "pruner"):
            assert f'loop_last_turn_age_seconds{{loop="{name}"}}' in metrics
        assert "queue_depth" in metrics
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0


def test_metrics_of_a_worker_ask_for_a_token_and_probes_do_not(database_url: str, tmp_path: Path) -> None:
    with ProbedWorker(tmp_path, DATABASE_URL=database_url, API_TOKENS=TOKEN) as worker:
        assert worker.ask("/readyz").status == 200
        assert worker.ask("/metrics").status == 401
        assert worker.ask("/metrics", Authorization=f"Bearer {TOKEN}").status == 200


@pytest.mark.slow
def test_an_address_for_probes_that_is_taken_is_named(database_url: str, tmp_path: Path) -> None:
    with ProbedWorker(tmp_path, DATABASE_URL=database_url) as worker:
        ended = run("worker", "--probe-addr", worker.url.removeprefix("http://"), DATABASE_URL=database_url)
        assert ended.returncode == 2
        assert "PROBE_ADDR: port" in ended.stderr
    ended = run("worker", "--probe-addr", "nowhere", DATABASE_URL=database_url)
    assert (ended.returncode, "PROBE_ADDR: must be host:port" in ended.stderr) == (2, True)


@pytest.mark.slow
def test_a_worker_process_that_stands_still_or_is_gone_is_told(database_url: str, tmp_path: Path) -> None:
    with Processes(tmp_path, DATABASE_URL=database_url, PROCESSES="2", WORKERS="1", **QUICK) as service:
        assert service.call("GET", "/readyz").status == 200
        first, second = service.pids
        os.kill(second, signal.SIGSTOP)
        try:
            wait_until(lambda: service.call("GET", "/readyz").status == 503, 40, "not ready")
            answer = service.call("GET", "/readyz")
            assert answer.headers["x-error-code"] == "not_ready"
            assert "the worker process (number 2, which runs jobs) has not come round since" in json.dumps(answer.body)
            assert service.metric('loop_stuck{loop="worker_process"}') == 1
            wait_until(lambda: bool(service.events("a loop is stuck")), 5, "that to be logged")
            (line,) = service.events("a loop is stuck")
            assert (line["loop"], line["level"]) == ("worker_process", "error")
        finally:
            os.kill(second, signal.SIGCONT)
        wait_until(lambda: service.call("GET", "/readyz").status == 200, 10, "ready again")
        wait_until(lambda: bool(service.events("a loop goes on again")), 5, "that to be logged")
        # One that is replaced at once isn't worth a word.
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: len(service.pids) == 3, 10, "a successor")
        assert service.call("GET", "/readyz").status == 200
        # One that can't come up again is: the module of its jobs is broken by now.
        (tmp_path / "broken").touch()
        os.kill(second, signal.SIGKILL)
        wait_until(lambda: service.call("GET", "/readyz").status == 503, 40, "not ready")
        body = json.dumps(service.call("GET", "/readyz").body)
        assert re.search(r"number \d, which runs jobs", body)
        assert "it ended by itself: exit code 3" in body
        (tmp_path / "broken").unlink()
        wait_until(lambda: service.call("GET", "/readyz").status == 200, 60, "ready again")


@pytest.mark.slow
def test_a_process_that_stood_still_longer_than_a_lease_stops_its_handler_at_once(
    database_url: str, tmp_path: Path
) -> None:
    """SIGSTOP, then SIGCONT, as a laptop's lid or a live migration does. Somebody else has the job by then."""
    lease = 2.0
    (tmp_path / "clocked.py").write_text(
        "import asyncio, os, time\n"
        "from pathlib import Path\n"
        "from fencepost import Fencepost\n"
        "app = Fencepost()\n"
        "@app.job(timeout=3600)\n"
        "async def ticking():\n"
        "    file = Path(__file__).parent / f'ticks-{os.getpid()}'\n"
        "    while not (Path(__file__).parent / 'release').exists():\n"
        "        file.write_text(str(time.monotonic()))\n"
        "        await asyncio.sleep(0.01)\n"
        "    return os.getpid()\n"
    )

    class Clocked(Processes):
        def __init__(self, folder: Path, **environment: str) -> None:
            self.folder = folder
            super(Processes, self).__init__("clocked:app", PYTHONPATH=str(folder), **environment)

    settings = {**QUICK, "LEASE_DURATION": f"{lease:g}s", "DATABASE_URL": database_url, "POLL_INTERVAL": "200ms"}
    with Clocked(tmp_path, **settings) as service:
        pid = service.process.pid
        ticks = tmp_path / f"ticks-{pid}"
        job_id = service.post({"type": "ticking"})["id"]
        wait_until(ticks.exists, 10, "the job to run")
        os.kill(pid, signal.SIGSTOP)
        with Clocked(tmp_path, **settings) as other:
            wait_until((tmp_path / f"ticks-{other.process.pid}").exists, 3 * lease + 20, "the other one to run it")
            resumed_at = time.monotonic()
            os.kill(pid, signal.SIGCONT)
            wait_until(lambda: bool(service.events("job finished")), 10, "the first one to give it up")
            time.sleep(0.2)
            ran_on = float(ticks.read_text()) - resumed_at
            assert ran_on < 1.5, "it ran on beside the other one"
            assert service.events("job finished")[0]["outcome"] == "lost"
            (tmp_path / "release").touch()
            wait_until(lambda: other.job(job_id)["status"] == "completed", 10, "the job to end")
            job = other.job(job_id)
            assert (job["attempts"], job["result"]) == (2, other.process.pid), "what is stale was written"
            # Both go on, and both are well.
            again = service.post({"type": "ticking"})["id"]
            wait_until(lambda: service.job(again)["status"] == "completed", 10, "another job")
            wait_until(lambda: service.call("GET", "/readyz").status == 200, 5, "ready")
        print(f"ran on for {ran_on:.3f} s after SIGCONT")
