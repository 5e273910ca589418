"""
A worker process: `python -m fencepost.cli.processes.child DESCRIPTOR`.

The worker has a thread and a loop of its own, so that whatever its handlers do, this
one hears its parent. It stops when it is told to, by its parent or by a signal, and
when its parent is gone; it is gone itself `LAST_SECONDS` after SHUTDOWN_TIMEOUT at the
latest.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from fencepost.cli.application import application
from fencepost.cli.endings import end_within
from fencepost.cli.pool import start_unless
from fencepost.cli.processes import messages
from fencepost.cli.processes.messages import Config, Drain, Order, StopClaiming
from fencepost.cli.signals import StopSignals
from fencepost.cli.worker_thread import WorkerThread, new_event_loop
from fencepost.errors import FencepostError
from fencepost.logger import get_logger
from fencepost.settings import Secret, Settings
from fencepost.telemetry import logs
from fencepost.telemetry.tally import Tally
from fencepost.worker.runtime import Runtime
from fencepost.worker.worker import Worker

log = get_logger("fencepost.worker")

REPORT_SECONDS = 0.5
"""How often the parent hears what has happened."""


def main() -> None:
    """Run the process."""
    link = socket.socket(fileno=int(sys.argv[1]))
    # What a handler starts has no business with our parent.
    link.set_inheritable(False)
    with link.makefile("rb", buffering=0) as stream:
        first = stream.readline()
    if not first:
        return
    config = msgspec.json.decode(first, type=Config)
    if config.turn is not None:
        os.set_inheritable(config.turn, False)
    logs.configure(config.settings, worker_process=config.number, turn=config.turn)
    try:
        with _ending_with_the_parent(link):
            # With the address, for what the handlers enqueue.
            settings = msgspec.structs.replace(
                config.settings,
                database_url=Secret(config.dsn),
                listen_url=None if config.listen_dsn is None else Secret(config.listen_dsn),
            )
            runtime = application(config.app, settings).runtime()
    except FencepostError as error:
        link.sendall(messages.line(messages.Refused(error.for_operator(), error.exit_code)))
        sys.exit(error.exit_code)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        sys.exit(runner.run(_run(link, config, settings, runtime)))


@contextmanager
def _ending_with_the_parent(link: socket.socket) -> Iterator[None]:
    """
    Meanwhile, end the process when its parent is gone: an import may take for ever, and no job is held yet.

    A signal does the same by itself.
    """
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            if _is_over(link):
                os._exit(1)

    watcher = threading.Thread(target=watch, name="fencepost-parent", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _is_over(link: socket.socket) -> bool:
    try:
        return bool(select.select([link], [], [], 0)[0]) and not link.recv(1, socket.MSG_PEEK)
    except ConnectionError:
        return True


async def _run(link: socket.socket, config: Config, settings: Settings, runtime: Runtime) -> int:
    reader, writer = await asyncio.open_unix_connection(sock=link, limit=messages.LINE_LIMIT)
    child = _Child(config, settings, runtime, reader, writer)
    try:
        return await child.run()
    except FencepostError as error:
        child.say(messages.Refused(error.for_operator(), error.exit_code))
        return error.exit_code
    finally:
        await child.close()


class _Child:
    """The process's life, and its side of the conversation."""

    def __init__(
        self,
        config: Config,
        settings: Settings,
        runtime: Runtime,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._config = config
        self._settings = settings
        self._runtime = runtime
        self._reader = reader
        self._writer = writer
        self._tally = Tally()
        self._draining = False

    async def run(self) -> int:
        """Work until there is a reason to stop, then stop in order; returns the exit code. Raises FencepostError."""
        settings = self._settings
        signals = StopSignals(announce=False)
        worker = WorkerThread(lambda: Worker(self._config.dsn, self._runtime, settings, self._tally))
        ordered = asyncio.create_task(self._obey(worker), name="fencepost-orders")
        signalled = asyncio.create_task(signals.stop.wait(), name="fencepost-signals")
        await start_unless(worker, ordered, signalled)
        self.say(messages.Ready())
        reporting = asyncio.create_task(self._report(worker), name="fencepost-reports")
        reasons: list[asyncio.Future[object]] = [ordered, signalled, worker.failed]  # type: ignore[list-item]
        await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
        timeout = ordered.result() if ordered.done() else settings.shutdown_timeout_seconds
        failed = worker.failed.done()
        if failed:
            log.error("the worker has ended", exc_info=worker.failed.result())
        await self._drain(worker, 0 if failed else timeout)
        reporting.cancel()
        return 1 if failed else 0

    def say(self, report: messages.Report) -> None:
        """Tell the parent, if it is still there."""
        if not self._writer.is_closing():
            self._writer.write(messages.line(report))

    async def close(self) -> None:
        """See that everything said has been heard."""
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(1):
                await self._writer.drain()
                self._writer.close()
                await self._writer.wait_closed()

    async def _obey(self, worker: WorkerThread) -> float:
        """Do what the parent says, until it says to drain or is gone; returns how long running jobs get."""
        while True:
            try:
                text = await self._next_line()
                if not text:
                    break
                order = msgspec.json.decode(text, type=Order)
            except (msgspec.MsgspecError, RecursionError, ValueError) as error:
                # Nobody can lead it any more, so its jobs are better off in another.
                log.error("what the parent process says can't be read; stopping", extra={"reason": str(error)})
                return self._settings.shutdown_timeout_seconds
            if isinstance(order, Drain):
                return order.timeout_seconds
            if isinstance(order, StopClaiming):
                if not self._draining:
                    await worker.stop_claiming()
                self.say(messages.Quiet())
        if not self._draining:
            log.warning("the parent process is gone; stopping")
        self._writer.close()
        return self._settings.shutdown_timeout_seconds

    async def _next_line(self) -> bytes:
        try:
            return await self._reader.readline()
        except ConnectionError:
            return b""

    async def _drain(self, worker: WorkerThread, timeout_seconds: float) -> None:
        self._draining = True
        # The parent, which could kill it, may be gone.
        end_within(timeout_seconds + messages.LAST_SECONDS, 1)
        log.info("stopping", extra={"running_jobs": worker.running})
        handlers_left = await worker.drain(timeout_seconds)
        self._count()
        self.say(messages.Drained(handlers_left))

    async def _report(self, worker: WorkerThread) -> None:
        told_at = -messages.ALIVE_SECONDS
        while True:
            loops = worker.look()
            # A parent that doesn't read (a stopped one) gets the sum once it does.
            if self._writer.transport.get_write_buffer_size() == 0:
                self._count()
                if time.monotonic() - told_at >= messages.ALIVE_SECONDS:
                    told_at = time.monotonic()
                    self.say(messages.Alive(loops))
            await asyncio.sleep(REPORT_SECONDS)

    def _count(self) -> None:
        counts = self._tally.take()
        if counts is not None:
            self.say(messages.Counted(counts))


if __name__ == "__main__":
    main()
