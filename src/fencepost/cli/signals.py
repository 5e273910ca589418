"""What asks a command to stop: SIGINT, SIGTERM, and a terminal that went away."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import click

from fencepost.worker import stop_signals


class StopSignals(stop_signals.StopSignals):
    """
    Turns the first signal into `stop` and a second one into the end of the process.

    SIGHUP asks for the same as SIGTERM, once: a terminal that closes may send it several
    times. Where it was ignored from the start (`nohup`) it stays so.
    """

    def __init__(self, *, at_once: Callable[[], None] = lambda: None, announce: bool = True) -> None:
        """Handle them in the running loop. *at_once* is called before the process ends at a second signal."""
        super().__init__(
            begin=_announce if announce else lambda: None, end=partial(stop_signals.end_now, first=at_once)
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            self.take(number)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self.take(signal.SIGHUP, counts=False)


def _announce() -> None:
    # The terminal may be the very thing that went away.
    with suppress(OSError):
        click.echo("\nfencepost: stopping; once more to stop at once", err=True)
