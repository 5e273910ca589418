"""Answers that many callers may share for a moment, so that asking often costs no more than asking once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Shared(Generic[_T]):
    """
    The result of *load*, kept for *seconds*; whoever asks while it is being loaded waits for the same one.

    A failure is shared as well: every caller gets it, and the database is not asked again sooner.
    """

    def __init__(
        self, load: Callable[[], Awaitable[_T]], *, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._load = load
        self._seconds = seconds
        self._clock = clock
        self._task: asyncio.Task[_T] | None = None
        self._loaded_at = 0.0

    async def get(self) -> _T:
        """The result, at most so old. Raises what loading it raised."""
        task = self._task
        if task is None or (task.done() and self._clock() - self._loaded_at >= self._seconds):
            task = self._task = asyncio.get_running_loop().create_task(self._run(), name="fencepost-shared")
            task.add_done_callback(_look)
        # One caller that goes away must not take the answer from the others.
        return await asyncio.shield(task)

    async def _run(self) -> _T:
        try:
            return await self._load()
        finally:
            self._loaded_at = self._clock()


def _look(task: asyncio.Task[_T]) -> None:
    """Take note of a failure, also when nobody waited for it."""
    if not task.cancelled():
        task.exception()
