"""The API put together: what it needs, its layers, its routes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from fencepost.api.auth import Guard
from fencepost.api.http import ASGIApp
from fencepost.api.jobs import JobViews
from fencepost.api.middleware import Outer
from fencepost.api.openapi import document
from fencepost.api.operations import Operations
from fencepost.api.queues import QueueViews
from fencepost.api.readiness import Readiness
from fencepost.api.routes import Operation, Routes
from fencepost.api.shared import Shared
from fencepost.api.submission import Submissions
from fencepost.api.table import job_routes, operation_routes, queue_routes, submission_routes
from fencepost.domain.requests import Rules
from fencepost.settings import Settings
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.listing import Listing
from fencepost.store.queues import Queues
from fencepost.telemetry.metrics import Metrics
from fencepost.types.jobtype import JobType

BODY_SECONDS = 30.0
"""How long a request's body may take to arrive."""
SHARED_SECONDS = 1.0
"""How old what many ask for may be: the overview of the queues, the database's sign of life."""


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """What the API works with. All of it belongs to one event loop."""

    settings: Settings
    types: Mapping[str, JobType]
    """The registered job types."""
    jobs: Jobs
    listing: Listing
    queues: Queues
    database: Database
    metrics: Metrics
    readiness: Readiness

    @classmethod
    def of(
        cls,
        settings: Settings,
        types: Mapping[str, JobType],
        database: Database,
        hints: Hints,
        *,
        metrics: Metrics | None = None,
        jobs: type[Jobs] = Jobs,
    ) -> Services:
        """Put them together over one database, with what stores *jobs*."""
        queues = Queues(database, hints)
        return cls(
            settings=settings,
            types=types,
            jobs=jobs(database, queues, hints),
            listing=Listing(database, queues),
            queues=queues,
            database=database,
            metrics=metrics or Metrics(),
            readiness=Readiness(),
        )


def create_app(
    services: Services, *, body_seconds: float = BODY_SECONDS, allowed_hosts: Collection[str] = ()
) -> ASGIApp:
    """
    Make the API.

    *allowed_hosts* are answered to beside localhost while no token is set and the API
    listens on loopback.
    """
    return Outer(
        Guard(services.settings, allowed_hosts=allowed_hosts),
        Routes(operations(services)),
        times=services.metrics,
        readiness=services.readiness,
        body_seconds=body_seconds,
    )


def create_probes(
    settings: Settings, *, readiness: Readiness, database: Database, queues: Queues, metrics: Metrics
) -> ASGIApp:
    """Make what answers a worker's probes: the API's routes for machines, under its rules, and no others."""
    overview = Shared(queues.overview, seconds=SHARED_SECONDS)
    machine = Operations(readiness, Shared(database.ping, seconds=SHARED_SECONDS), overview, metrics)
    table = [operation for operation in operation_routes(machine) if operation.path != "/openapi.json"]
    machine.routes.extend(f"{operation.method} {operation.path}" for operation in table)
    return Outer(Guard(settings), Routes(table), times=metrics, readiness=readiness, body_seconds=BODY_SECONDS)


def operations(services: Services) -> list[Operation]:
    """The table of routes, bound to *services*."""
    settings = services.settings
    rules = Rules(types=services.types, max_attempts=settings.max_attempts, payload_bytes=settings.max_payload_bytes)
    overview = Shared(services.queues.overview, seconds=SHARED_SECONDS)
    machine = Operations(
        services.readiness, Shared(services.database.ping, seconds=SHARED_SECONDS), overview, services.metrics
    )
    table = [
        *submission_routes(Submissions(services.jobs, rules, services.metrics)),
        *job_routes(JobViews(services.jobs, services.listing, services.metrics)),
        *queue_routes(QueueViews(services.queues, overview)),
        *operation_routes(machine),
    ]
    machine.routes.extend(f"{operation.method} {operation.path}" for operation in table)
    machine.document = document(table, types=services.types)
    return table
