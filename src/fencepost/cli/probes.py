"""
Probes and metrics of `fencepost worker`, which has no API.

They are served in the main thread's event loop, beside which the worker has a thread of its
own: a handler that blocks its loop blocks no probe.
"""

from __future__ import annotations

import asyncio
from typing import Self

import msgspec

from fencepost.api.app import create_probes
from fencepost.api.readiness import Readiness
from fencepost.api.server import bind_socket, make_server
from fencepost.settings import Settings
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from fencepost.store.queues import Queues
from fencepost.telemetry.metrics import Metrics
from fencepost.telemetry.pulses import Look

CONNECTIONS = 2
"""What probes and scrapes open at the most."""


class Probes:
    """/healthz, /readyz and /metrics at PROBE_ADDR, under the rules of the API's."""

    def __init__(self, settings: Settings) -> None:
        """Listen, so that an address that can't be had is known before anything starts. Raises InvalidSettings."""
        self.metrics = Metrics()
        self._settings = msgspec.structs.replace(settings, http_host=settings.probe_host, http_port=settings.probe_port)
        self._listening = bind_socket(self._settings, setting="PROBE_ADDR")
        self.readiness = Readiness()
        self._database: Database | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where they are."""
        host, port = self._listening.getsockname()[:2]
        return f"{host}:{port}"

    async def start(self, dsn: str, look: Look) -> Self:
        """Answer from now on. Raises DatabaseUnavailable."""
        self._database = database = Database(dsn, schema=self._settings.schema, connections=CONNECTIONS)
        await database.open()
        self.readiness.watch(look)
        self.metrics.watch(self.readiness.look)
        app = create_probes(
            self._settings,
            readiness=self.readiness,
            database=database,
            queues=Queues(database, Hints(database)),
            metrics=self.metrics,
        )
        self._server = make_server(app, self._settings)
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listening]), name="fencepost-probes")
        return self

    async def stop(self) -> None:
        """Close."""
        if self._serving is not None:
            self._server.stop()
            await asyncio.wait([self._serving], timeout=2)
            self._serving.cancel()
        self._listening.close()
        if self._database is not None:
            await self._database.close()
