"""
`fencepost worker`: workers alone, without the API.

One worker in a thread of this process, or PROCESSES of them under it. It stops as
`fencepost serve` does, without the steps that are about HTTP.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

import fencepost
from fencepost.app import Fencepost
from fencepost.cli.application import application, connect, settings_of, settings_with
from fencepost.cli.pool import configure_logs, describe, keep_looking, make_pool, started
from fencepost.cli.signals import StopSignals
from fencepost.cli.worker_thread import new_event_loop
from fencepost.embedded import default_data_dir
from fencepost.embedded.running import find_running
from fencepost.errors import InvalidSettings
from fencepost.logger import get_logger
from fencepost.settings import Settings
from fencepost.store.database import Database
from fencepost.store.migrate import prepare
from fencepost.telemetry.tally import ProcessEvents
from fencepost.worker.tasks import end_all

if TYPE_CHECKING:
    from fencepost.cli.probes import Probes

log = get_logger("fencepost.worker")


def worker(app_name: str | None, flags: dict[str, Any]) -> int:
    """Run until a signal; returns the exit code."""
    settings = settings_of(flags)
    if not settings.workers:
        raise InvalidSettings("WORKERS is 0, and a worker without the API would do nothing; set it to 1 or more")
    turn = configure_logs(settings)
    app = application(app_name, settings)
    settings = settings_with(app, settings)
    dsn, where = _database(settings)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_Workers(settings, app, name=app_name, dsn=dsn, turn=turn).run(where))


def _database(settings: Settings) -> tuple[str, str]:
    """The address of the jobs, and where that is in words."""
    if settings.database_url is not None:
        return settings.database_url.reveal(), "in the database of DATABASE_URL"
    data_dir = settings.data_dir or default_data_dir()
    dsn, owner = find_running(data_dir)
    return dsn, f"in {data_dir} (the embedded PostgreSQL that process {owner} runs, and that goes with it)"


class _Workers:
    """Workers from their start to the last step of the shutdown."""

    def __init__(self, settings: Settings, app: Fencepost, *, name: str | None, dsn: str, turn: int | None) -> None:
        self._settings = settings
        self._app = app
        self._name = name
        self._dsn = dsn
        self._turn = turn

    async def run(self, where: str) -> int:
        """Work until a signal, then stop in order."""
        if self._settings.probe_host is None:
            return await self._run(where, None)
        from fencepost.cli.probes import Probes

        probes = Probes(self._settings)
        try:
            return await self._run(where, probes)
        finally:
            await probes.stop()

    async def _run(self, where: str, probes: Probes | None) -> int:
        events = ProcessEvents() if probes is None else probes.metrics
        pool = make_pool(self._settings, self._app, name=self._name, dsn=self._dsn, turn=self._turn, events=events)
        signals = StopSignals(at_once=pool.kill)
        await self._prepare(signals.stop)
        if probes is not None:
            await probes.open(self._dsn)
        await started(pool, signals.stop)
        if probes is not None:
            probes.start(pool.look)
        looking = asyncio.create_task(keep_looking(pool.look), name="fencepost-health")
        self._greet(where, probes)
        awaited: list[asyncio.Future[Any]] = [asyncio.create_task(signals.stop.wait()), pool.failed]
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if probes is not None:
            probes.readiness.start_draining()
        log.info("stopping", extra={"running_jobs": pool.running})
        await pool.stop_claiming()
        handlers_left = await pool.drain(self._settings.shutdown_timeout_seconds)
        log.info("stopped", extra={"handlers_left": handlers_left})
        await end_all(looking)
        return 1 if pool.failed.done() else 0

    def _greet(self, where: str, probes: Probes | None) -> None:
        say = [
            f"fencepost {fencepost.__version__}: {describe(self._settings)}, no API",
            f"data {where}, schema {self._settings.schema}",
        ]
        if probes is not None:
            say.append(f"probes and metrics on http://{probes.address}")
        click.echo("\n".join(say), err=True)

    async def _prepare(self, stop: asyncio.Event) -> None:
        """Wait for the database, and bring its schema up to date."""
        database = Database.of(self._settings, self._dsn, connections=2)
        await connect(database, stop)
        try:
            await prepare(database, partition_days=self._settings.partition_days)
        finally:
            await database.close()
