"""Whether a caller may block its thread."""

from __future__ import annotations

import sys

from fencepost.errors import FencepostError


def refuse_in_loop() -> None:
    """Raise FencepostError, saying what to do instead, if this thread runs an event loop, which must not be blocked."""
    # A program that has no loop needn't import this.
    if "asyncio" not in sys.modules:
        return
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise FencepostError(
        "this thread runs an event loop, which enqueue_sync and app.wait would block: await instead of waiting, as in "
        "`await job.enqueue(…)` and `await handle.result(…)`. A notebook's cells run in a loop too, and may await; "
        "plain functions can be called with `await asyncio.to_thread(…)`"
    )
