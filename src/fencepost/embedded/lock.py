"""
One owner for each data directory.

The kernel drops the lock with the process that holds it, however it ends, so there
is no stale lock to judge. The file stays; only the lock on it counts.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import weakref
from pathlib import Path

from fencepost.embedded.folders import open_private
from fencepost.errors import EmbeddedError

GRACE_SECONDS = 1.0
"""How long a killed owner may take to be gone before it counts as a living one."""


class DataLock:
    """The exclusive use of one data directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None

    def acquire(self) -> None:
        """
        Take the lock, or raise EmbeddedError naming who has it.

        Waits a moment first: a killed process keeps its locks until the kernel has
        taken it apart.
        """
        descriptor = open_private(self._path, os.O_RDWR)
        deadline = time.monotonic() + GRACE_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    message = self._refusal(descriptor)
                    os.close(descriptor)
                    raise EmbeddedError(message) from None
                time.sleep(0.02)
            else:
                break
        self._descriptor = descriptor
        _held.add(self)
        self.publish(None)

    def publish(self, dsn: str | None) -> None:
        """Write into the file who holds it and how to connect, for those that come later."""
        assert self._descriptor is not None
        text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "dsn": dsn})
        os.pwrite(self._descriptor, text.encode(), 0)
        os.ftruncate(self._descriptor, len(text))

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            _held.discard(self)

    def _refusal(self, descriptor: int) -> str:
        try:
            holder = json.loads(os.pread(descriptor, 4096, 0))
            who = f"Process {holder['pid']} on {holder['host']}"
            dsn = holder["dsn"]
        except (ValueError, KeyError, TypeError):
            who, dsn = "Another process", None
        shared = f", or share its database with DATABASE_URL='{dsn}'" if dsn else ""
        return (
            f"{who} already runs the private PostgreSQL in {self._path.parent}. "
            f"Stop it, or set DATA_DIR to another folder{shared}."
        )


_held: weakref.WeakSet[DataLock] = weakref.WeakSet()


def _let_go_in_child() -> None:
    # A forked child shares the lock, and would keep it held after its parent's death.
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_let_go_in_child)
