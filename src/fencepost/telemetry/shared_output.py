"""
One stdout for several processes, a line at a time.

The system keeps a short write to a pipe in one piece, but splits one of more than a few
thousand bytes (a line with a trace) when the pipe is full, and then another process's
line lands in the middle. So whoever writes takes its turn first: a lock on a file that
has no name. The kernel drops it with the process that holds it, however that ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import tempfile
import time
from typing import TextIO

PATIENCE_SECONDS = 2.0
"""How long somebody may keep the turn before lines are written without it."""
_SHORTEST_PAUSE_SECONDS = 0.00005
_LONGEST_PAUSE_SECONDS = 0.002
_WHOSE = struct.Struct("qq")
"""What the file says about the turn: who has it, and for which line. It differs with each."""


def make_turn() -> int | None:
    """
    Make the file whose lock is the turn; returns its descriptor, to be inherited by the other processes.

    None where no file can be made: lines are then only as whole as the system keeps them.
    """
    try:
        with tempfile.TemporaryFile(prefix="fencepost-") as file:
            return os.dup(file.fileno())
    except OSError:
        return None


class SharedHandler(logging.StreamHandler[TextIO]):
    """Writes each line in one piece, among processes that write to the same place."""

    def __init__(self, stream: TextIO, *, turn: int, worker_process: int | None) -> None:
        """*worker_process* is shown in each line, so that the lines of one can be told from another's."""
        super().__init__(stream)
        self._turn = turn
        self._worker_process = worker_process
        self._patient = True
        self._pid = os.getpid()
        self._lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, in our turn."""
        try:
            if self._worker_process is not None:
                record.worker_process = self._worker_process
            line = self.format(record) + self.terminator
            taken = self._take_turn()
            try:
                self.stream.write(line)
                self.flush()
            finally:
                if taken:
                    _lock(self._turn, fcntl.LOCK_UN)
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001 - what logging's own handlers do
            self.handleError(record)

    def _take_turn(self) -> bool:
        """
        Take the turn, or do without when it doesn't come.

        A process that was stopped (SIGSTOP) in the middle of a line keeps it, and must not
        stop the others. So we wait for as long as it goes from one to the next, but not for
        one that keeps it; and after that in vain, not again until it is free.
        """
        pause = _SHORTEST_PAUSE_SECONDS
        seen: bytes | None = None
        deadline = 0.0
        while (taken := _lock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)) is False and self._patient:
            if seen != (seen := os.pread(self._turn, _WHOSE.size, 0)):
                deadline = time.monotonic() + PATIENCE_SECONDS
            self._patient = time.monotonic() < deadline
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        if taken:
            self._patient = True
            self._lines += 1
            os.pwrite(self._turn, _WHOSE.pack(self._pid, self._lines), 0)
        return taken is True


def _lock(turn: int, way: int) -> bool | None:
    """Whether it is ours; None when there is no lock to be had: a handler may have closed every descriptor."""
    try:
        fcntl.lockf(turn, way)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None
    return True
