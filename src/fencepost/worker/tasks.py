"""Keeping tasks, and ending them."""

from __future__ import annotations

import asyncio

from fencepost.logger import get_logger
from fencepost.store.database import ACQUIRE_SECONDS

log = get_logger("fencepost.worker")


class Kept:
    """Tasks that are to run until they are let go. One that ends before that is logged, and told to who waits."""

    def __init__(self) -> None:
        self._let_go = False
        self._broken: str | None = None
        self._changed = asyncio.Event()

    def keep(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """Have an eye on a task."""
        task.add_done_callback(self._ended)
        return task

    def let_go(self) -> None:
        """From now on they may end."""
        self._let_go = True

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._let_go or self._broken is not None:
            return
        name = task.get_name()
        how = "was cancelled" if task.cancelled() else repr(task.exception() or "it returned")
        self._broken = f"a task of the worker ended without being asked to: {name} ({how}); start the worker anew"
        self._changed.set()
        log.error("a task of the worker ended without being asked to", extra={"task": name, "reason": how})

    async def until(self, stop: asyncio.Event) -> None:
        """Return once *stop* is set. Raises RuntimeError when a task ends before that."""
        waits = [asyncio.ensure_future(event.wait()) for event in (stop, self._changed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._broken is not None and not stop.is_set():
            raise RuntimeError(self._broken)


async def end_all(*tasks: asyncio.Task[None] | None) -> None:
    """
    End these tasks, and wait until they have.

    Asks more than once: a cancelled statement whose connection is silent ends in an error of
    the database, which such a task would survive.
    """
    waiting = {task for task in tasks if task is not None}
    while waiting:
        for task in waiting:
            task.cancel()
        # Longer than such a statement takes to end, or its connection would be left to itself.
        _, waiting = await asyncio.wait(waiting, timeout=ACQUIRE_SECONDS + 1)
