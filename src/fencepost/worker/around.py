"""What an app runs around every attempt."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Final

from fencepost.domain.context import Context
from fencepost.errors import InvalidSettings
from fencepost.worker.runtime import AroundAttempt

_Managed = Callable[[Context], AbstractAsyncContextManager[None]]
_ManagedPlainly = Callable[[Context], AbstractContextManager[None]]

SUPPRESSED: Final = object()
"""What is returned in the place of a handler that raised, or never ran, when the exception was suppressed."""


class Around:
    """
    Functions that yield once, with the attempt in the place of the yield; the first is the outermost.

    Async ones run in the attempt's own task, so context variables that they set are seen by
    what is inside of them, in threads too. Plain ones run where the handler does: in its thread
    for a plain handler, and then inside of all async ones, else in the loop, in their turn.
    """

    def __init__(self, functions: Iterable[AroundAttempt]) -> None:
        self._async: list[_Managed] = []
        self._plain: list[_ManagedPlainly] = []
        self._all: list[_Managed] = []
        for function in functions:
            if inspect.isasyncgenfunction(function):
                manager = contextlib.asynccontextmanager(function)
                self._async.append(manager)
                self._all.append(manager)
            elif inspect.isgeneratorfunction(function):
                plain = contextlib.contextmanager(function)
                self._plain.append(plain)
                self._all.append(_in_loop(plain))
            else:
                name = getattr(function, "__name__", repr(function))
                raise InvalidSettings(f"{name} can't run around attempts: write a function that yields once")

    async def run(self, context: Context, call: Callable[[], Awaitable[Any]], *, has_thread: bool) -> Any:
        """
        Await *call* inside of all of them; with *has_thread* the plain ones are left to `within_thread`.

        Raises what it raises, or what they make of that. SUPPRESSED when one of them suppresses the
        exception: then the attempt has succeeded, without a result, unless it was interrupted.
        """
        value: Any = SUPPRESSED
        async with contextlib.AsyncExitStack() as stack:
            for manager in self._async if has_thread else self._all:
                await stack.enter_async_context(manager(context))
            value = await call()
        return value  # noqa: RET504 - also when one of them has suppressed what was raised

    def within_thread(self, context: Context, call: Callable[[], Any]) -> Any:
        """Make a plain call inside of the plain ones, in this thread."""
        value: Any = SUPPRESSED
        with contextlib.ExitStack() as stack:
            for manager in self._plain:
                stack.enter_context(manager(context))
            value = call()
        return value  # noqa: RET504 - also when one of them has suppressed what was raised


def _in_loop(plain: _ManagedPlainly) -> _Managed:
    @contextlib.asynccontextmanager
    async def manager(context: Context) -> AsyncIterator[None]:
        with plain(context):
            yield

    return manager
