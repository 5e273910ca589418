"""What happens to the server, and to its data directory, when its owner ends."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from fencepost.embedded import Binaries, EmbeddedPostgres
from fencepost.errors import EmbeddedError
from tests.patience import limit

from .support import Owner, eventually, query, remember, remembers, serves


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_owner_takes_its_server_along(server: EmbeddedPostgres, owned: Owner, number: signal.Signals) -> None:
    started = owned.wait_until_started()
    assert serves(int(started["pid"]), server)
    owned.process.send_signal(number)
    assert eventually(lambda: not serves(int(started["pid"]), server), seconds=limit(5))


def test_the_next_owner_may_start_at_once(server: EmbeddedPostgres, owned: Owner) -> None:
    started = owned.wait_until_started()
    note = remember(str(started["dsn"]))
    owned.process.kill()  # and not waited for
    server.start()
    assert not serves(int(started["pid"]), server)
    assert remembers(server, note)


@pytest.mark.parametrize("milliseconds", [0, 25, 50, 75])
def test_an_owner_killed_while_starting_is_no_obstacle(
    server: EmbeddedPostgres, owned: Owner, milliseconds: int
) -> None:
    time.sleep(milliseconds / 1000)  # to hit different moments of the start
    owned.process.kill()
    server.start()
    assert query(server, "select 1") == 1


def test_a_server_that_outlived_its_owner_is_ended_by_the_next_start(
    server: EmbeddedPostgres, binaries: Binaries
) -> None:
    owner = Owner.spawn(server, binaries.folder, lingers=True)
    started = owner.wait_until_started()
    note = remember(str(started["dsn"]))
    owner.close()
    assert serves(int(started["pid"]), server)
    server.start()
    assert not serves(int(started["pid"]), server)
    assert remembers(server, note)


def test_a_server_that_somebody_else_started_is_left_alone(server: EmbeddedPostgres, binaries: Binaries) -> None:
    owner = Owner.spawn(server, binaries.folder, lingers=True)
    started = owner.wait_until_started()
    owner.close()
    pid_file = server.data_dir / "postgres" / "postmaster.pid"
    truth = pid_file.read_text()
    lines = truth.splitlines()
    pid_file.write_text("\n".join([*lines[:4], "/run/postgresql", *lines[5:], ""]))
    with pytest.raises(EmbeddedError, match=f"process {started['pid']}, .*DATABASE_URL"):
        server.start()
    assert serves(int(started["pid"]), server)
    pid_file.write_text(truth)
    server.start()
    assert not serves(int(started["pid"]), server)


def test_an_owner_that_just_ends_stops_its_server_first(server: EmbeddedPostgres, owned: Owner) -> None:
    started = owned.wait_until_started()
    assert owned.leave() == 0
    assert not serves(int(started["pid"]), server)
    assert not (server.data_dir / "postgres" / "postmaster.pid").exists()


@pytest.mark.slow
def test_a_second_owner_is_told_who_the_first_is(server: EmbeddedPostgres, owned: Owner) -> None:
    started = owned.wait_until_started()
    with pytest.raises(EmbeddedError) as refusal:
        server.start()
    message = str(refusal.value)
    assert f"Process {owned.process.pid} " in message
    assert str(server.data_dir) in message
    assert "DATA_DIR" in message
    shared = re.search(r"DATABASE_URL='(.*)'", message)
    assert shared is not None
    assert query(shared[1], "select 1") == 1
    assert serves(int(started["pid"]), server)


@pytest.mark.slow
def test_one_process_is_not_two_owners(server: EmbeddedPostgres, binaries: Binaries) -> None:
    server.start()
    second = EmbeddedPostgres(server.data_dir, binaries=binaries.folder)
    began = time.monotonic()
    with pytest.raises(EmbeddedError, match=f"Process {os.getpid()} "):
        second.start()
    assert time.monotonic() - began < limit(10)
    assert query(server, "select 1") == 1


def test_a_forked_child_neither_stops_the_server_nor_keeps_the_lock(
    server: EmbeddedPostgres, binaries: Binaries
) -> None:
    owner = Owner.spawn(server, binaries.folder, forks=True)
    forked = 0
    try:
        started = owner.wait_until_started()
        forked = int(started["forked"])
        assert query(str(started["dsn"]), "select 1") == 1
        owner.process.kill()
        server.start()
        os.kill(forked, 0)
        assert query(server, "select 1") == 1
    finally:
        if forked:
            os.kill(forked, signal.SIGKILL)
        owner.close()
