"""Worker processes under one parent: where jobs run, deaths, signals, what is counted."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from tests.patience import limit
from tests.processes.support import QUICK, Processes, gone
from tests.service.support import Service, wait_until


@pytest.mark.slow
def test_a_killed_process_is_replaced_and_nothing_is_lost_or_miscounted(database_url: str, tmp_path: Path) -> None:
    with Processes(tmp_path, "--processes", "2", DATABASE_URL=database_url, WORKERS="2", **QUICK) as service:
        assert any("2 workers in each of 2 processes" in line for line in service.said)
        ran = 0
        ran_in: set[int] = set()

        def both_have_run_some() -> bool:
            nonlocal ran
            # Again, should one of them stand still while the other runs them all.
            ids = [service.post({"type": "pid"})["id"] for _ in range(12)]
            ran_in.update(service.wait_for(job_id, "completed")["result"] for job_id in ids)
            ran += len(ids)
            return ran_in == set(service.pids)

        wait_until(both_have_run_some, 5, "both to run some")
        assert service.process.pid not in ran_in

        def numbers() -> set[int]:
            return {line["worker_process"] for line in service.events("job finished")}

        wait_until(lambda: numbers() == {1, 2}, 5, "both to tell of it")
        wait_until(lambda: service.metric("jobs_completed_total") == ran, 5, "both to report")
        assert service.metric('job_processing_duration_seconds_bucket{le="0.05",outcome="succeeded"}') == 0
        assert service.metric('job_processing_duration_seconds_bucket{le="+Inf",outcome="succeeded"}') == ran

        held = service.hold(4)
        assert sorted(Counter(held.values()).values()) == [2, 2]
        wait_until(lambda: service.metric("active_workers") == 4, 5, "the busy slots to be reported")
        victim = service.pids[0]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(service.pids) == 3, 10, "another process")
        [ended] = service.events("worker process ended; starting another")
        assert (ended["worker_process"], ended["pid"], ended["ended_by"]) == (1, victim, "SIGKILL")
        assert 0 < ended["uptime_seconds"] < 60
        assert service.call("GET", "/readyz").status == 200
        wait_until(lambda: service.metric("jobs_recovered_total") == 2, 15, "its jobs to be taken back")
        service.release()
        for job_id, pid in held.items():
            job = service.wait_for(job_id, "completed")
            assert job["attempts"] == (2 if pid == victim else 1)
            assert job["result"] != victim
        wait_until(lambda: service.metric("jobs_completed_total") == ran + 4, 5, "the rest to be reported")
        assert service.metric('job_processing_duration_seconds_count{outcome="succeeded"}') == ran + 4
        wait_until(lambda: service.metric("active_workers") == 0, 5, "the free slots to be reported")
        wait_until(lambda: service.metric("jobs_in_flight") == 0, 5, "a fresh look at the queues")
        assert service.metric("worker_processes") == 2
        assert service.metric("worker_process_ends_total") == 1


@pytest.mark.slow
def test_every_kind_of_end_is_counted_in_the_parent(database_url: str, tmp_path: Path) -> None:
    with Processes(tmp_path, DATABASE_URL=database_url, PROCESSES="2", **QUICK) as service:
        for _ in range(3):
            service.post({"type": "fail_test", "max_attempts": 2})
        service.post({"type": "sleep", "payload": {"duration": "soon"}})
        wanted = {'jobs_failed_total{status="dead_letter"}': 3, 'jobs_failed_total{status="failed"}': 1}
        wanted |= {"jobs_retried_total": 3, 'job_processing_duration_seconds_count{outcome="failed"}': 6}
        wait_until(lambda: all(service.metric(name) == value for name, value in wanted.items()), 15, str(wanted))


@pytest.mark.slow
def test_crash_loop_is_paused_and_harms_neither_parent_nor_siblings(database_url: str, tmp_path: Path) -> None:
    name = "worker process ended; starting another"
    with Processes(tmp_path, DATABASE_URL=database_url, PROCESSES="2", WORKERS="1", **QUICK) as service:
        (tmp_path / "broken").touch()
        os.kill(service.pids[1], signal.SIGKILL)
        wait_until(lambda: len(service.events(name)) >= 3, 20, "it to end three times")
        (tmp_path / "broken").unlink()
        ends = service.events(name)[:3]
        assert [end["ended_by"] for end in ends] == ["SIGKILL", "exit code 3", "exit code 3"]
        assert [end["restart_in_seconds"] for end in ends] == [0.5, 1.0, 2.0]
        assert {end["worker_process"] for end in ends} == {2}
        starts = [line for line in service.events("worker process started") if line["worker_process"] == 2]
        for end, start in zip(ends, starts[1:], strict=False):
            waited = datetime.fromisoformat(start["timestamp"]) - datetime.fromisoformat(end["timestamp"])
            assert waited.total_seconds() >= end["restart_in_seconds"] - 0.05
        only = service.post({"type": "pid"})["id"]
        assert service.wait_for(only, "completed")["result"] == service.pids[0]
        # Two slots in all: both jobs run at once only if the second process is back.
        assert len(set(service.hold(2).values())) == 2


@pytest.mark.slow
@pytest.mark.parametrize("reached", ["the parent", "its group, as by Ctrl-C", "every process, as by systemd"])
def test_stop_lets_running_jobs_finish(database_url: str, tmp_path: Path, reached: str) -> None:
    with Processes(
        tmp_path, DATABASE_URL=database_url, PROCESSES="2", WORKERS="1", DRAIN_DELAY="3s", SHUTDOWN_TIMEOUT="20s"
    ) as service:
        held = service.hold(2)
        if reached == "the parent":
            service.signal(signal.SIGTERM)
        elif reached == "its group, as by Ctrl-C":
            assert {os.getpgid(pid) for pid in held.values()} == set(held.values())
            os.kill(service.process.pid, signal.SIGINT)
        else:
            for pid in (*held.values(), service.process.pid):
                os.kill(pid, signal.SIGTERM)
        # Within the delay, after which nothing is served any more.
        wait_until(lambda: service.call("GET", "/readyz").status == 503, 3, "not ready")
        late = service.post({"type": "pid"})["id"]
        # They have all been told, by word and perhaps by signal, and still run their jobs.
        wait_until(lambda: len(service.events("stopping")) == 3, 5, "parent and processes to drain")
        assert not any(map(gone, held.values()))
        service.release()
        assert service.wait() == 0
        assert all(map(gone, service.pids))
        assert len(service.pids) == 2
        assert not any('"level":"error"' in line for line in service.logged)
    with Service(DATABASE_URL=database_url, WORKERS="0") as service:
        for job_id, pid in held.items():
            job = service.job(job_id)
            assert (job["status"], job["attempts"], job["result"]) == ("completed", 1, pid)
        assert service.job(late)["status"] == "pending"


@pytest.mark.slow
def test_stop_releases_what_does_not_finish_without_costing_an_attempt(database_url: str, tmp_path: Path) -> None:
    with Processes(
        tmp_path, DATABASE_URL=database_url, PROCESSES="2", WORKERS="1", SHUTDOWN_TIMEOUT="200ms"
    ) as service:
        held = service.hold(2)
        started = time.monotonic()
        service.signal(signal.SIGINT)
        assert service.wait() == 0
        assert time.monotonic() - started < limit(5)
        assert service.events("stopped")[0]["handlers_left"] == 0
    with Service(DATABASE_URL=database_url, WORKERS="0") as service:
        for job_id in held:
            job = service.job(job_id)
            assert (job["status"], job["attempts"]) == ("pending", 0)


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_stops_is_told_of(database_url: str, tmp_path: Path) -> None:
    with Processes(tmp_path, DATABASE_URL=database_url, PROCESSES="1", SHUTDOWN_TIMEOUT="1h") as service:
        [pid] = service.hold(1).values()
        service.signal(signal.SIGTERM)
        wait_until(lambda: len(service.events("stopping")) == 2, 5, "parent and process to drain")
        os.kill(pid, signal.SIGKILL)
        assert service.wait() == 0
        [said] = service.events("worker process ended without giving its jobs back; their leases run out")
        assert (said["pid"], said["ended_by"]) == (pid, "SIGKILL")
        assert service.pids == [pid]


def test_second_signal_ends_everything_at_once(database_url: str, tmp_path: Path) -> None:
    with Processes(tmp_path, DATABASE_URL=database_url, PROCESSES="2", SHUTDOWN_TIMEOUT="1h") as service:
        service.hold(2)
        service.signal(signal.SIGTERM)
        wait_until(lambda: any("stopping" in line for line in service.said), 5, "the first signal to be taken")
        service.signal(signal.SIGTERM)
        assert service.process.wait(limit(2)) == 128 + signal.SIGTERM
        service.wait_until_gone(1)


@pytest.mark.slow
def test_processes_whose_parent_is_killed_finish_their_jobs_and_go(database_url: str, tmp_path: Path) -> None:
    with Processes(tmp_path, DATABASE_URL=database_url, PROCESSES="2", WORKERS="1") as service:
        [(job_id, pid)] = service.hold(1).items()
        service.process.kill()
        wait_until(lambda: len(service.events("the parent process is gone; stopping")) == 2, 5, "both to notice")
        [idle] = set(service.pids) - {pid}
        wait_until(lambda: gone(idle), 5, "the idle one to be gone")
        assert not gone(pid)
        service.release()
        service.wait_until_gone(5)
    with Service(DATABASE_URL=database_url, WORKERS="0") as service:
        job = service.job(job_id)
        assert (job["status"], job["attempts"], job["result"]) == ("completed", 1, pid)


@pytest.mark.slow
def test_a_process_that_is_asked_to_stop_finishes_its_job_and_is_replaced(database_url: str, tmp_path: Path) -> None:
    with Processes(tmp_path, DATABASE_URL=database_url, PROCESSES="1", WORKERS="1", **QUICK) as service:
        [(job_id, pid)] = service.hold(1).items()
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: bool(service.events("stopping")), 5, "it to claim no more")
        waiting = service.post({"type": "pid"})["id"]
        service.release()
        assert service.wait_for(waiting, "completed")["result"] == service.pids[1] != pid
        job = service.job(job_id)
        assert (job["status"], job["attempts"], job["result"]) == ("completed", 1, pid)
        # The one that went has told what it did to the last.
        wait_until(lambda: service.metric("jobs_completed_total") == 2, 5, "both jobs to be counted")
        [ended] = service.events("worker process ended; starting another")
        assert (ended["ended_by"], ended["level"]) == ("exit code 0", "warning")


@pytest.mark.slow
def test_parent_that_stands_still_holds_nobody_up(database_url: str, tmp_path: Path) -> None:
    with Processes(tmp_path, DATABASE_URL=database_url, PROCESSES="2", WORKERS="1", **QUICK) as service:
        for _ in range(20):
            service.post({"type": "pid"})
        service.signal(signal.SIGSTOP)
        wait_until(lambda: len(service.events("job finished")) == 20, 15, "the jobs to be run all the same")
        service.signal(signal.SIGCONT)
        wait_until(lambda: service.metric("jobs_completed_total") == 20, 5, "the parent to have heard of all")
        assert len(service.pids) == 2


@pytest.mark.slow
def test_password_is_on_no_command_line(database_url: str, tmp_path: Path) -> None:
    import subprocess

    with Processes(tmp_path, DATABASE_URL=database_url, PROCESSES="1") as service:
        [pid] = service.pids
        shown = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=True)
        assert "fencepost.cli.processes.child" in shown.stdout
        assert "postgres" not in shown.stdout.replace("fencepost", "")
