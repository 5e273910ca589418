"""What the API serves, for the pages to be compared with."""

from __future__ import annotations

from fencepost.api.app import Services, operations
from fencepost.api.readiness import Readiness
from fencepost.settings import Settings
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.listing import Listing
from fencepost.store.queues import Queues
from fencepost.telemetry.metrics import Metrics


def routes() -> list[tuple[str, str]]:
    """Method and path of every route."""
    database = Database("postgresql://nowhere/none")
    hints = Hints(database)
    queues = Queues(database, hints)
    services = Services(
        settings=Settings(),
        types={},
        jobs=Jobs(database, queues, hints),
        listing=Listing(database, queues),
        queues=queues,
        database=database,
        metrics=Metrics(),
        readiness=Readiness(),
    )
    return [(operation.method, operation.path) for operation in operations(services)]
