"""
`fencepost serve`: the API and a worker, put together.

The main thread's loop serves HTTP; the worker has a thread and a loop of its own, so
that a handler which blocks its loop blocks no request. With PROCESSES there are worker
processes instead, and this one is their parent. Stopping goes in five steps:

    1  claim and recover no more
    2  /readyz answers 503 while the server serves on for DRAIN_DELAY; then the listener
       closes and requests in flight finish
    3  running jobs get SHUTDOWN_TIMEOUT, from when the listener closes
    4  what still runs is cancelled and released, without costing an attempt
    5  the process exits when every handler has returned

A second signal ends the process, and its worker processes, at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

import fencepost
from fencepost.api.app import Services, create_app
from fencepost.api.server import ApiServer, bind_socket, make_server
from fencepost.app import Fencepost
from fencepost.cli.application import application, connect, settings_of, settings_with
from fencepost.cli.pool import configure_logs, describe, keep_looking, make_pool, started
from fencepost.cli.signals import StopSignals
from fencepost.cli.worker_thread import new_event_loop
from fencepost.embedded import EmbeddedPostgres, default_data_dir
from fencepost.errors import FencepostError
from fencepost.logger import get_logger
from fencepost.settings import CONNECTIONS_OF_A_WORKER, Settings
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from fencepost.store.job_types import JobTypes
from fencepost.store.migrate import prepare
from fencepost.store.queues import Queues
from fencepost.telemetry.metrics import Metrics
from fencepost.telemetry.pulses import Vitals
from fencepost.worker import maintenance
from fencepost.worker.tasks import end_all

log = get_logger("fencepost.serve")

EMBEDDED_CONNECTIONS = 100
"""What the embedded PostgreSQL allows by itself."""
RESTART_SECONDS = 2.0
"""How long until the next try, when it can't be started again."""
SPARE_CONNECTIONS = 20
"""For people who look, and for workers that join."""


