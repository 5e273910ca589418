"""What a worker's handlers share: opened once by the app's lifespan, found by name or by type."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from fencepost.domain.context import wanted
from fencepost.errors import FencepostError, InvalidSettings, LifespanFailed
from fencepost.logger import get_logger
from fencepost.worker.runtime import Lifespan, Need, Runtime

log = get_logger("fencepost.worker")

CLOSING_SECONDS = 10.0
"""How long a lifespan may take to close."""


class Resources:
    """
    Objects that can be found.

    *given* is what a lifespan yielded: a mapping of names to objects, a list, tuple or set of
    objects, any other object by itself, or None. (Something that merely can be iterated over,
    as a database session can, is one object.)
    """

    def __init__(self, given: object = None) -> None:
        self._named: dict[str, object] = {}
        self._objects: list[object] = []
        if isinstance(given, Mapping):
            self._named = {str(name): item for name, item in given.items()}
            self._objects = list(given.values())
        elif isinstance(given, list | tuple | set | frozenset):
            self._objects = list(given)
        elif given is not None:
            self._objects = [given]

    def find(self, name: str | None, annotation: Any) -> Any:
        """By *name* when there is one, else by type. Raises InvalidSettings."""
        return self.named(name) if name is not None else self.of_type(annotation)

    def named(self, name: str) -> Any:
        """The object of this name. Raises InvalidSettings."""
        if name not in self._named:
            raise InvalidSettings(f"there is no resource {name!r}; {self._list()}")
        return self._named[name]

    def of_type(self, annotation: Any) -> Any:
        """
        The object whose class this is, or else the one that is an instance of it.

        Raises InvalidSettings when there is none, or more than one.
        """
        kinds = _kinds(annotation)
        exact = _unique(item for item in self._objects if type(item) in kinds)
        try:
            found = exact or _unique(item for item in self._objects if isinstance(item, kinds))
        except TypeError:
            raise InvalidSettings(
                f"no resource can be found by {annotation!r}, which isn't a class: ask for it by name"
            ) from None
        if not found:
            raise InvalidSettings(f"there is no resource {wanted(None, annotation)}; {self._list()}")
        if len(found) > 1:
            raise InvalidSettings(
                f"there is more than one resource {wanted(None, annotation)}: "
                f"{' and '.join(self._describe(item) for item in found)}; ask for one by name"
            )
        return found[0]

    def check(self, needs: Iterable[Need]) -> None:
        """
        See that every parameter can be filled: by a name that is said, else by its own, else by type.

        Raises InvalidSettings naming the first that can't.
        """
        for need in needs:
            if need.name is None and need.parameter in self._named:
                continue
            try:
                self.find(need.name, need.annotation)
            except InvalidSettings as error:
                raise InvalidSettings(f"job type {need.job_type!r}, parameter {need.parameter!r}: {error}") from None

    def _list(self) -> str:
        if not self._objects:
            return "the app's lifespan opened none"
        return f"the app's lifespan opened {', '.join(self._describe(item) for item in self._objects)}"

    def _describe(self, item: object) -> str:
        kind = type(item).__name__
        return next((f"{name!r} ({kind})" for name, known in self._named.items() if known is item), f"a {kind}")


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """The classes that an annotation names: without what is in brackets, and without None."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return tuple(kind for part in typing.get_args(annotation) if part is not type(None) for kind in _kinds(part))
    return (origin or annotation,)


def _unique(items: Iterable[object]) -> list[object]:
    """Each of them once: a mapping may give one object two names."""
    return list({id(item): item for item in items}.values())


class OpenLifespan:
    """
    A runtime's lifespan, in a task of its own from the first step to the last.

    Task groups and cancel scopes insist on being left in the task that entered them, and a
    worker is started and drained in different ones.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._task: asyncio.Task[None] | None = None
        self._finish = asyncio.Event()

    async def open(self) -> Resources:
        """
        Run it up to its yield, and see that every handler can be given what it wants.

        Raises LifespanFailed for whatever it raises, but a FencepostError as it is; InvalidSettings
        for a parameter that can't be filled. What was opened is closed again then.
        """
        resources = Resources()
        if self._runtime.lifespan is not None:
            manager = _manager(self._runtime.lifespan, self._runtime.app)
            opened: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            self._task = asyncio.get_running_loop().create_task(self._live(manager, opened), name="fencepost-lifespan")
            try:
                resources = Resources(await opened)
            except FencepostError:
                raise
            except Exception as error:
                raise LifespanFailed(
                    f"the app's lifespan failed while opening: {type(error).__name__}: {error}"
                ) from error
        try:
            resources.check(self._runtime.all_needs())
        except InvalidSettings:
            await self.close()
            raise
        return resources

    async def close(self) -> None:
        """Run what comes after its yield. What that raises is logged, and so is that it takes too long."""
        if self._task is None:
            return
        self._finish.set()
        _, late = await asyncio.wait([self._task], timeout=CLOSING_SECONDS)
        if late:
            log.error("the app's lifespan does not close; giving up on it", extra={"seconds": CLOSING_SECONDS})
            self._task.cancel()
            await asyncio.wait([self._task], timeout=1)

    async def _live(self, manager: AbstractAsyncContextManager[Any], opened: asyncio.Future[object]) -> None:
        try:
            async with manager as given:
                opened.set_result(given)
                await self._finish.wait()
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            elif not opened.cancelled():
                log.exception("the app's lifespan failed while closing")


def _manager(lifespan: Lifespan, app: object) -> AbstractAsyncContextManager[Any]:
    """Call it, with the app if it takes something. Raises LifespanFailed."""
    call: Callable[..., Any] = (
        contextlib.asynccontextmanager(lifespan) if inspect.isasyncgenfunction(lifespan) else lifespan
    )
    try:
        takes_app = bool(inspect.signature(lifespan).parameters)
        manager = call(app) if takes_app else call()
    except Exception as error:
        raise LifespanFailed(f"the app's lifespan can't be called: {type(error).__name__}: {error}") from error
    if not isinstance(manager, AbstractAsyncContextManager):
        raise InvalidSettings(
            f"the app's lifespan makes a {type(manager).__name__}; write it as an async function that yields once"
        )
    return manager
