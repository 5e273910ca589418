"""Keeps worker processes running: starts them, replaces the dead, takes them down in order."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine, Iterable
from typing import Any

import msgspec

from fencepost.cli.processes import messages
from fencepost.cli.processes.link import WorkerProcess
from fencepost.cli.processes.messages import Config
from fencepost.errors import FencepostError
from fencepost.logger import get_logger
from fencepost.settings import Settings
from fencepost.telemetry.pulses import LoopState, Pulse, Vitals
from fencepost.telemetry.tally import ProcessEvents

log = get_logger("fencepost.processes")

STEADY_SECONDS = 30.0
"""A worker process that ran for so long is replaced at once."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
SILENCE_SECONDS = 15.0
"""How long nothing may be heard of a worker process, while it is replaced or because it stands still."""
QUIET_SECONDS = 10.0
"""How long the claims that are under way may take to end."""


class StartFailed(FencepostError):
    """A worker process ended before it was ready, so the whole start is given up."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Pauses:
    """How long to wait before the next start: longer with each end that comes soon after a start, up to a cap."""

    def __init__(self) -> None:
        self._quick_ends = 0

    def after(self, uptime_seconds: float) -> float:
        """The pause after one that has run for so long."""
        if uptime_seconds >= STEADY_SECONDS:
            self._quick_ends = 0
            return 0.0
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(self._quick_ends, 30), LONGEST_PAUSE_SECONDS)
        self._quick_ends += 1
        return pause


class Supervisor:
    """
    A number of worker processes, in the place of a worker: the same calls, for all of them.

    Nothing that happens to a worker process ends the parent, once all of them have been
    ready for the first time.
    """

    def __init__(self, settings: Settings, *, app: str | None, dsn: str, turn: int | None, events: ProcessEvents):
        listen_dsn = None if settings.listen_url is None else settings.listen_url.reveal()
        kept = msgspec.structs.replace(settings, database_url=None, listen_url=None, data_dir=None, api_tokens=())
        self._configs = [
            Config(number=number, dsn=dsn, app=app, settings=kept, listen_dsn=listen_dsn, turn=turn)
            for number in range(1, settings.processes + 1)
        ]
        self._events = events
        self._processes: dict[int, WorkerProcess] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._vitals = Vitals()
        self._pulses = {config.number: self._vitals.add(_pulse(config.number)) for config in self._configs}
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """Never done: worker processes that fail are replaced."""

    @property
    def running(self) -> int:
        """How many handlers have not returned yet, as of the last reports."""
        return sum(process.active for process in self._processes.values())

    async def start(self) -> None:
        """
        Start the worker processes; returns when all of them claim, or when told to stop.

        Raises StartFailed when one of them ends instead, after the others have been stopped.
        """
        try:
            for config in self._configs:
                self._launch(config)
            await self._all_ready()
        except (OSError, StartFailed) as error:
            await self.stop_claiming()
            await self.drain(0)
            if isinstance(error, OSError):
                raise StartFailed(f"no worker process can be started: {error}", 1) from error
            raise
        self._keepers = [
            asyncio.create_task(self._keep(config), name=f"fencepost-keeper-{config.number}")
            for config in self._configs
        ]

    def wake(self, queue_ids: Iterable[int]) -> None:
        """Nothing: they hear it from the database."""

    def look(self) -> list[LoopState]:
        """How the worker processes are, and the loops in them, as last heard."""
        heard = [
            _in_process(process, state)
            for process in self._processes.values()
            if process.ready.is_set() and not process.ended.done() and not self._stopping.is_set()
            for state in process.loops
        ]
        return [*self._vitals.look(), *heard]

    async def stop_claiming(self) -> None:
        """Have all of them claim no more; from now on none is replaced."""
        self._stopping.set()
        self._vitals.end()
        for process in self._processes.values():
            process.tell(messages.StopClaiming())
        await self._each_heard([process.quiet for process in self._processes.values()], QUIET_SECONDS)

    async def drain(self, timeout_seconds: float) -> int:
        """
        Stop all of them for good: running jobs get *timeout_seconds*, what is left is given back.

        Returns once every process is gone, with how many handlers ignored even their
        cancellation. One that is still there `LAST_SECONDS` later is killed.
        """
        self._stopping.set()
        processes = list(self._processes.values())
        for process in processes:
            process.tell(messages.Drain(timeout_seconds))
        ends = [process.ended for process in processes] + self._keepers
        if ends:
            _, late = await asyncio.wait(ends, timeout=timeout_seconds + messages.LAST_SECONDS + 2)
            for process in processes:
                if process.ended in late:
                    log.error("worker process doesn't stop; killed", extra=_names(process))
            if late:
                self.kill()
                await asyncio.wait(late)
        for process in processes:
            if process.ready.is_set() and not process.drained and not process.end_reported:
                extra = {**_names(process), "ended_by": _how(process.exit_code)}
                log.error("worker process ended without giving its jobs back; their leases run out", extra=extra)
        return sum(process.handlers_left for process in processes)

    def kill(self) -> None:
        """End all of them at once. Their jobs come back when their leases run out."""
        for process in self._processes.values():
            process.kill()

    def _launch(self, config: Config) -> WorkerProcess:
        process = self._processes[config.number] = WorkerProcess(config, self._events, self._pulses[config.number])
        self._events.process_started()
        log.info("worker process started", extra=_names(process))
        return process

    async def _all_ready(self) -> None:
        waits = [asyncio.create_task(self._is_ready(process)) for process in self._processes.values()]
        done, late = await asyncio.wait(waits, return_when=asyncio.FIRST_EXCEPTION)
        for task in late:
            task.cancel()
        for task in done:
            task.result()

    async def _is_ready(self, process: WorkerProcess) -> None:
        await _first(process.ready.wait(), process.ended, self._stopping.wait())
        if process.ended.done() and not self._stopping.is_set():
            raise _why(process)

    async def _keep(self, config: Config) -> None:
        """Replace this worker process each time that it ends."""
        process: WorkerProcess | None = self._processes[config.number]
        pauses = Pauses()
        while True:
            if process is not None:
                await asyncio.wait([process.ended])
                self._events.process_ended(expected=self._stopping.is_set())
            if self._stopping.is_set():
                return
            pause = pauses.after(process.uptime_seconds if process is not None else 0)
            if process is not None:
                _report_end(process, pause)
                process.end_reported = True
                self._pulses[config.number].failed(RuntimeError(f"it ended by itself: {_how(process.exit_code)}"))
            if await _set_within(self._stopping, pause):
                return
            try:
                process = self._launch(config)
            except Exception as error:  # noqa: BLE001 - told below
                # Whatever it is: without its keeper this one would never be replaced.
                process = None
                self._pulses[config.number].failed(error)
                log.error("no worker process can be started", extra={"reason": str(error)})

    async def _each_heard(self, events: list[asyncio.Event], seconds: float) -> None:
        """Wait until each of these is set, or its process has ended."""
        processes = list(self._processes.values())
        waits = [
            asyncio.create_task(_first(event.wait(), process.ended))
            for event, process in zip(events, processes, strict=True)
        ]
        if waits:
            _, late = await asyncio.wait(waits, timeout=seconds)
            for task in late:
                task.cancel()


def _pulse(number: int) -> Pulse:
    return Pulse(
        "worker_process",
        task=f"number {number}, which runs jobs",
        patience_seconds=SILENCE_SECONDS,
        advice="its own lines in the log say why it ends or is silent; it is replaced once it ends",
    )


def _in_process(process: WorkerProcess, state: LoopState) -> LoopState:
    """Say where a loop is that is stuck."""
    if state.trouble is None:
        return state
    trouble = f"in worker process {process.number} (pid {process.pid}) {state.trouble}"
    return msgspec.structs.replace(state, trouble=trouble)


def _names(process: WorkerProcess) -> dict[str, object]:
    return {"worker_process": process.number, "pid": process.pid}


def _why(process: WorkerProcess) -> StartFailed:
    if process.refusal is not None:
        return StartFailed(process.refusal.reason, process.refusal.exit_code)
    return StartFailed(
        f"worker process {process.number} ended before it was ready ({_how(process.exit_code)}); "
        "what it wrote above says why",
        1,
    )


def _how(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def _report_end(process: WorkerProcess, pause: float) -> None:
    fields = {
        **_names(process),
        "ended_by": _how(process.exit_code),
        "uptime_seconds": round(process.uptime_seconds, 3),
        "restart_in_seconds": pause,
    }
    if process.refusal is not None:
        fields["reason"] = process.refusal.reason
    # One that was asked to stop, not by us, ends well; an operator renews its processes that way.
    level = logging.ERROR if process.exit_code else logging.WARNING
    log.log(level, "worker process ended; starting another", extra=fields)


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
    return event.is_set()


async def _first(*awaited: Coroutine[Any, Any, object] | asyncio.Task[None]) -> None:
    """Wait until the first of these is done; tasks that were there before go on, the others end."""
    tasks = [asyncio.ensure_future(one) for one in awaited]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, one in zip(tasks, awaited, strict=True):
            if task is not one:
                task.cancel()
