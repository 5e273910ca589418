"""Disturbances of the proxy that overlap: each ends in its time and leaves the others as they are."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from chaos.world.proxy import Proxy

Disturb = Callable[[list[str]], object]


class Network:
    """The proxy's listeners and what disturbs each of them now. For any thread."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._lock = threading.Lock()
        self._names: list[str] = []
        self._going_on: list[tuple[list[str], Disturb]] = []

    def add(self, name: str) -> None:
        """Count the listener *name* among those that a disturbance of all hits."""
        with self._lock:
            if name not in self._names:
                self._names.append(name)

    def chosen(self, names: list[str] | None) -> list[str]:
        """These listeners, or all of them."""
        with self._lock:
            return list(self._names) if names is None else names

    @contextlib.contextmanager
    def disturbed(self, names: list[str] | None, disturb: Disturb) -> Iterator[None]:
        """
        Have *disturb* in force on *names* for the length of a `with`.

        At its end what is still going on there is put in force again.
        """
        entry = (self.chosen(names), disturb)
        with self._lock:
            self._going_on.append(entry)
            disturb(entry[0])
        try:
            yield
        finally:
            with self._lock:
                self._going_on = [one for one in self._going_on if one is not entry]
                self._proxy.restore(entry[0])
                for others, again in self._going_on:
                    if both := [name for name in others if name in entry[0]]:
                        again(both)
