"""
The pytest plugin: a database for each test, and a kit on it.

pytest imports this module in every run where fencepost is installed, so it imports
nothing that takes time, and starts nothing before a fixture is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fencepost.app import Fencepost
    from fencepost.settings import Settings
    from fencepost.testing.kit import Kit, MakeKit
    from fencepost.testing.servers import Databases


@pytest.fixture(scope="session")
def _fencepost_databases() -> Iterator[Databases]:
    from fencepost.testing.servers import Databases, server

    with server() as url:
        databases = Databases(url)
        try:
            yield databases
        finally:
            databases.close()


@pytest.fixture
def fencepost_database(_fencepost_databases: Databases) -> Iterator[str]:
    """The address of a database of the test's own, with fencepost's schema and no jobs."""
    with _fencepost_databases.new() as url:
        yield url


@pytest.fixture
def fencepost_kit(fencepost_database: str) -> MakeKit:
    """
    Make a kit for an app, on a database of the test's own.

        def test_it(fencepost_kit):
            with fencepost_kit(app) as kit: ...

        async def test_it(fencepost_kit):
            async with fencepost_kit(app) as kit: ...
    """
    from fencepost.testing.kit import Kit

    def make(app: Fencepost, *, settings: Settings | None = None) -> Kit:
        return Kit(app, fencepost_database, settings=settings)

    return make