def serve(app_name: str | None, flags: dict[str, Any]) -> int:
    """Run until a signal; returns the exit code."""
    settings = settings_of(flags)
    turn = configure_logs(settings)
    app = application(app_name, settings)
    settings = settings_with(app, settings)
    # The port first: a second service on this machine should hear that it is taken before anything has started.
    with (
        bind_socket(settings) as listening,
        _database(settings) as (dsn, embedded),
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        return runner.run(_serve(settings, app, listening, name=app_name, dsn=dsn, embedded=embedded, turn=turn))


async def _serve(settings: Settings, app: Fencepost, listening: Any, **rest: Any) -> int:
    return await _Service(settings, app, **rest).run(listening)


@contextmanager
def _database(settings: Settings) -> Iterator[tuple[str, EmbeddedPostgres | None]]:
    """Where the jobs are: the database of DATABASE_URL, or an embedded one for as long as this lasts."""
    if settings.database_url is not None:
        yield settings.database_url.reveal(), None
        return
    needed = settings.processes * CONNECTIONS_OF_A_WORKER + settings.database_connections + SPARE_CONNECTIONS
    options = {"max_connections": str(max(EMBEDDED_CONNECTIONS, needed))}
    with EmbeddedPostgres(settings.data_dir or default_data_dir(), options=options) as embedded:
        yield embedded.dsn, embedded


class _Service:
    """One running service: its parts, from start to the last step of the shutdown."""

    def __init__(
        self,
        settings: Settings,
        app: Fencepost,
        *,
        name: str | None,
        dsn: str,
        embedded: EmbeddedPostgres | None,
        turn: int | None,
    ) -> None:
        self._settings = settings
        self._embedded = embedded
        self._metrics = Metrics()
        self._database = Database.of(settings, dsn, connections=settings.database_connections)
        self._pool = make_pool(settings, app, name=name, dsn=dsn, turn=turn, events=self._metrics)
        self._hints = Hints(self._database, local=self._pool.wake)
        self._declaration = maintenance.Declaration(
            app.types.values(), JobTypes(self._database), Queues(self._database, self._hints)
        )
        services = Services.of(settings, app.types, self._database, self._hints, metrics=self._metrics)
        self._readiness = services.readiness
        self._vitals = Vitals()
        for pulse in services.jobs.pulses:
            self._vitals.add(pulse)
        self._readiness.watch(self._vitals.look)
        self._readiness.watch(self._pool.look)
        self._metrics.watch(self._readiness.look)
        self._server: ApiServer = make_server(create_app(services), settings)
        self._signals = StopSignals(at_once=self._pool.kill)

    async def run(self, listening: Any) -> int:
        """Serve until a signal, then stop in order. Raises FencepostError when it can't start."""
        try:
            await connect(self._database, self._signals.stop)
            await prepare(self._database, partition_days=self._settings.partition_days)
            if self._settings.workers:
                await started(self._pool, self._signals.stop)
            return await self._until_stopped(listening)
        finally:
            if self._database.is_open:
                await self._hints.close()
            await self._database.close()

    async def _until_stopped(self, listening: Any) -> int:
        serving = asyncio.create_task(self._server.serve(sockets=[listening]), name="fencepost-http")
        watching = asyncio.create_task(self._watch_embedded(), name="fencepost-embedded")
        looking = asyncio.create_task(keep_looking(self._readiness.look), name="fencepost-health")
        declaring = asyncio.create_task(self._declare_types(), name="fencepost-declaration")
        self._greet(listening.getsockname()[:2])
        stopped = asyncio.create_task(self._signals.stop.wait())
        awaited: list[asyncio.Future[Any]] = [serving, stopped, self._pool.failed]
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        failed = serving.done() or self._pool.failed.done()
        await self._shut_down(serving)
        watching.cancel()
        await end_all(declaring, looking)
        return 1 if failed else 0

    async def _shut_down(self, serving: asyncio.Task[None]) -> None:
        self._readiness.start_draining()
        log.info("stopping", extra={"running_jobs": self._pool.running})
        await self._pool.stop_claiming()
        await asyncio.sleep(self._settings.drain_delay_seconds if not serving.done() else 0)
        # One time for both, so that a client that is slow doesn't use up the jobs' share of what a supervisor allows.
        until = time.monotonic() + self._settings.shutdown_timeout_seconds
        self._server.should_exit = True
        await asyncio.wait([serving])
        stubborn = await self._pool.drain(max(0.0, until - time.monotonic()))
        log.info("stopped", extra={"handlers_left": stubborn})

    async def _declare_types(self) -> None:
        """Say again and again which types are known here: workers that don't leave their jobs to others."""
        await maintenance.repeat(
            "declaring job types", self._declaration.declare, every_seconds=maintenance.DECLARATION_SECONDS
        )

    async def _watch_embedded(self) -> None:
        """Start the embedded PostgreSQL again should it die."""
        while self._embedded is not None:
            await asyncio.sleep(1)
            if not self._embedded.is_running:
                log.error("the embedded PostgreSQL has stopped; starting it again")
                try:
                    await asyncio.to_thread(self._embedded.start)
                except (FencepostError, OSError) as error:
                    log.error("the embedded PostgreSQL can't be started", extra={"reason": str(error)})
                    await asyncio.sleep(RESTART_SECONDS)
                except Exception:
                    log.exception("the embedded PostgreSQL can't be started")
                    await asyncio.sleep(RESTART_SECONDS)

    def _greet(self, address: tuple[str, int]) -> None:
        host, port = address
        url = f"http://{'localhost' if host in ('0.0.0.0', '127.0.0.1', '::', '::1') else host}:{port}"  # noqa: S104
        where = "in the database of DATABASE_URL"
        if self._embedded is not None:
            where = f"in {self._embedded.data_dir} (an embedded PostgreSQL {self._embedded.version}; "
            where += "set DATABASE_URL to use a server of yours)"
        authorization = "-H 'Authorization: Bearer …' " if self._settings.api_tokens else ""
        say = [
            f"fencepost {fencepost.__version__}: API on {url} ({host}:{port}), {describe(self._settings)}",
            f"data {where}, schema {self._settings.schema}",
            "try:",
            f"  curl -s {url}/jobs {authorization}-H 'Content-Type: application/json' "
            '-d \'{"type":"sleep","payload":{"duration":"2s"}}\'',
        ]
        click.echo("\n".join(say), err=True)
        if self._settings.listens_openly:
            log.warning(
                "anyone who can reach this address can submit and read jobs; set API_TOKENS to ask for a token",
                extra={"address": f"{host}:{port}"},
            )
