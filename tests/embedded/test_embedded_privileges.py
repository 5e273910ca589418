"""Under which ids the server runs, and that no permission is widened for it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fencepost.embedded import Binaries, EmbeddedPostgres, default_data_dir
from fencepost.embedded.launch import run
from fencepost.embedded.privileges import Identity, choose_identity
from fencepost.errors import EmbeddedError

from .support import QUICK, query


def modes(folder: Path) -> dict[Path, tuple[int, int]]:
    found = {parent: parent.stat() for parent in [folder, *folder.parents]}
    return {parent: (stat.S_IMODE(entry.st_mode), entry.st_uid) for parent, entry in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o700, 0o711])
def test_a_start_changes_no_permission(folder: Path, preferred: Binaries, mode: int) -> None:
    home = folder / "home"
    home.mkdir()
    (home / "data").mkdir()
    (home / "data").chmod(mode)
    home.chmod(mode)
    before = modes(home / "data")
    server = EmbeddedPostgres(home / "data", binaries=preferred.folder, options=QUICK)
    if _can_start_in(home / "data", preferred):
        with server:
            assert query(server, "select 1") == 1
        assert stat.S_IMODE((home / "data" / "postgres").stat().st_mode) == 0o700
    else:
        with pytest.raises(EmbeddedError, match="refuses to run as root"):
            server.start()
    assert modes(home / "data") == before


def _can_start_in(folder: Path, binaries: Binaries) -> bool:
    """Root in a container that forbids user namespaces has no way into a closed folder."""

    def probe(identity: Identity) -> str | None:
        succeeded, output = run([binaries.initdb, "--version"], identity=identity, folder=folder)
        return None if succeeded else output

    try:
        choose_identity(data=folder / "postgres", folder=folder, probe=probe)
    except EmbeddedError:
        return False
    return True


def test_each_refusal_is_in_the_message(folder: Path) -> None:
    tried: list[Identity] = []

    def refuse(identity: Identity) -> str:
        tried.append(identity)
        return f"no entry {len(tried)}"

    with pytest.raises(EmbeddedError) as refusal:
        choose_identity(data=folder / "postgres", folder=folder, probe=refuse)
    assert tried
    for number, identity in enumerate(tried, 1):
        assert f"{identity.title}: no entry {number}" in str(refusal.value)
    assert "DATABASE_URL" in str(refusal.value)


def test_roots_data_stays_roots(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    identity = choose_identity(data=Path("/etc"), folder=folder, probe=lambda _: None)
    assert identity.way.startswith("namespace:")
    assert identity.uid == 0


def test_existing_data_is_served_as_its_owner(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(EmbeddedError, match="belongs to root"):
        choose_identity(data=Path("/etc"), folder=folder, probe=lambda _: None)


def test_a_user_without_a_name_gets_one_in_a_namespace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    tried: list[str] = []

    def refuse(identity: Identity) -> str:
        tried.append(identity.way.partition(":")[0])
        return "no"

    with pytest.raises(EmbeddedError):
        choose_identity(data=folder / "postgres", folder=folder, probe=refuse)
    assert tried == ["namespace", "itself"]


def test_the_default_folder_follows_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_data_dir() == Path("/home/ada/.local/share/fencepost")
    monkeypatch.setenv("XDG_DATA_HOME", "/data/ada")
    assert default_data_dir() == Path("/data/ada/fencepost")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_data_dir() == Path("/var/lib/fencepost")
