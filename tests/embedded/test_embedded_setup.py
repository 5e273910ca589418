"""The making of the data folder, and its going wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fencepost.embedded import Binaries, EmbeddedPostgres
from fencepost.errors import EmbeddedError

from .support import QUICK, Owner, eventually, query, write_program


@pytest.mark.slow
def test_a_setup_that_was_killed_is_begun_afresh(folder: Path, preferred: Binaries) -> None:
    server = EmbeddedPostgres(folder / "data", binaries=preferred.folder, options=QUICK)
    # Else it might be over before this process has come to kill it.
    owner = Owner.spawn(server, preferred.folder, unfinished=True)
    try:
        assert eventually(lambda: any(server.data_dir.glob("postgres.new-*/base")), seconds=30)
    finally:
        owner.close()
    assert not (server.data_dir / "postgres").exists()
    with server:
        assert query(server, "select 1") == 1
    # The killed one's helpers may have been writing at that time; now they are gone.
    with server:
        assert not list(server.data_dir.glob("postgres.new-*"))


def test_a_failed_setup_shows_what_initdb_said(folder: Path) -> None:
    write_program(folder / "postgres", "echo 'postgres (PostgreSQL) 18.0'")
    write_program(
        folder / "initdb",
        '[ "$1" = --version ] || { echo "could not write: No space left on device"; exit 1; }',
    )
    server = EmbeddedPostgres(folder / "data", binaries=folder)
    with pytest.raises(EmbeddedError, match=r"No space left on device[\s\S]*DATABASE_URL"):
        server.start()
    assert [found.name for found in server.data_dir.iterdir()] == ["fencepost.lock"]


def test_data_of_another_version_names_the_version_it_needs(server: EmbeddedPostgres, binaries: Binaries) -> None:
    pg_version = server.data_dir / "postgres" / "PG_VERSION"
    truth = pg_version.read_text()
    pg_version.write_text("13\n")
    with pytest.raises(EmbeddedError, match=r"Install PostgreSQL 13\b.*DATA_DIR") as refusal:
        server.start()
    pg_version.write_text(truth)
    assert re.search(rf"\b{re.escape(binaries.version)}\b", str(refusal.value))


def test_a_folder_of_somebody_elses_files_is_left_alone(folder: Path, preferred: Binaries) -> None:
    foreign = folder / "data" / "postgres" / "letter.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("dear reader")
    with pytest.raises(EmbeddedError, match="PG_VERSION"):
        EmbeddedPostgres(folder / "data", binaries=preferred.folder).start()
    assert foreign.read_text() == "dear reader"
