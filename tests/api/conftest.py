"""The API on a real database: called directly, or behind a real server on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest

from fencepost.api.app import Services
from fencepost.api.readiness import Readiness
from fencepost.settings import Settings
from fencepost.store.database import Database
from fencepost.store.jobs import Jobs
from fencepost.store.listing import Listing
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore
from fencepost.telemetry.metrics import Metrics
from tests.api.support import Worker, client_of, registry


@pytest.fixture
def settings() -> Settings:
    return Settings(http_port=0)


@pytest.fixture
def services(settings: Settings, jobs: Jobs, listing: Listing, queues: Queues, database: Database) -> Services:
    """What the API works with; tests that need other settings replace them."""
    return Services(
        settings=settings,
        types=registry().types,
        jobs=jobs,
        listing=listing,
        queues=queues,
        database=database,
        metrics=Metrics(),
        readiness=Readiness(),
    )


@pytest.fixture
async def api(services: Services) -> AsyncIterator[httpx2.AsyncClient]:
    """A client that calls the application directly."""
    async with client_of(services) as client:
        yield client


@pytest.fixture
def worker(worker_store: WorkerStore, queues: Queues) -> Worker:
    """Takes jobs and ends them as a test says."""
    return Worker(worker_store, queues)
