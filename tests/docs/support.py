"""What the API serves, for the pages to be compared with."""

from __future__ import annotations

from fencepost.api.app import Services, operations
from fencepost.settings import Settings
from fencepost.store.database import Database
from fencepost.store.hints import Hints


def routes() -> list[tuple[str, str]]:
    """Method and path of every route."""
    database = Database("postgresql://nowhere/none")
    services = Services.of(Settings(), {}, database, Hints(database))
    return [(operation.method, operation.path) for operation in operations(services)]
