"""
How far attempts are, as their handlers say, written down now and then.

A handler may report a thousand times a second; what is kept is the latest word of each
attempt, at most twice a second, all of a queue in one statement. It is for people who
look: losing one costs nothing, and no attempt ever waits for it or fails because of it.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol
from uuid import UUID

import msgspec

from fencepost.domain.backoff import pause_after
from fencepost.domain.text import clean_text
from fencepost.errors import DatabaseUnavailable
from fencepost.logger import get_logger
from fencepost.worker.attempt import Attempt, Key

log = get_logger("fencepost.worker")

EVERY_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 5.0
"""How long the next try waits, at the most, while nothing can be written."""
MESSAGE_CHARACTERS = 200


class _Word(msgspec.Struct, omit_defaults=True):
    fraction: float
    message: str | None = None


class ProgressStore(Protocol):
    """What this needs of the store."""

    async def write_progress(self, queue_id: int, progress: Mapping[Key, bytes], /) -> set[tuple[UUID, int]]:
        """Keep these; returns those that have to be tried again."""
        ...


class Progress:
    """
    Collects and writes what handlers report, for one worker.

    Made in the worker's loop; `put` may be called from any thread. While nobody reports
    anything, nothing runs.
    """

    def __init__(self, store: ProgressStore, *, every_seconds: float = EVERY_SECONDS) -> None:
        self._store = store
        self._every_seconds = every_seconds
        self._lock = threading.Lock()
        self._latest: dict[Attempt, bytes] = {}
        """Not written yet."""
        self._written: dict[Attempt, bytes] = {}
        """What was written last, of attempts that run."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Bind to the running loop, in which everything is written."""
        self._loop = asyncio.get_running_loop()

    def put(self, attempt: Attempt, fraction: float, message: str | None = None) -> None:
        """
        Note that *attempt* is so far, from 0 to 1 (what is beyond is taken for the nearer end).

        The message is made storable and cut to `MESSAGE_CHARACTERS`. Raises ValueError for
        what isn't a number.
        """
        word = _encode(_Word(_clamped(fraction), clean_text(str(message), MESSAGE_CHARACTERS) if message else None))
        with self._lock:
            wakes = not self._latest
            self._latest[attempt] = word
        if wakes and self._loop is not None:
            # The loop has closed: the process is going down.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._begin)

    def forget(self, attempt: Attempt) -> None:
        """It has ended."""
        if self._written or self._latest:
            with self._lock:
                self._written.pop(attempt, None)
                self._latest.pop(attempt, None)

    async def stop(self) -> None:
        """Write no more."""
        self._loop = None
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])

    def _begin(self) -> None:
        if self._loop is not None and (self._writing is None or self._writing.done()):
            self._writing = self._loop.create_task(self._write_on(), name="fencepost-progress")

    async def _write_on(self) -> None:
        """Until everything is written. Survives every database error."""
        failures = 0
        while self._latest:
            try:
                await self._write()
                failures = 0
            except DatabaseUnavailable as error:
                failures += 1
                log.debug("progress can't be written yet", extra={"reason": str(error)})
            except Exception:
                failures += 1
                log.exception("fault while writing progress")
            # Also after the last: the next word then waits, however soon it comes.
            pause = self._every_seconds
            if failures:
                pause = pause_after(failures, first_seconds=pause, longest_seconds=LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(pause)

    async def _write(self) -> None:
        waiting = self._take()
        try:
            for queue_id in list(waiting):
                words = waiting[queue_id]
                again = await self._store.write_progress(queue_id, {one.key: word for one, word in words.items()})
                waiting[queue_id] = {one: word for one, word in words.items() if one.key in again}
        finally:
            # What was written is not among them any more.
            for words in waiting.values():
                self._put_back(words)

    def _take(self) -> dict[int, dict[Attempt, bytes]]:
        """What is new, of attempts that run, by queue."""
        with self._lock:
            latest, self._latest = self._latest, {}
            by_queue: dict[int, dict[Attempt, bytes]] = defaultdict(dict)
            for attempt, word in latest.items():
                if attempt.ended_at is None and not attempt.abandoned and self._written.get(attempt) != word:
                    self._written[attempt] = word
                    by_queue[attempt.lease.queue_id][attempt] = word
        return by_queue

    def _put_back(self, words: Mapping[Attempt, bytes]) -> None:
        """They weren't written; whatever was reported since is newer."""
        with self._lock:
            for attempt, word in words.items():
                if self._written.pop(attempt, None) is not None:
                    self._latest.setdefault(attempt, word)


def _clamped(fraction: float) -> float:
    try:
        number = float(fraction)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"progress is a number from 0 to 1, not {type(fraction).__name__}: {error}") from None
    if math.isnan(number):
        raise ValueError("progress is a number from 0 to 1, not NaN")
    return min(max(number, 0.0), 1.0)


_encode = msgspec.json.Encoder().encode
