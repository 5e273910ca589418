"""Ending tasks."""

from __future__ import annotations

import asyncio

from fencepost.store.database import ACQUIRE_SECONDS


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
