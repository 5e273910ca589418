"""
`fencepost serve`: the API and a worker, put together.

The main thread's loop serves HTTP; the worker has a thread and a loop of its own, so
that a handler which blocks its loop blocks no request. Stopping goes in five steps:

    1  claim and recover no more
    2  /readyz answers 503 while the server serves on for DRAIN_DELAY; then the listener
       closes and requests in flight finish
    3  running jobs get SHUTDOWN_TIMEOUT
    4  what still runs is cancelled and released, without costing an attempt
    5  the process exits when every handler has returned

A second signal ends the process at once.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

import fencepost
from fencepost.api.app import Services, create_app
from fencepost.api.readiness import Readiness
from fencepost.api.server import ApiServer, bind_socket, make_server
from fencepost.app import Fencepost
from fencepost.cli.worker_thread import WorkerThread, new_event_loop
from fencepost.embedded import EmbeddedPostgres, default_data_dir
from fencepost.errors import DatabaseUnavailable, FencepostError, InvalidSettings
from fencepost.handlers import shipped
from fencepost.settings import Settings, from_environment
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.listing import Listing
from fencepost.store.migrate import prepare
from fencepost.store.queues import Queues
from fencepost.telemetry import logs
from fencepost.telemetry.metrics import Metrics
from fencepost.worker.worker import Worker

log = logging.getLogger("fencepost.serve")

DATABASE_PATIENCE_SECONDS = 30.0
"""How long a start waits for a database that isn't there yet."""


def serve(app_name: str | None, flags: dict[str, Any]) -> int:
    """Run until a signal; returns the exit code."""
    settings = _settings(flags)
    logs.configure(settings)
    app = _application(app_name, settings)
    # The port first: a second service on this machine should hear that it is taken before anything has started.
    with (
        bind_socket(settings) as listening,
        _database(settings) as (dsn, embedded),
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        return runner.run(_serve(settings, app, dsn, embedded, listening))


async def _serve(
    settings: Settings, app: Fencepost, dsn: str, embedded: EmbeddedPostgres | None, listening: Any
) -> int:
    return await _Service(settings, app, dsn, embedded).run(listening)


def _settings(flags: dict[str, Any]) -> Settings:
    environment = dict(os.environ)
    address = flags.pop("http_addr", None)
    if address is not None:
        environment["HTTP_ADDR"] = address
    return from_environment(environment, **flags)


def _application(name: str | None, settings: Settings) -> Fencepost:
    """The job types to run: those that ship, and those of the caller's own app."""
    app = Fencepost()
    for type_name, handler, payload in shipped(allow_private=settings.webhook_allow_private):
        app.register(type_name, handler, payload)
    if name is not None:
        for job_type in _import_app(name).types.values():
            if job_type.name in app.types:
                raise InvalidSettings(f"{name} registers {job_type.name!r}, which is the name of a type that ships")
            app.types[job_type.name] = job_type
    return app


def _import_app(name: str) -> Fencepost:
    module_name, _, attribute = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module_name), attribute or "app")
    except (ImportError, AttributeError) as error:
        raise InvalidSettings(f"{name} can't be imported ({error}); name it as module:attribute") from error
    if not isinstance(found, Fencepost):
        raise InvalidSettings(f"{name} is a {type(found).__name__}, not a Fencepost")
    return found


@contextmanager
def _database(settings: Settings) -> Iterator[tuple[str, EmbeddedPostgres | None]]:
    """Where the jobs are: the database of DATABASE_URL, or an embedded one for as long as this lasts."""
    if settings.database_url is not None:
        yield settings.database_url.reveal(), None
        return
    with EmbeddedPostgres(settings.data_dir or default_data_dir()) as embedded:
        yield embedded.dsn, embedded


