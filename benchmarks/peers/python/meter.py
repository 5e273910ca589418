"""
What a process of a peer tells the runner: lines of JSON on its standard output.

    ready    connected, waiting for the word to go
    first    the first no-op job's handler has begun
    count    so many handlers have begun by now; about a hundred such lines a second
    pickup   one job of the latency run: microseconds from its enqueue to its handler
    done     the command's answer

All times are CLOCK_MONOTONIC, which every process of a machine shares.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

TICK_SECONDS = 0.01

_count = 0


def emit(event: str, **fields: Any) -> None:
    """Send one line; short enough for the pipe to keep it whole between threads."""
    os.write(1, (json.dumps({"event": event, **fields}) + "\n").encode())


def record(payload: Mapping[str, Any]) -> None:
    """The whole of every handler: note that this job's handler has begun."""
    global _count  # noqa: PLW0603 - one integer, on the hot path of what is measured
    sent = payload.get("t")
    if sent is not None:
        emit("pickup", microseconds=time.monotonic_ns() // 1000 - sent)
        return
    if not _count:
        emit("first", at=time.monotonic_ns())
    _count += 1


async def wait_for_go() -> None:
    """Say that the worker is ready; return when the runner lets all of them go."""
    loop = asyncio.get_running_loop()
    go = asyncio.Event()
    threading.Thread(target=_obey, args=(loop, go), daemon=True).start()
    emit("ready")
    await go.wait()
    threading.Thread(target=_tick, daemon=True).start()


def _obey(loop: asyncio.AbstractEventLoop, go: asyncio.Event) -> None:
    """The first line means go. The second, or the runner's end, means that the measurement is over."""
    sys.stdin.readline()
    loop.call_soon_threadsafe(go.set)
    sys.stdin.readline()
    os._exit(0)


def _tick() -> None:
    told = 0
    while True:
        time.sleep(TICK_SECONDS)
        if _count != told:
            told = _count
            emit("count", at=time.monotonic_ns(), count=told)
