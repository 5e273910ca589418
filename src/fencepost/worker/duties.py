"""What a worker does besides its jobs: each duty in a task of its own, over and over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from fencepost.errors import DatabaseUnavailable
from fencepost.logger import get_logger
from fencepost.settings import Settings
from fencepost.store.job_types import JobTypes
from fencepost.store.partitions import TooMuchToMove
from fencepost.store.queues import Queues
from fencepost.store.retention import Keep, Retention
from fencepost.store.workers import WorkerStore
from fencepost.telemetry.events import Events
from fencepost.telemetry.pulses import Pulse
from fencepost.worker import maintenance
from fencepost.worker.pruner import Pruner
from fencepost.worker.runtime import Runtime
from fencepost.worker.served import Served
from fencepost.worker.tasks import end_all
from fencepost.worker.vitals import WorkerVitals

log = get_logger("fencepost.worker")

MakeTask = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
"""Makes a task of some work and a name."""


class Duties:
    """
    The duties of one worker (maintenance.py, pruner.py), from `start` on.

    *task* makes the tasks that they run in.
    """

    def __init__(
        self,
        store: WorkerStore,
        settings: Settings,
        runtime: Runtime,
        *,
        queues: Queues,
        served: Served,
        rescuer: maintenance.Rescuer,
        events: Events,
        vitals: WorkerVitals,
        task: MakeTask,
    ) -> None:
        self._store = store
        self._settings = settings
        self._vitals = vitals
        self._task = task
        self._rescuer = rescuer
        self._served = served
        self._declaration = maintenance.Declaration(runtime.types.values(), JobTypes(store.database), queues)
        self._presence = maintenance.Presence(store, slots=settings.workers)
        self._pruner = Pruner(Retention(store.database, Keep.of(settings)), events=events)
        self._recovery: asyncio.Task[None] | None = None
        self._others: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin with all of them."""
        vitals, sweeps = self._vitals, self._settings.recovery_interval_seconds
        beats, partitions = maintenance.HEARTBEAT_SECONDS, maintenance.PARTITIONS_SECONDS
        self._recovery = self._duty("recovery", self._rescuer.sweep, sweeps, vitals.recovery)
        self._others = [
            self._duty("heartbeat", self._presence.beat, beats, vitals.heartbeat),
            self._duty("making partitions", self._make_partitions, partitions, vitals.partitions),
            self._duty("declaring job types", self._declare, maintenance.DECLARATION_SECONDS, vitals.declaration),
            self._task(self._pruner.keep_on(vitals.pruner), "pruner"),
        ]

    async def stop_recovering(self) -> None:
        """Take no more jobs back. The others go on."""
        await end_all(self._recovery)

    async def leave(self) -> None:
        """Strike this process off the list of workers, if the database is there."""
        with suppress(DatabaseUnavailable):
            await self._presence.leave()

    def stop(self) -> list[asyncio.Task[None]]:
        """What still runs, for the caller to end."""
        return self._others

    def _duty(
        self, what: str, duty: Callable[[], Awaitable[object]], every_seconds: float, pulse: Pulse
    ) -> asyncio.Task[None]:
        work = maintenance.repeat(what, duty, every_seconds=every_seconds, pulse=pulse)
        return self._task(work, what.replace(" ", "-"))

    async def _declare(self) -> None:
        await self._declaration.declare()
        await self._served.find()

    async def _make_partitions(self) -> None:
        try:
            await self._store.ensure_partitions(partition_days=self._settings.partition_days)
        except TooMuchToMove as error:
            # Not again in a few seconds: each try keeps everybody waiting, and the next can do no better.
            log.warning("no partitions were made", extra={"reason": str(error)})
