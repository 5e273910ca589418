"""
Resolve names in threads of our own.

uvloop looks names up in a pool of threads that the whole process shares, two at a time, and
nobody can stop a lookup that has begun: with two names whose servers don't answer, no other
name was resolved for as long as the system tried, the database's neither. Here a host keeps
two threads at the most, and whoever asks for one that is being looked up waits for that answer.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

Ask = Callable[[str, int], list[str]]
"""Blocks until it has a host's addresses; raises OSError when there are none."""

T = TypeVar("T")

RESOLVE_SECONDS = 3.0
THREADS = 16
OF_ONE_HOST = 2


def ask_system(host: str, port: int) -> list[str]:
    """Ask the system's resolver for every address of *host*, in the order to try them."""
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in answers))


class Lookups:
    """The lookups of a process, whichever of its loops ask for them."""

    def __init__(self, ask: Ask = ask_system, *, seconds: float = RESOLVE_SECONDS) -> None:
        self._ask = ask
        self._seconds = seconds
        self._lock = threading.Lock()
        self._threads = 0
        self._queue: deque[_Lookup] = deque()
        self._of_host: dict[str, list[_Lookup]] = {}

    async def resolve(self, host: str, port: int) -> list[str]:
        """The addresses of *host*. Raises OSError; a TimeoutError says what took too long."""
        lookup = self._join(host, port)
        try:
            await self._within(lookup.begun, f"looked up ({THREADS} others hang: the resolver is overloaded)")
            return await self._within(lookup.answer, "resolved")
        finally:
            with self._lock:
                lookup.waiters -= 1

    async def _within(self, future: Future[T], what: str) -> T:
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise TimeoutError(f"wasn't {what} within {self._seconds:g} seconds") from None

    def _join(self, host: str, port: int) -> _Lookup:
        """The lookup under way; another one when that is late, since the server may be well again."""
        with self._lock:
            lookups = self._of_host.setdefault(host, [])
            if not lookups or (lookups[-1].age > self._seconds and len(lookups) < OF_ONE_HOST):
                lookups.append(_Lookup(host, port))
                self._queue.append(lookups[-1])
            lookups[-1].waiters += 1
            if self._queue and self._threads < THREADS:
                # Where no thread can be started, those that there are come to it, or its time is over.
                with suppress(RuntimeError):
                    # A daemon: a lookup that hangs must not keep the process from ending.
                    threading.Thread(target=self._work, name="fencepost-lookup", daemon=True).start()
                    self._threads += 1
            return lookups[-1]

    def _work(self) -> None:
        while (lookup := self._next()) is not None:
            lookup.begun_at = time.monotonic()
            lookup.begun.set_result(None)
            try:
                addresses = self._ask(lookup.host, lookup.port)
            except Exception as error:  # noqa: BLE001 - it belongs to those who asked
                self._forget(lookup)
                lookup.answer.set_exception(error)
            else:
                self._forget(lookup)
                lookup.answer.set_result(addresses)

    def _next(self) -> _Lookup | None:
        with self._lock:
            while self._queue:
                lookup = self._queue.popleft()
                if lookup.waiters:
                    return lookup
                # Those who asked have given up.
                self._drop(lookup)
            self._threads -= 1
            return None

    def _forget(self, lookup: _Lookup) -> None:
        """Whoever asks from now on wants to know anew."""
        with self._lock:
            self._drop(lookup)

    def _drop(self, lookup: _Lookup) -> None:
        lookups = self._of_host[lookup.host]
        lookups.remove(lookup)
        if not lookups:
            del self._of_host[lookup.host]


class _Lookup:
    """One question to the resolver, and how many wait for its answer."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.waiters = 0
        self.begun_at: float | None = None
        self.begun: Future[None] = Future()
        self.answer: Future[list[str]] = Future()
        for shared in (self.begun, self.answer):
            # So that one who stops waiting doesn't cancel it for the others.
            shared.set_running_or_notify_cancel()

    @property
    def age(self) -> float:
        """How long it has been under way, in seconds."""
        return 0.0 if self.begun_at is None else time.monotonic() - self.begun_at


resolve = Lookups().resolve
"""As the system resolves it."""
