"""What machines ask for: probes, metrics, the description of the API."""

from __future__ import annotations

import asyncio

import fencepost
from fencepost.api.http import HttpError, Request, Response, answer
from fencepost.api.readiness import Readiness
from fencepost.api.schemas import Index, State
from fencepost.api.shared import Shared
from fencepost.errors import DatabaseUnavailable
from fencepost.store.queues import QueueState
from fencepost.telemetry.metrics import CONTENT_TYPE, Metrics

SCRAPE_SECONDS = 2.0
"""How long a scrape waits for the queues; then it answers without them."""


class Operations:
    """The routes for machines."""

    def __init__(
        self,
        readiness: Readiness,
        database: Shared[None],
        overview: Shared[list[QueueState]],
        metrics: Metrics,
    ) -> None:
        self._readiness = readiness
        self._database = database
        self._overview = overview
        self._metrics = metrics
        self.routes: list[str] = []
        """What the index lists; filled in once the table of routes is made."""
        self.document = b""
        """The OpenAPI document; the same."""

    async def index(self, request: Request) -> Response:
        """Say what is here."""
        return answer(Index("fencepost", fencepost.__version__, self.routes))

    async def healthz(self, request: Request) -> Response:
        """Say that this process answers. Touches nothing else."""
        return answer(State("ok"))

    async def readyz(self, request: Request) -> Response:
        """Say whether this process wants requests: it isn't draining, the database answers, and no loop is stuck."""
        if self._readiness.reason is not None:
            raise HttpError(503, "not_ready", self._readiness.reason)
        # First, for it is most often the reason of the other.
        await self._database.get()
        trouble = self._readiness.trouble
        if trouble is not None:
            raise HttpError(503, "not_ready", trouble)
        return answer(State("ready"))

    async def metrics(self, request: Request) -> Response:
        """Give the metrics to Prometheus."""
        try:
            async with asyncio.timeout(SCRAPE_SECONDS):
                states: list[QueueState] | None = await self._overview.get()
        except (DatabaseUnavailable, TimeoutError):
            states = None
        return Response(200, self._metrics.exposition(states), [(b"content-type", CONTENT_TYPE.encode())])

    async def openapi(self, request: Request) -> Response:
        """Describe the API."""
        return Response(200, self.document, [(b"content-type", b"application/json")])
