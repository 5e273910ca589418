"""Plain handlers, each in a thread of its own."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any


async def run_in_thread(call: Callable[[], Any], *, name: str) -> Any:
    """
    Call a plain function in a thread of its own, and wait until it has returned.

    A daemon thread, unlike the interpreter's pool: one that never returns must not keep
    the process from exiting.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    # Not in the future, which would keep an exception in a cycle with its frames.
    answer: list[tuple[Any, BaseException | None]] = []
    caller = contextvars.copy_context()

    def report(value: Any, error: BaseException | None) -> None:
        answer.append((value, error))
        if not done.cancelled():
            done.set_result(None)

    def work() -> None:
        value, error = None, None
        try:
            value = caller.run(call)
        except BaseException as raised:  # noqa: BLE001 - whatever it is, it belongs to this job
            error = raised
        try:
            loop.call_soon_threadsafe(report, value, error)
        except RuntimeError:
            # The loop has closed: the process is going down, and the job was released.
            return
        finally:
            # The error's trace leads to this frame, so the frame must not lead to the error.
            del value, error

    threading.Thread(target=work, name=name, daemon=True).start()
    await done
    value, error = answer.pop()
    try:
        if isinstance(error, StopIteration):
            # It can't leave a coroutine.
            raise RuntimeError("the handler raised StopIteration") from error
        if error is not None:
            raise error
        return value
    finally:
        del error
