"""The parent's end of one worker process: start it, hear it, tell it, outlive it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import msgspec

from fencepost.cli.processes import messages
from fencepost.cli.processes.messages import Config, Order, Report
from fencepost.errors import FencepostError
from fencepost.logger import get_logger
from fencepost.telemetry.pulses import LoopState, Pulse
from fencepost.telemetry.tally import Counts, ProcessEvents

log = get_logger("fencepost.processes")


class WorkerProcess:
    """One worker process, from its start to its end."""

    def __init__(self, config: Config, events: ProcessEvents, pulse: Pulse) -> None:
        """
        Start the process; *pulse* beats with what it says. Raises OSError when the system has no room for it.
        """
        self.number = config.number
        self.active = 0
        """Its busy slots, as last heard."""
        self.handlers_left = 0
        self.drained = False
        """It has said that it stopped in order."""
        self.end_reported = False
        """Its end is in the log."""
        self.refusal: messages.Refused | None = None
        self.ready = asyncio.Event()
        self.quiet = asyncio.Event()
        """It claims no more."""
        self.exit_code = 0
        """Once it has ended; negative for a signal, as in `subprocess`."""
        self.loops: list[LoopState] = []
        """How its loops are, as last heard."""
        self._pulse = pulse
        self._stuck = 0
        self._config = config
        self._events = events
        self._started_at = time.monotonic()
        self._writer: asyncio.StreamWriter | None = None
        self._loop = asyncio.get_running_loop()
        self._exited = asyncio.Event()
        if not sys.executable:
            raise FencepostError("This program hides its Python interpreter, which is needed for worker processes.")
        self._link, theirs = socket.socketpair()
        with theirs:
            self._process = self._start(theirs.fileno(), config.turn)
        # A thread each, rather than asyncio's own watching, so that nobody else's children are taken away.
        reaper = threading.Thread(target=self._reap, name=f"fencepost-process-{self.number}", daemon=True)
        try:
            reaper.start()
        except RuntimeError as error:
            self._link.close()
            self._process.kill()
            raise OSError(f"no thread can be started: {error}") from error
        self.ended = asyncio.create_task(self._live(), name=f"fencepost-process-{self.number}")
        """Done once the process is gone and everything that it said has been heard."""

    def _start(self, descriptor: int, turn: int | None) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                # -P: the current folder isn't a place to import fencepost or its needs from.
                [sys.executable, "-P", "-m", "fencepost.cli.processes.child", str(descriptor)],
                pass_fds=[descriptor] if turn is None else [descriptor, turn],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            self._link.close()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def uptime_seconds(self) -> float:
        """How long ago it was started."""
        return time.monotonic() - self._started_at

    def tell(self, order: Order) -> None:
        """Give it an order. One that hasn't come up yet is asked to end instead: it holds no job."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(messages.line(order))
        if not self.ready.is_set():
            with suppress(ProcessLookupError):
                self._process.terminate()

    def kill(self) -> None:
        """End it at once, with what its handlers have started, if it still runs."""
        if not self._exited.is_set() and self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.kill()

    async def _live(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=self._link, limit=messages.LINE_LIMIT)
        self._writer.write(messages.line(self._config))
        try:
            while text := await reader.readline():
                self._hear(msgspec.json.decode(text, type=Report))
        except ConnectionError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever is wrong with what it says
            # Something in it writes where it mustn't. What can't be understood, or nests too deeply, or counts beyond
            # what a number can be, can't be led: it must not live on beside its successor.
            log.error("worker process speaks nonsense; killed", extra={"pid": self.pid, "reason": str(error)})
            self.kill()
        await self._exited.wait()
        self._writer.close()
        # What it was running is running no more.
        self._merge(Counts(active=-self.active, stuck=-self._stuck))

    def _hear(self, report: Report) -> None:
        match report:
            case messages.Ready():
                self.ready.set()
                self._pulse.turned()
            case messages.Alive(loops=loops):
                self.loops = loops
                self._pulse.turned()
            case messages.Quiet():
                self.quiet.set()
            case messages.Refused():
                self.refusal = report
            case messages.Drained(handlers_left=left):
                self.handlers_left = left
                self.drained = True
            case messages.Counted(counts=counts):
                self._merge(counts)

    def _merge(self, counts: Counts) -> None:
        # First, since it may refuse them: what it hasn't counted isn't taken back from it at the end.
        self._events.merge(counts)
        self.active += counts.active
        self._stuck += counts.stuck

    def _reap(self) -> None:
        self.exit_code = self._process.wait()
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._exited.set)
