"""Fifty megabytes in a handler's frame, however its attempt ends: gone with it, with no help of the collector."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from pathlib import Path
from typing import Any

import pytest

from fencepost.domain.context import Context
from fencepost.domain.job import Status
from fencepost.errors import Permanent

from .support import Bench, wait_until

pytestmark = pytest.mark.anyio

BIG_BYTES = 50_000_000
SLOTS = 2
NOTHING: dict[int, int] = {}
ROUND = 4
ENDS = {
    "raises": Status.DEAD_LETTER,
    "raises chained": Status.DEAD_LETTER,
    "raises a group": Status.DEAD_LETTER,
    "raises for good": Status.FAILED,
    "times out": Status.DEAD_LETTER,
    "is cancelled": Status.CANCELLED,
}


class Held:
    """Fifty megabytes, watched."""

    def __init__(self) -> None:
        self.data = b"x" * BIG_BYTES


def resident_megabytes() -> float:
    """What this process holds; 0 where that can't be seen, which leaves the frames themselves to look at."""
    if not Path("/proc/self/statm").exists():
        return 0.0
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def fail(how: str, held: Held) -> None:
    """Raise some calls deep, where a local holds it too."""
    here = held
    if how == "raises chained":
        try:
            NOTHING[len(here.data)]
        except KeyError as error:
            raise RuntimeError("chained") from error
    if how == "raises a group":
        raise ExceptionGroup("several", [ValueError(str(len(here.data))), OSError("another")])
    if how == "raises for good":
        raise Permanent("for good")
    raise ValueError(f"{len(here.data)} bytes in my frame")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "how"),
    [*(("async", how) for how in ENDS), *(("sync", how) for how in ENDS if how.startswith("raises"))],
)
async def test_memory_settles(bench: Bench, kind: str, how: str) -> None:
    alive: weakref.WeakSet[Held] = weakref.WeakSet()

    @bench.job("async")
    async def in_loop(context: Context, payload: Any) -> None:
        held = Held()
        alive.add(held)
        if how in ("times out", "is cancelled"):
            await asyncio.sleep(60)
        fail(how, held)

    @bench.job("sync")
    def in_thread(context: Context, payload: Any) -> None:
        held = Held()
        alive.add(held)
        fail(how, held)

    worker = await bench.start(workers=SLOTS)
    await wait_until(lambda: worker._listener.is_connected, 3)

    async def round_of(count: int) -> float:
        ids = await bench.enqueue_many(
            kind, [None] * count, max_attempts=1, timeout_seconds=0.3 if how == "times out" else None
        )
        if how == "is cancelled":
            for job_id in ids:
                # Those that haven't started are cancelled where they are; both slots are seen to run some.
                await wait_until(lambda: len(alive) == min(SLOTS, worker.running) > 0, 10)
                await bench.jobs.cancel(job_id)
        ended = [await bench.ended(job_id) for job_id in ids]
        assert {job.status for job in ended} == {ENDS[how]}
        await wait_until(lambda: worker.running == 0 and not alive, 10, "the handlers' frames to be gone")
        return resident_megabytes()

    gc.collect()
    gc.disable()
    try:
        first = await round_of(ROUND)
        for _ in range(2):
            # Less than one of them: nothing stays, and what stays doesn't add up.
            assert await round_of(ROUND) < first + BIG_BYTES / 1e6 / 2
    finally:
        gc.enable()
