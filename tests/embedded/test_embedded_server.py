"""Starting, stopping and restarting, by the process that owns the server."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from fencepost.embedded import Binaries, EmbeddedPostgres
from fencepost.embedded.launch import shimmed
from fencepost.embedded.privileges import Identity, choose_identity
from fencepost.embedded.server import LOG_LIMIT_BYTES
from fencepost.errors import EmbeddedError

from .conftest import MakeServer
from .support import eventually, query, remember, remembers


@pytest.mark.slow
def test_first_start_sets_up_and_a_restart_keeps_the_data(folder: Path, binaries: Binaries) -> None:
    server = EmbeddedPostgres(folder / "data", binaries=binaries.folder)
    with server:
        assert server.version == binaries.version
        assert query(server, "show server_version_num") == str(_version_number(binaries.version))
        for setting, value in {
            "fsync": "on",
            "synchronous_commit": "on",
            "full_page_writes": "on",
            "data_checksums": "on",
            "server_encoding": "UTF8",
            "timezone": "UTC",
            "listen_addresses": "",
            "max_connections": "100",
        }.items():
            assert query(server, f"show {setting}") == value, setting
        assert query(server, "select rolsuper and current_user = 'fencepost' from pg_roles where rolname = user")
        assert query(server, "select current_database()::text") == "fencepost"
        assert query(server, "select lower('ÄÖ') = 'äö'")
        note = remember(server)
        first_dsn = server.dsn
    assert not server.is_running
    with server:
        assert remembers(server, note)
        assert server.dsn == first_dsn
    assert sorted(found.name for found in server.data_dir.iterdir()) == ["fencepost.lock", "postgres", "server.log"]


def _version_number(version: str) -> int:
    major, minor = version.split(".")[:2]
    return int(major) * 10000 + int(minor)


def test_only_the_owner_can_enter_the_sockets_folder(server: EmbeddedPostgres) -> None:
    server.start()
    socket_folder = Path(parse_qs(urlsplit(server.dsn).query)["host"][0])
    assert stat.S_IMODE(socket_folder.stat().st_mode) == 0o700
    assert server.pid is not None
    assert os.getsid(server.pid) == server.pid, "Ctrl-C in the owner's terminal would reach the server"
    server.stop()
    assert not socket_folder.exists()


def test_a_sockets_folder_that_somebody_else_made_is_not_used(server: EmbeddedPostgres) -> None:
    server.start()
    socket_folder = Path(parse_qs(urlsplit(server.dsn).query)["host"][0])
    server.stop()
    socket_folder.mkdir()
    socket_folder.chmod(0o777)
    try:
        server.start()
        assert f"{socket_folder}&" not in server.dsn
        assert query(server, "select 1") == 1
    finally:
        socket_folder.rmdir()


def test_start_and_stop_may_be_repeated(server: EmbeddedPostgres) -> None:
    server.stop()
    server.start()
    pid = server.pid
    server.start()
    assert server.pid == pid
    server.stop()
    server.stop()
    assert server.pid is None


def test_a_killed_server_starts_again_with_its_data(server: EmbeddedPostgres) -> None:
    server.start()
    note = remember(server)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert eventually(lambda: not server.is_running)
    server.start()
    assert remembers(server, note)


def test_a_start_waits_for_what_is_left_of_a_killed_server(server: EmbeddedPostgres) -> None:
    server.start()
    note = remember(server)
    helper = int(str(query(server, "select pid from pg_stat_activity where backend_type = 'checkpointer'")))
    os.kill(helper, signal.SIGSTOP)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert eventually(lambda: not server.is_running)
    before = server.log_file.read_text().count("still in use")
    start = threading.Thread(target=server.start)
    start.start()
    try:
        assert eventually(lambda: server.log_file.read_text().count("still in use") > before)
    finally:
        os.kill(helper, signal.SIGCONT)
    start.join(timeout=30)
    assert remembers(server, note)


def test_a_server_outlives_the_thread_that_started_it(server: EmbeddedPostgres) -> None:
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    assert query(server, "select 1") == 1
    assert not eventually(lambda: not server.is_running, seconds=0.3)


def test_threads_that_start_at_once_get_one_server(server: EmbeddedPostgres) -> None:
    threads = [threading.Thread(target=server.start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert query(server, "select 1") == 1


def test_a_long_path_with_spaces_works(new_server: MakeServer, prepared: Path) -> None:
    parent = prepared / "with two spaces" / ("long" * 30) / ("longer" * 20)
    parent.mkdir(parents=True)
    (prepared / "data").rename(parent / "data")
    try:
        server = new_server(parent / "data")
        assert len(str(server.data_dir)) > 250
        server.start()
        note = remember(server)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        assert eventually(lambda: not server.is_running)
        server.start()
        assert remembers(server, note)
        server.stop()
    finally:
        (parent / "data").rename(prepared / "data")


def _living(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command)


def _dead_but_not_collected(command: list[str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return process


@pytest.mark.parametrize("spawn", [_living, _dead_but_not_collected])
def test_a_pid_file_that_names_another_process_is_stale(
    server: EmbeddedPostgres, spawn: Callable[[list[str]], subprocess.Popen[bytes]]
) -> None:
    server.start()
    note = remember(server)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert eventually(lambda: not server.is_running)
    # PostgreSQL only minds processes of its own user, so the other one has to be that.
    sleep = shimmed(
        ["/bin/sleep", "60"], identity=_identity(server), folder=server.data_dir, death_signal=signal.SIGKILL
    )
    process = spawn(sleep)
    try:
        pid_file = server.data_dir / "postgres" / "postmaster.pid"
        lines = pid_file.read_text().splitlines()
        pid_file.write_text("\n".join([str(process.pid), *lines[1:], ""]))
        server.start()
        assert remembers(server, note)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("text", ["", "\n", "garbage\n/nowhere\n"])
def test_a_pid_file_that_names_nobody_keeps_nothing_from_starting(server: EmbeddedPostgres, text: str) -> None:
    """As a power cut leaves it, or a disk that was full."""
    server.start()
    note = remember(server)
    server.stop()
    (server.data_dir / "postgres" / "postmaster.pid").write_text(text)
    server.start()
    assert remembers(server, note)


def test_a_pid_file_that_names_nobody_stays_while_somebody_works_there(server: EmbeddedPostgres) -> None:
    server.start()
    data = server.data_dir / "postgres"
    server.stop()
    pid_file = data / "postmaster.pid"
    pid_file.write_text("")
    with subprocess.Popen(["/bin/sleep", "60"], cwd=data) as somebody:
        with pytest.raises(EmbeddedError, match=r"postmaster\.pid"):
            server.start()
        somebody.kill()
    server.start()


def _identity(server: EmbeddedPostgres) -> Identity:
    return choose_identity(data=server.data_dir / "postgres", folder=server.data_dir, probe=lambda _: None)


def test_options_override_the_defaults_but_not_the_privacy(server: EmbeddedPostgres, folder: Path) -> None:
    server.start()
    assert query(server, "show max_connections") == "10"
    with pytest.raises(EmbeddedError, match="listen_addresses"):
        EmbeddedPostgres(folder, options={"listen_addresses": "*"})


def test_a_large_log_is_set_aside(server: EmbeddedPostgres) -> None:
    with server.log_file.open("wb") as log:
        log.truncate(LOG_LIMIT_BYTES + 1)
    server.start()
    assert server.log_file.stat().st_size < 10_000
    assert server.log_file.with_name("server.log.1").stat().st_size > LOG_LIMIT_BYTES


def test_a_failed_start_shows_the_servers_words_and_leaves_nothing_locked(
    server: EmbeddedPostgres, new_server: MakeServer
) -> None:
    with pytest.raises(EmbeddedError, match=r"work_mem[\s\S]*server\.log"):
        new_server(work_mem="plenty").start()
    server.start()
    assert query(server, "select 1") == 1


def test_an_unusable_folder_is_said_to_be_one(new_server: MakeServer, folder: Path) -> None:
    (folder / "file").touch()
    with pytest.raises(EmbeddedError, match="DATA_DIR"):
        new_server(folder / "file" / "data").start()


def test_there_is_no_address_before_the_first_start(server: EmbeddedPostgres) -> None:
    with pytest.raises(EmbeddedError, match=r"start\(\)"):
        _ = server.dsn
