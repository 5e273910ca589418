"""The primary and its standby: whatever is done to them, nothing acknowledged is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from chaos.world import Cluster, Janitor, Proxy, processes
from chaos.world.janitor import python_path
from tests.chaos.world_support import Writers, eventually, open_folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    binaries = Path(os.environ["TEST_BINARIES"]) if "TEST_BINARIES" in os.environ else None
    with open_folder() as folder, Cluster(folder, binaries=binaries, fsync=False) as cluster:
        with cluster.admin() as session:
            session.execute("create table written (writer int, number int)")
            session.execute("grant all on written to app")
        yield cluster


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[Proxy]:
    with Proxy(cluster.socket) as proxy:
        cluster.on_primary(proxy.target)
        yield proxy
        cluster.forget(proxy.target)


@pytest.fixture
def writers(cluster: Cluster, proxy: Proxy) -> Iterator[Writers]:
    with cluster.admin() as session:
        session.execute("truncate written")
    with Writers(proxy.dsn("writers")) as writers:
        yield writers


def kept(cluster: Cluster) -> set[tuple[int, int]]:
    with cluster.admin() as session:
        return {(writer, number) for writer, number in session.execute("select * from written").fetchall()}


@pytest.mark.slow
def test_three_failovers_lose_nothing_that_was_acknowledged(cluster: Cluster, writers: Writers) -> None:
    names = []
    for _ in range(3):
        assert writers.go_on()
        took = cluster.failover()
        names.append(cluster.primary.name)
        assert took.down < 15
        assert cluster.protected
        assert writers.go_on()
    writers.__exit__()
    assert names in (["b", "a", "b"], ["a", "b", "a"])
    assert writers.errors >= 3
    assert writers.acknowledged - kept(cluster) == set()
    # And none was written twice: a row that nobody was told of may be there, once.
    with cluster.admin() as session:
        assert session.execute("select count(*) - count(distinct (writer, number)) from written").fetchone() == (0,)


def test_a_commit_waits_for_the_standby(cluster: Cluster, writers: Writers) -> None:
    assert writers.go_on()
    cluster.pause_standby()
    try:
        with cluster.admin() as session:
            query = "select count(*) from pg_stat_activity where usename = 'app' and wait_event = 'SyncRep'"
            assert eventually(lambda: session.execute(query).fetchone() == (4,))
        known = len(writers.acknowledged)
    finally:
        cluster.resume_standby()
    assert eventually(lambda: len(writers.acknowledged) > known)


def test_a_timeout_does_not_end_that_wait_and_a_cancelled_one_is_caught_up_with(cluster: Cluster) -> None:
    def waiting() -> list[int]:
        with cluster.admin() as session:
            query = "select pid from pg_stat_activity where usename = 'app' and wait_event = 'SyncRep'"
            return [pid for (pid,) in session.execute(query).fetchall()]

    notices: list[str | None] = []
    with psycopg.connect(cluster.dsn, autocommit=True) as session:
        session.add_notice_handler(lambda notice: notices.append(notice.message_primary))
        session.execute("set statement_timeout = '50ms'")
        cluster.pause_standby()
        writer = threading.Thread(target=session.execute, args=("insert into written values (-1, -1)",))
        writer.start()
        assert eventually(lambda: len(waiting()) == 1)
        writer.join(0.3)
        assert writer.is_alive()
        with cluster.admin() as admin:
            admin.execute("select pg_cancel_backend(%s)", (waiting()[0],))
        writer.join(20)
        assert notices == ["canceling wait for synchronous replication due to user request"]
    cluster.failover()
    assert (-1, -1) in kept(cluster)


@pytest.mark.slow
def test_every_way_to_end_the_primary_keeps_what_was_acknowledged(cluster: Cluster, writers: Writers) -> None:
    for hurt in (cluster.kill_postmaster, cluster.kill_all, cluster.crash, cluster.restart):
        assert writers.go_on()
        assert hurt() < 15
        assert not cluster.protected
        cluster.ensure_protected()
        assert writers.go_on()
    writers.__exit__()
    assert writers.acknowledged - kept(cluster) == set()


def test_a_killed_postmaster_is_not_replaced_before_its_last_backend_is_gone(cluster: Cluster) -> None:
    stuck = cluster.admin()
    pid = stuck.info.backend_pid
    assert processes.pause(pid)
    begun = cluster.primary.log_file.stat().st_size
    starting = threading.Thread(target=cluster.kill_postmaster)
    starting.start()

    def refused() -> bool:
        return "still in use" in cluster.primary.log_file.read_text()[begun:]

    assert eventually(refused)
    assert not cluster.primary.is_running or processes.is_alive(pid)
    processes.resume(pid)
    starting.join(30)
    assert not starting.is_alive()
    assert not processes.is_alive(pid)
    with pytest.raises(psycopg.OperationalError):
        stuck.execute("select 1")
    stuck.close()
    with cluster.admin() as session:
        assert session.execute("select 1").fetchone() == (1,)


def test_a_standby_that_was_left_behind_is_made_anew(cluster: Cluster) -> None:
    cluster.standby.discard()
    cluster.restart()
    assert cluster.standby.pid is None
    cluster.ensure_protected()
    assert cluster.protected
    assert cluster.standby.is_running


RUNNER = """
import sys, time
from pathlib import Path
from chaos.world import Cluster, Faults, Proxy
cluster = Cluster(Path(sys.argv[1]), fsync=False, standby=False)
cluster.start()
proxy = Proxy(cluster.socket)
proxy.start()
session = cluster.admin()
print(cluster.primary.socket_folder, session.info.backend_pid, proxy.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_nothing_stays_of_a_runner_that_was_killed() -> None:
    with open_folder() as folder:
        runner = subprocess.Popen(
            [sys.executable, "-c", RUNNER, str(folder)], env=python_path(), stdout=subprocess.PIPE, text=True
        )
        assert runner.stdout is not None
        socket_folder, backend, proxy = runner.stdout.readline().split()
        # A stopped process hears of nothing by itself.
        assert processes.pause(int(backend))
        segment = (folder / "servers/a/postmaster.pid").read_text().splitlines()[6].split()[1]
        assert segment in _segments()
        runner.kill()
        runner.wait()
        runner.stdout.close()
        assert eventually(lambda: not processes.working_in(folder))
        assert eventually(lambda: not (folder / "servers").exists())
        assert eventually(lambda: not Path(socket_folder).exists())
        assert processes.wait_gone([int(backend), int(proxy)], seconds=10) == []
        assert segment not in _segments()


def _segments() -> list[str]:
    """The ids of the System V shared memory that there is."""
    return [line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()]


def test_a_janitor_that_was_dismissed_touches_nothing() -> None:
    with open_folder() as folder:
        janitor = Janitor(folder)
        janitor.dismiss()
        assert folder.exists()
        assert not processes.is_alive(janitor.pid)
