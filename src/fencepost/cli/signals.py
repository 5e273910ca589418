"""What asks a process to stop: SIGINT, SIGTERM, and a terminal that went away."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress

import click


class StopSignals:
    """
    Turns the first signal into `stop` and a second one into the end of the process.

    SIGHUP asks for the same as SIGTERM, once: a terminal that closes may send it several
    times. Where it was ignored from the start (`nohup`) it stays so.
    """

    def __init__(self, *, at_once: Callable[[], None] = lambda: None, announce: bool = True) -> None:
        """Handle them in the running loop. *at_once* is called before the process ends at a second signal."""
        self.stop = asyncio.Event()
        self._at_once = at_once
        self._announce = announce
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self._begin)
        self._signals = 0

    def _signalled(self, number: int) -> None:
        self._signals += 1
        if self._signals > 1:
            # No more Python: handlers, threads and buffers are left as they are; leases run out by themselves.
            self._at_once()
            os._exit(128 + number)
        self._begin()

    def _begin(self) -> None:
        if self.stop.is_set():
            return
        self.stop.set()
        if self._announce:
            # The terminal may be the very thing that went away.
            with suppress(OSError):
                click.echo("\nfencepost: stopping; once more to stop at once", err=True)
