"""A worker in a thread and an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from fencepost import handlers
from fencepost.logger import get_logger
from fencepost.telemetry.pulses import LoopState
from fencepost.worker.worker import Worker

T = TypeVar("T")

log = get_logger("fencepost.worker")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop there is here: uvloop, or asyncio's where that doesn't exist."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class WorkerThread:
    """
    Runs a Worker beside the loop that made this, and passes calls on to it.

    `failed` is done once the worker has ended without being asked to.
    """

    def __init__(self, make_worker: Callable[[], Worker]) -> None:
        self._make_worker = make_worker
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._home = asyncio.get_running_loop()
        self._finish: asyncio.Event | None = None
        self._starting: asyncio.Future[None] = self._home.create_future()
        self._life: asyncio.Task[None] | None = None
        self._lock = threading.Lock()
        self._given_up = False
        """Told to stop before it had started."""
        self.failed: asyncio.Future[BaseException] = self._home.create_future()

    @property
    def running(self) -> int:
        """How many handlers have not returned yet."""
        return self._worker.running if self._worker is not None else 0

    async def start(self) -> None:
        """Start the thread; returns when the worker claims, or when told to stop. Raises what its start raises."""
        threading.Thread(target=self._main, name="fencepost-worker", daemon=True).start()
        await self._starting

    def wake(self, queue_ids: Iterable[int]) -> None:
        """These queues may have something due."""
        if self._worker is not None:
            self._worker.wake(queue_ids)

    def look(self) -> list[LoopState]:
        """How the worker's loops are. Callable from any thread."""
        return self._worker.vitals.look() if self._worker is not None and not self.failed.done() else []

    async def stop_claiming(self) -> None:
        """See `Worker.stop_claiming`. A start under way is given up: what the app's lifespan opens may never answer."""
        with self._lock:
            self._given_up = self._worker is None
        if self._given_up:
            self._started(None)
            if self._loop is not None and self._life is not None:
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._life.cancel)
        elif self._worker is not None and not self.failed.done():
            await self._call(self._worker.stop_claiming())

    async def drain(self, timeout_seconds: float) -> int:
        """See `Worker.drain`; ends the thread's loop."""
        if self._worker is None or self._finish is None or self._loop is None or self.failed.done():
            return 0
        stubborn = await self._call(self._worker.drain(timeout_seconds))
        self._loop.call_soon_threadsafe(self._finish.set)
        return stubborn

    def kill(self) -> None:
        """Nothing: its thread ends with this process."""

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _main(self) -> None:
        runner = asyncio.Runner(loop_factory=new_event_loop)
        try:
            loop = runner.get_loop()
            life = self._life = loop.create_task(self._live())
            while not life.done():
                _run(loop, life)
            life.result()
        except BaseException as error:  # noqa: BLE001 - the service has to hear of it, whatever it is
            # Before the runner is closed, which waits for the tasks and threads that handlers have left.
            self._tell(self._report, error)
        runner.close()

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._finish = asyncio.Event()
        worker = self._make_worker()
        await worker.start()
        with self._lock:
            if not self._given_up:
                self._worker = worker
        if self._worker is None:
            # It has claimed nothing yet.
            await worker.drain(0)
            return
        self._tell(self._started, None)
        await worker.until(self._finish)
        await handlers.close()

    def _tell(self, callback: Callable[..., object], *arguments: Any) -> None:
        # The loop is gone when the process is about to end; nobody is left to hear it.
        with suppress(RuntimeError):
            self._home.call_soon_threadsafe(callback, *arguments)

    def _started(self, error: BaseException | None) -> None:
        if self._starting.done():
            return
        if error is None:
            self._starting.set_result(None)
        else:
            self._starting.set_exception(error)

    def _report(self, error: BaseException) -> None:
        if not self._starting.done():
            self._started(error)
        elif not self._given_up and not self.failed.done():
            self.failed.set_result(error)


def _run(loop: asyncio.AbstractEventLoop, life: asyncio.Task[None]) -> None:
    """
    Run the loop until *life* ends, or a task of some handler's raises SystemExit or KeyboardInterrupt.

    asyncio lets those two break out of the loop. The task has failed with them, which the
    handler that awaits it will see; the other jobs must not.
    """
    try:
        loop.run_until_complete(life)
    except (SystemExit, KeyboardInterrupt) as error:
        if not life.done():
            log.error("a task that a handler started raised %r; the worker goes on", error)
