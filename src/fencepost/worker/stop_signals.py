"""What asks a process to stop: the first signal, and the second."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class StopSignals:
    """
    Turns the first signal into `stop` and a second one into the end of the process.

    They are handled between two instructions of the main thread, not by the loop: a second one must be heard
    also where a job blocks the loop.
    """

    def __init__(self, *, begin: Callable[[], None] = lambda: None, end: Callable[[int], None] | None = None) -> None:
        """
        For the running loop, which must be the main thread's; nothing is taken yet.

        At the first signal *begin* is called in the loop. At a second one *end* is called, at once and anywhere;
        without it the signals' default actions are back by then, which end even what is stuck outside of Python.
        """
        self.stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._tell = begin
        self._end = end
        self._signals = 0
        self._before: dict[int, Any] = {}

    def take(self, number: int, *, counts: bool = True) -> None:
        """Handle this signal. One that doesn't *count* asks for the same, but ends nothing however often it comes."""
        self._before[number] = signal.signal(number, self._signalled if counts else self._asked)

    def give_back(self) -> None:
        """Let the signals do what they did before."""
        while self._before:
            signal.signal(*self._before.popitem())

    def _signalled(self, number: int, frame: object) -> None:
        self._signals += 1
        if self._signals > 1 and self._end is not None:
            self._end(number)
        if self._end is None:
            for taken in self._before:
                signal.signal(taken, signal.SIG_DFL)
        self._asked(number, frame)

    def _asked(self, number: int, frame: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if not self.stop.is_set():
            self.stop.set()
            self._tell()


def end_now(number: int, *, first: Callable[[], None] = lambda: None) -> None:
    """End the process as a shell reports that signal, after a *first* step. Nothing else of Python is run."""
    # Handlers, threads and buffers are left as they are; leases run out by themselves.
    first()
    os._exit(128 + number)


class _Shared:
    """Those that `stopping` has taken, and for how many."""

    signals: StopSignals | None = None
    users = 0


@contextmanager
def stopping() -> Iterator[asyncio.Event]:
    """
    An event that is set when SIGINT or SIGTERM asks the process to stop; a second signal ends it.

    Only in the main thread, and only those that the program doesn't handle or ignore itself. Afterwards they do
    what they did before. Several at once in a loop hear of the same signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield asyncio.Event()
        return
    if _Shared.signals is None:
        _Shared.signals = StopSignals()
        for number in (signal.SIGINT, signal.SIGTERM):
            if _is_free(number):
                _Shared.signals.take(number)
    signals = _Shared.signals
    _Shared.users += 1
    try:
        yield signals.stop
    finally:
        _Shared.users -= 1
        if not _Shared.users:
            _Shared.signals = None
            signals.give_back()


def _is_free(number: int) -> bool:
    """Whether nobody but Python itself has a handler for it; `asyncio.run` has one for SIGINT, to cancel its task."""
    handler = signal.getsignal(number)
    if isinstance(handler, functools.partial):
        return getattr(handler.func, "__func__", None) is getattr(asyncio.Runner, "_on_sigint", None)
    return handler in (signal.SIG_DFL, signal.default_int_handler)
