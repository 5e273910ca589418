"""What the tests of the world share."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from chaos.world import make_folder


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder for a world, removed afterwards."""
    folder = make_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def eventually(holds: Callable[[], bool], *, seconds: float = 20.0) -> bool:
    """Whether it comes to hold in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class Writers:
    """Clients that insert one row after the other and write down those that were acknowledged."""

    def __init__(self, dsn: str, *, count: int = 4, first: int = 0) -> None:
        self.acknowledged: set[tuple[int, int]] = set()
        self.errors = 0
        self._dsn = dsn
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(first + one,)) for one in range(count)]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def go_on(self) -> bool:
        """Whether there is an acknowledgement that came after this call."""
        known = len(self.acknowledged)
        return eventually(lambda: len(self.acknowledged) > known)

    def _write(self, writer: int) -> None:
        number = 0
        while not self._over.is_set():
            with suppress(psycopg.Error), psycopg.connect(self._dsn, autocommit=True, connect_timeout=5) as session:
                while not self._over.is_set():
                    number += 1
                    session.execute("insert into written values (%s, %s)", (writer, number))
                    self.acknowledged.add((writer, number))
            self.errors += 1
            time.sleep(0.01)
