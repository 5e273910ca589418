"""What runs the jobs of a command: a worker in this process, or worker processes under it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

from fencepost.app import Fencepost
from fencepost.cli.processes.supervisor import Supervisor
from fencepost.cli.worker_thread import WorkerThread
from fencepost.logger import get_logger
from fencepost.settings import Settings
from fencepost.telemetry import logs
from fencepost.telemetry.pulses import Look, LoopState
from fencepost.telemetry.shared_output import make_turn
from fencepost.telemetry.tally import ProcessEvents
from fencepost.worker.worker import Worker

log = get_logger("fencepost.health")


class Pool(Protocol):
    """A worker, or several."""

    failed: asyncio.Future[BaseException]
    """Done once it has ended without being asked to."""

    @property
    def running(self) -> int:
        """How many handlers have not returned yet."""
        ...

    async def start(self) -> None:
        """Begin to claim. Raises FencepostError."""
        ...

    def wake(self, queue_ids: Iterable[int]) -> None:
        """These queues may have something due."""
        ...

    def look(self) -> list[LoopState]:
        """How the loops are that run the jobs."""
        ...

    async def stop_claiming(self) -> None:
        """Claim and recover no more; while it starts, give that up."""
        ...

    async def drain(self, timeout_seconds: float) -> int:
        """Stop for good: let running jobs finish, give the rest back. Returns how many handlers ignored that."""
        ...

    def kill(self) -> None:
        """End at once whatever wouldn't end with this process."""
        ...


def configure_logs(settings: Settings) -> int | None:
    """Set up the log; returns the turn that worker processes have to share, when there will be some."""
    turn = make_turn() if settings.processes and settings.workers else None
    logs.configure(settings, turn=turn)
    return turn


def make_pool(
    settings: Settings, app: Fencepost, *, name: str | None, dsn: str, turn: int | None, events: ProcessEvents
) -> Pool:
    """PROCESSES worker processes that import *name*, or else a worker here for *app*, which is the same."""
    if settings.processes and settings.workers:
        return Supervisor(settings, app=name, dsn=dsn, turn=turn, events=events)
    return WorkerThread(lambda: Worker(dsn, app.runtime(), settings, events))


def describe(settings: Settings) -> str:
    """The pool in a few words."""
    slots = f"{settings.workers} worker{'' if settings.workers == 1 else 's'}"
    if not settings.processes or not settings.workers:
        return slots
    return f"{slots} in each of {settings.processes} process{'' if settings.processes == 1 else 'es'}"


async def started(pool: Pool, stop: asyncio.Event) -> None:
    """Start the pool; a signal meanwhile gives that up, as far as it can be. Raises FencepostError."""
    stopped = asyncio.create_task(stop.wait())
    try:
        await start_unless(pool, stopped)
    finally:
        stopped.cancel()


async def start_unless(pool: Pool, *reasons: asyncio.Task[Any]) -> None:
    """Start the pool; a reason not to, which is done meanwhile, gives that up. Raises FencepostError."""
    starting = asyncio.create_task(pool.start())
    await asyncio.wait([starting, *reasons], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        await pool.stop_claiming()
    await starting


async def keep_looking(look: Look) -> None:
    """Look at the loops about once a second, until cancelled: what gets stuck is logged then, probed or not."""
    while True:
        await asyncio.sleep(1)
        try:
            look()
        except Exception:
            log.exception("fault while looking at the loops")
