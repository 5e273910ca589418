"""The service as a process: start, stop, signals, crashes, and what survives them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg
import pytest

from tests.patience import limit
from tests.processes.support import Processes
from tests.service.support import Service, wait_until

QUICK = {"BACKOFF_BASE": "100ms", "RECOVERY_INTERVAL": "200ms", "LEASE_DURATION": "2s", "LEASE_EXTENSION": "true"}
"""Short enough for a test to see a lease run out."""


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A folder for an embedded PostgreSQL; other accounts may pass through, as it needs when we are root."""
    with tempfile.TemporaryDirectory(prefix="fencepost-service-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder) / "data"


@pytest.mark.slow
def test_embedded_data_survives_ctrl_c_and_kill(data_dir: Path) -> None:
    with Service(DATA_DIR=str(data_dir)) as service:
        # Said after where it listens.
        wait_until(lambda: str(data_dir) in "".join(service.said), 5, "it to say where its data is")
        wait_until(lambda: "curl -s http://localhost" in "".join(service.said), 5, "it to say what to try")
        first = service.post({"type": "sleep", "payload": {"duration": "1ms"}})["id"]
        service.wait_for(first, "completed")
        service.signal(signal.SIGINT)
        assert service.wait() == 0
    with Service(DATA_DIR=str(data_dir)) as service:
        assert service.job(first)["status"] == "completed"
        second = service.post({"type": "sleep", "payload": {"duration": "1h"}, "timeout": "2h"})["id"]
        service.wait_until_running(second)
        service.kill()
    # Nothing that the killed one left may stop the next start, even at once.
    with Service(DATA_DIR=str(data_dir), **QUICK) as service:
        assert service.job(first)["status"] == "completed"
        assert service.job(second)["status"] in ("pending", "processing")


@pytest.mark.slow
def test_second_service_on_the_same_data_is_told_what_to_do(data_dir: Path) -> None:
    with Service(DATA_DIR=str(data_dir)) as service:
        other = subprocess.run(
            [sys.executable, "-m", "fencepost", "serve"],
            env={"PATH": "/usr/bin:/bin", "DATA_DIR": str(data_dir), "HTTP_ADDR": "127.0.0.1:0"},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert other.returncode == 6
        assert str(service.process.pid) in other.stderr
        assert "DATA_DIR" in other.stderr
        assert "Traceback" not in other.stderr


@pytest.mark.slow
def test_embedded_server_that_dies_is_started_again(data_dir: Path) -> None:
    with Service(DATA_DIR=str(data_dir), **QUICK) as service:
        first = service.post({"type": "sleep", "payload": {"duration": "1ms"}})["id"]
        service.wait_for(first, "completed")
        pid_file = data_dir / "postgres" / "postmaster.pid"
        killed = pid_file.read_text().splitlines()[0]
        os.kill(int(killed), signal.SIGKILL)

        def replaced() -> bool:
            # The file of the killed one is removed by the next, at any moment.
            with suppress(FileNotFoundError):
                return pid_file.read_text().splitlines()[:1] != [killed]
            return False

        wait_until(replaced, 30, f"postgres {killed} to be replaced")
        short = {"type": "sleep", "payload": {"duration": "1ms"}}
        key = {"Idempotency-Key": "again"}
        wait_until(lambda: service.call("POST", "/jobs", short, **key).status < 300, 30, "the new one to be used")
        second = service.post(short, **key)["id"]
        service.wait_for(second, "completed")


def test_port_in_use_is_said_in_a_sentence(database_url: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [sys.executable, "-m", "fencepost", "serve"],
            env={"PATH": "/usr/bin:/bin", "DATABASE_URL": database_url, "HTTP_ADDR": f"127.0.0.1:{port}"},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert ended.returncode == 2
    assert f"{port}" in ended.stderr
    assert "in use" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"LEASE_DURATION": "10s"}, "LEASE_DURATION"),
        ({"WORKERS": "many"}, "WORKERS"),
        ({"HTTP_ADDR": "8080"}, "HTTP_ADDR"),
        ({"JOB_TIMEOUT": "fast"}, "JOB_TIMEOUT"),
        ({"API_TOKENS_FILE": "/nowhere"}, "API_TOKENS_FILE"),
        ({"SCHEMA": "x" * 51}, "SCHEMA"),
        ({"DATABASE_URL": "foo"}, "DATABASE_URL"),
    ],
)
def test_settings_that_cannot_work_stop_the_start(environment: dict[str, str], words: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "fencepost", "serve"],
        env={"PATH": "/usr/bin:/bin", "DATABASE_URL": "postgresql://127.0.0.1:1/none", **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_schema_that_is_too_new_stops_the_start_and_leaves_nothing_open(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "insert into fencepost.schema_version (number, name, checksum, breaking) values (9999, 'future', 'x', true)"
        )
    for command in ("serve", "worker"):
        ended = subprocess.run(
            [sys.executable, "-W", "always::ResourceWarning", "-m", "fencepost", command],
            env={"PATH": "/usr/bin:/bin", "DATABASE_URL": database_url, "HTTP_ADDR": "127.0.0.1:0"},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert ended.returncode == 4
        assert "step 9999 (future)" in ended.stderr
        assert "Traceback" not in ended.stderr
        assert "ResourceWarning" not in ended.stdout + ended.stderr


@pytest.mark.slow
def test_graceful_stop_in_order(database_url: str, tmp_path: Path) -> None:
    """Running jobs finish, /readyz turns first, requests are served meanwhile, nothing new is claimed."""
    settings = {"DATABASE_URL": database_url, "WORKERS": "2", "DRAIN_DELAY": "3s", "SHUTDOWN_TIMEOUT": "20s"}
    with Processes(tmp_path, **settings) as service:
        running = service.hold(2)
        waiting = service.post({"type": "sleep", "payload": {"duration": "1ms"}})["id"]
        service.signal(signal.SIGTERM)
        # Within the delay, after which nothing is served any more.
        wait_until(lambda: service.call("GET", "/readyz").status == 503, 1, "not ready")
        assert service.call("GET", "/healthz").status == 200
        late = service.post({"type": "sleep", "payload": {"duration": "1ms"}})["id"]
        service.release()
        assert service.wait() == 0
    with Service(DATABASE_URL=database_url, WORKERS="0") as service:
        for job_id in running:
            assert service.job(job_id)["status"] == "completed"
        assert service.job(waiting)["status"] == "pending"
        assert service.job(late)["status"] == "pending"


@pytest.mark.slow
def test_stop_releases_what_does_not_finish_without_costing_an_attempt(database_url: str) -> None:
    with Service(DATABASE_URL=database_url, SHUTDOWN_TIMEOUT="200ms") as service:
        long = service.post({"type": "sleep", "payload": {"duration": "1h"}, "timeout": "2h"})["id"]
        service.wait_until_running(long)
        started = time.monotonic()
        service.signal(signal.SIGTERM)
        assert service.wait() == 0
        assert time.monotonic() - started < limit(5)
    with Service(DATABASE_URL=database_url, WORKERS="0") as service:
        job = service.job(long)
        assert (job["status"], job["attempts"], job["lease_token"]) == ("pending", 0, 1)
        assert [past["outcome"] for past in job["history"]] == ["released"]


def test_idle_service_stops_within_a_second(database_url: str) -> None:
    with Service(DATABASE_URL=database_url) as service:
        started = time.monotonic()
        service.signal(signal.SIGTERM)
        assert service.wait() == 0
        assert time.monotonic() - started < limit(1.5)


def test_second_signal_ends_the_process_at_once(database_url: str) -> None:
    with Service(DATABASE_URL=database_url, SHUTDOWN_TIMEOUT="1h") as service:
        long = service.post({"type": "sleep", "payload": {"duration": "1h"}, "timeout": "2h"})["id"]
        service.wait_until_running(long)
        service.signal(signal.SIGTERM)
        wait_until(lambda: any("stopping" in line for line in service.said), 5, "the first signal to be taken")
        service.signal(signal.SIGTERM)
        assert service.wait(limit(2)) == 128 + signal.SIGTERM


@pytest.mark.slow
def test_kill_of_one_of_two_services_loses_nothing(database_url: str) -> None:
    """Every job still ends, with the attempts it should have: one more for what the killed process was running."""
    common = {"DATABASE_URL": database_url, "WORKERS": "8", **QUICK}
    with Service(**common) as survivor, Service(**common) as victim:
        ids: list[str] = []

        def submit() -> None:
            for number in range(300):
                ids.append(survivor.post({"type": "sleep", "payload": {"duration": f"{number % 40}ms"}})["id"])

        producer = threading.Thread(target=submit)
        producer.start()
        wait_until(lambda: len(victim.events("job finished")) >= 20, 20, "the victim to be in the middle of it")
        victim.kill()
        producer.join(60)
        assert len(ids) == 300
        wait_until(lambda: all(survivor.job(job_id)["status"] == "completed" for job_id in ids), 30, "every job to end")
        unfinished = {line["job_id"] for line in victim.events("job started")}
        unfinished -= {line["job_id"] for line in victim.events("job finished")}
        for job_id in ids:
            job = survivor.job(job_id)
            lost = [past for past in job["history"] if past["outcome"] == "lost"]
            assert job["attempts"] == 1 + len(lost)
            assert len(lost) <= 1
            assert not lost or job_id in unfinished or job["history"]
        assert survivor.call("GET", "/queues/default").body["in_flight"] == 0


@pytest.mark.slow
def test_job_that_kills_its_process_runs_out_of_attempts(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(
        "import os, signal\n"
        "from fencepost import Fencepost\n"
        "app = Fencepost()\n"
        "@app.job\n"
        "async def deadly():\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    common = {"DATABASE_URL": database_url, "PYTHONPATH": str(tmp_path), **QUICK}
    # All requests go to a process that does no work: another one may die before it has answered.
    with Service("deadly:app", **{**common, "WORKERS": "0"}) as api, ExitStack() as workers:
        healthy = [api.post({"type": "sleep", "payload": {"duration": "1ms"}})["id"] for _ in range(10)]
        deadly = api.post({"type": "deadly", "max_attempts": 2})["id"]
        for _ in range(2):
            worker = Service("deadly:app", **common)
            workers.callback(worker.kill)
            assert worker.wait(60) == -signal.SIGKILL
        with Service("deadly:app", **common):
            job = api.wait_for(deadly, "dead_letter")
            assert job["attempts"] == 2
            assert "lease expired" in job["last_error"]
            for job_id in healthy:
                api.wait_for(job_id, "completed")


@pytest.mark.slow
def test_blocked_handler_blocks_no_request_and_keeps_its_lease(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "blocking.py").write_text(
        "import time\n"
        "from fencepost import Fencepost\n"
        "app = Fencepost()\n"
        "@app.job\n"
        "async def block():\n"
        "    time.sleep(6)\n"
    )
    common = {"DATABASE_URL": database_url, **QUICK}
    with (
        Service("blocking:app", PYTHONPATH=str(tmp_path), **common) as service,
        Service("blocking:app", PYTHONPATH=str(tmp_path), **common),
    ):
        job_id = service.post({"type": "block"})["id"]
        service.wait_for(job_id, "processing")
        slowest = 0.0
        while service.job(job_id)["status"] == "processing":
            asked = time.monotonic()
            assert service.call("GET", "/healthz").status == 200
            slowest = max(slowest, time.monotonic() - asked)
        job = service.job(job_id)
        assert (job["status"], job["attempts"], job["history"]) == ("completed", 1, [])
        assert slowest < limit(1)


@pytest.mark.slow
def test_exit_in_a_task_of_a_handler_is_that_jobs_failure_alone(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text(
        "import asyncio, sys\n"
        "from fencepost import Fencepost, Payload\n"
        "app = Fencepost()\n"
        "@app.job\n"
        "async def leave(payload: Payload[str]):\n"
        "    async def child():\n"
        "        await asyncio.sleep(0)\n"
        "        sys.exit(3) if payload == 'exit' else (_ for _ in ()).throw(KeyboardInterrupt)\n"
        "    await asyncio.gather(child(), asyncio.sleep(10))\n"
    )
    with Service("leaving:app", DATABASE_URL=database_url, PYTHONPATH=str(tmp_path)) as service:
        healthy = [service.post({"type": "sleep", "payload": {"duration": "500ms"}})["id"] for _ in range(2)]
        for payload, name in (("exit", "SystemExit"), ("interrupt", "KeyboardInterrupt")):
            job_id = service.post({"type": "leave", "payload": payload, "max_attempts": 1})["id"]
            job = service.wait_for(job_id, "dead_letter")
            assert [past["error_type"] for past in job["history"]] == [name]
        for job_id in healthy:
            assert service.wait_for(job_id, "completed")["attempts"] == 1
        service.signal(signal.SIGTERM)
        assert service.wait() == 0


@pytest.mark.slow
def test_starts_before_its_database_and_finds_it(data_dir: Path) -> None:
    """A database that comes up late is waited for."""
    from fencepost.embedded import EmbeddedPostgres

    server = EmbeddedPostgres(data_dir)
    server.start()
    dsn = server.dsn
    server.stop()
    service = Service(DATABASE_URL=dsn)
    try:
        wait_until(lambda: bool(service.events("waiting for the database")), 20, "it to miss the database")
        server.start()
        service.wait_until_listening()
        job_id = service.post({"type": "sleep", "payload": {"duration": "1ms"}})["id"]
        service.wait_for(job_id, "completed")
    finally:
        service.kill()
        server.stop()


def test_tokens_are_asked_for_and_never_logged(database_url: str) -> None:
    token = "a-token-for-this-test-only"
    with Service(DATABASE_URL=database_url, API_TOKENS=f"other-token-0123456789,{token}") as service:
        assert service.call("GET", "/healthz").status == 200
        refused = service.call("GET", "/jobs")
        assert refused.status == 401
        assert refused.headers["www-authenticate"].startswith("Bearer")
        assert service.call("GET", "/jobs", Authorization=f"Bearer {token}").status == 200
        assert service.call("GET", f"/jobs?token={token}").status == 401
        service.signal(signal.SIGTERM)
        service.wait()
        assert token not in "".join(service.logged + service.said)


def test_address_open_to_others_without_a_token_is_warned_of(database_url: str) -> None:
    with Service(DATABASE_URL=database_url, HTTP_ADDR=":0") as service:
        wait_until(lambda: any("API_TOKENS" in line for line in service.logged), 5, "the warning")


@pytest.mark.slow
def test_load_test_finds_nothing_wrong(database_url: str) -> None:
    with Service(DATABASE_URL=database_url, WORKERS="16", BACKOFF_BASE="50ms") as service:
        ended = subprocess.run(
            [
                sys.executable,
                "-m",
                "fencepost",
                "load-test",
                "--url",
                service.url,
                "--jobs",
                "500",
                "--fail-rate",
                "0.2",
                "--json",
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        report = json.loads(ended.stdout)
        assert report["by_status"] == {"completed": 400, "dead_letter": 100}
        assert report["retries"] == 200
        assert (report["lost"], report["wrong"], report["run_twice"]) == ([], [], [])
        assert report["completion_rate"] == 1.0
