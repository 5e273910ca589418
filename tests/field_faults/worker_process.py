"""
A worker in a process of its own, to be stopped, killed, or given a wrong clock.

    python -m tests.field_faults.worker_process DSN LEASE_SECONDS CLOCK_OFFSET_SECONDS

It prints a line for each start, and one for each end that it was told of. With an offset everything that Python has
for the time of day is wrong by so much; the monotonic clock is as it was.
"""

from __future__ import annotations

import asyncio
import ctypes
import datetime
import os
import sys
import time
from typing import Any

OFFSET = float(sys.argv[3]) if __name__ == "__main__" else 0.0


class _Shifted(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> _Shifted:
        return super().now(tz) + datetime.timedelta(seconds=OFFSET)


if OFFSET:
    _time, _time_ns = time.time, time.time_ns
    time.time = lambda: _time() + OFFSET
    time.time_ns = lambda: _time_ns() + int(OFFSET) * 10**9
    datetime.datetime = _Shifted  # type: ignore[misc]

# After the clock is what it is to be.
from fencepost.app import Fencepost  # noqa: E402
from fencepost.domain.context import Context  # noqa: E402
from fencepost.domain.outcome import Ending  # noqa: E402
from fencepost.settings import Settings  # noqa: E402
from fencepost.telemetry.events import Events  # noqa: E402
from fencepost.worker.worker import Worker  # noqa: E402


class Told(Events):
    """Prints how attempts ended."""

    def ended(self, ending: Ending, status: str | None, seconds: float) -> None:
        """One attempt has ended here."""
        print("ended", ending, status, flush=True)


async def sleeps(context: Context, payload: Any) -> str:
    """Wait for so many seconds."""
    print("started", context.id, context.token, flush=True)
    await asyncio.sleep(float(payload))
    return f"token {context.token}"


def holds_the_interpreter(context: Context, payload: Any) -> str:
    """Wait in C without giving the interpreter's lock back; only the first time."""
    print("started", context.id, context.token, flush=True)
    if context.token == 1:
        ctypes.PyDLL(None).usleep(int(float(payload) * 1_000_000))
    return f"token {context.token}"


async def kills_its_process(context: Context, payload: Any) -> None:
    """End the process without a word."""
    os.kill(os.getpid(), 9)


def application() -> Fencepost:
    """The job types of these tests."""
    app = Fencepost()
    app.register("sleeps", sleeps, Any)
    app.register("holds", holds_the_interpreter, Any)
    app.register("kills", kills_its_process, Any)
    return app


async def main() -> None:
    """Work until the process is ended, or its standard input."""
    settings = Settings(
        workers=64, lease_seconds=float(sys.argv[2]), recovery_interval_seconds=0.05, poll_interval_seconds=0.2,
        lease_extension=True, backoff_base_seconds=0.01, backoff_max_seconds=0.02,
    )  # fmt: skip
    worker = Worker(sys.argv[1], application().types, settings, Told())
    await worker.start()
    print("working", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await worker.drain(10)


if __name__ == "__main__":
    asyncio.run(main())
