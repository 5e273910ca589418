"""
A loop in a thread, for callers that have none.

One for each app and process, made when it is first needed. It is a daemon thread, closed
in good order when the interpreter ends. A forked child makes one of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from fencepost.client.forking import forget_in_children
from fencepost.errors import FencepostError

T = TypeVar("T")
_CLOSING_SECONDS = 10.0


class Portal:
    """Runs coroutines for sync callers of any thread. *close* is awaited in its loop before that ends."""

    def __init__(self, close: Callable[[], Awaitable[None]]) -> None:
        self._close = close
        self.forget()
        forget_in_children(self)

    def forget(self) -> None:
        """Have no loop: in a forked child its thread isn't there any more, and its sockets are the parent's."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """
        Run *work* in the portal's loop, and return what it returns, or raise what it raises.

        Blocks the calling thread. Raises FencepostError inside of the portal itself, where it would wait for ever.
        """
        if self._thread is threading.current_thread():
            work.close()
            raise FencepostError("this code runs in the loop that sync callers wait for; await instead of waiting")
        future = asyncio.run_coroutine_threadsafe(work, self._started())
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise FencepostError("the app was closed while this was waited for") from None
        except BaseException:
            future.cancel()
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._serve, args=(loop,), name="fencepost-portal", daemon=True)
                self._thread.start()
                atexit.register(self.stop)
            return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def stop_first(self) -> None:
        """When the interpreter ends, stop before whatever has been started until now."""
        atexit.unregister(self.stop)
        atexit.register(self.stop)

    def stop(self) -> None:
        """Close what runs in it, and end the thread. The next `run` starts another. Safe to call twice."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
            if loop is None or thread is None:
                return
            atexit.unregister(self.stop)
            closing = asyncio.run_coroutine_threadsafe(self._end(), loop)
            try:
                closing.result(_CLOSING_SECONDS)
            except (concurrent.futures.TimeoutError, FencepostError):
                pass
            finally:
                loop.call_soon_threadsafe(loop.stop)
                thread.join(_CLOSING_SECONDS)

    async def _end(self) -> None:
        """Cancel what is being waited for, and close."""
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine and task.get_name().startswith("Task-")]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._close()