class _Service:
    """One running service: its parts, from start to the last step of the shutdown."""

    def __init__(self, settings: Settings, app: Fencepost, dsn: str, embedded: EmbeddedPostgres | None) -> None:
        self._settings = settings
        self._embedded = embedded
        self._metrics = Metrics()
        self._readiness = Readiness()
        self._database = Database(dsn, schema=settings.schema, connections=settings.database_connections)
        self._worker = WorkerThread(lambda: Worker(dsn, app.types, settings, self._metrics))
        self._hints = Hints(self._database, local=self._worker.wake)
        queues = Queues(self._database, self._hints)
        services = Services(
            settings=settings,
            types=app.types,
            jobs=Jobs(self._database, queues, self._hints),
            listing=Listing(self._database, queues),
            queues=queues,
            database=self._database,
            metrics=self._metrics,
            readiness=self._readiness,
        )
        self._server: ApiServer = make_server(create_app(services), settings)
        self._stop = asyncio.Event()
        self._signals = 0

    async def run(self, listening: Any) -> int:
        """Serve until a signal, then stop in order."""
        self._handle_signals()
        await self._connect()
        await prepare(self._database, partition_days=self._settings.partition_days)
        if self._settings.workers:
            await self._worker.start()
        serving = asyncio.create_task(self._server.serve(sockets=[listening]), name="fencepost-http")
        watching = asyncio.create_task(self._watch_embedded(), name="fencepost-embedded")
        self._greet(listening.getsockname()[:2])
        stopped = asyncio.create_task(self._stop.wait())
        awaited: list[asyncio.Future[Any]] = [serving, stopped, self._worker.failed]
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        failed = serving.done() or self._worker.failed.done()
        await self._shut_down(serving)
        watching.cancel()
        await self._hints.close()
        await self._database.close()
        return 1 if failed else 0

    async def _shut_down(self, serving: asyncio.Task[None]) -> None:
        self._readiness.start_draining()
        log.info("stopping", extra={"running_jobs": self._worker.running})
        await self._worker.stop_claiming()
        await asyncio.sleep(self._settings.drain_delay_seconds if not serving.done() else 0)
        self._server.should_exit = True
        await asyncio.wait([serving])
        stubborn = await self._worker.drain(self._settings.shutdown_timeout_seconds)
        log.info("stopped", extra={"handlers_left": stubborn})

    async def _connect(self) -> None:
        """Wait for a database that is just coming up; give up with its own words after a while."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DATABASE_PATIENCE_SECONDS
        while True:
            try:
                return await self._database.open()
            except DatabaseUnavailable as error:
                if loop.time() > deadline or self._stop.is_set():
                    raise
                log.warning("waiting for the database", extra={"reason": str(error)})
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), 1)

    async def _watch_embedded(self) -> None:
        """Start the embedded PostgreSQL again should it die."""
        while self._embedded is not None:
            await asyncio.sleep(1)
            if not self._embedded.is_running:
                log.error("the embedded PostgreSQL has stopped; starting it again")
                try:
                    await asyncio.to_thread(self._embedded.start)
                except FencepostError as error:
                    log.error("the embedded PostgreSQL can't be started", extra={"reason": str(error)})

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number)

    def _signalled(self, number: int) -> None:
        self._signals += 1
        if self._signals > 1:
            # No more Python: handlers, threads and buffers are left as they are; leases run out by themselves.
            os._exit(128 + number)
        click.echo("\nfencepost: stopping; once more to stop at once", err=True)
        self._stop.set()

    def _greet(self, address: tuple[str, int]) -> None:
        host, port = address
        url = f"http://{'localhost' if host in ('0.0.0.0', '127.0.0.1', '::', '::1') else host}:{port}"  # noqa: S104
        where = "in the database of DATABASE_URL"
        if self._embedded is not None:
            where = f"in {self._embedded.data_dir} (an embedded PostgreSQL {self._embedded.version}; "
            where += "set DATABASE_URL to use a server of yours)"
        authorization = "-H 'Authorization: Bearer …' " if self._settings.api_tokens else ""
        say = [
            f"fencepost {fencepost.__version__}: API on {url} ({host}:{port}), {self._settings.workers} workers",
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
