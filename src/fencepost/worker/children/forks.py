"""
A child and the processes that its jobs fork.

A forked process has all of its parent, the way back out of the handler included. It must
not take that way: it would answer for a job that isn't its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType

IGNORED = (signal.SIGTERM, signal.SIGINT)
"""What a service manager or a terminal sends to everybody; what it means for a job is the worker's to judge."""

_masks = threading.local()
"""What each thread that forks takes of signals otherwise."""


def leave_signals_to_the_worker() -> None:
    """Have no signal that is meant for the worker end this process, but any process that its jobs start."""
    for number in IGNORED:
        # Not SIG_IGN, which the programs that a job starts would inherit.
        signal.signal(number, _pass)
    # Held back around a fork: one that comes before the handlers are as usual again would be lost.
    os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_as_usual)
    # The worker has held them back until now.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)


@contextlib.contextmanager
def end_here() -> Iterator[None]:
    """End a process that was forked in here where it would leave, as the end of its program would."""
    started_in, status = os.getpid(), 0
    try:
        yield
    except BaseException as error:
        if os.getpid() != started_in:
            status = _status_of(error)
        raise
    finally:
        if os.getpid() != started_in:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os._exit(status)


def _status_of(error: BaseException) -> int:
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return (error.code or 0) & 0xFF
    with contextlib.suppress(Exception):
        if isinstance(error, SystemExit):
            sys.stderr.write(f"{error.code}\n")
        else:
            traceback.print_exception(error)
    return 1


def _pass(number: int, frame: FrameType | None) -> None:
    pass


def _hold_back() -> None:
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _as_usual() -> None:
    for number in IGNORED:
        if signal.getsignal(number) is _pass:
            # Not Python's KeyboardInterrupt either: raised in here, it would be lost.
            signal.signal(number, signal.SIG_DFL)
    _let_through()
