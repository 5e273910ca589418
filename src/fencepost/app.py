"""The registry of job types: which functions can be run, and what they take."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from fencepost.errors import InvalidSettings
from fencepost.types.jobtype import Handler, JobType, Kind, check_type_name

_F = TypeVar("_F", bound=Handler)


class Fencepost:
    """Holds the job types that a process knows."""

    def __init__(self) -> None:
        self.types: dict[str, JobType] = {}

    def register(self, name: str, handler: Handler, payload: Any = Any) -> None:
        """
        Make *handler* run the jobs of type *name*; their payload must fit the type *payload*.

        Raises InvalidSettings for a name that is taken or can't be one.
        """
        check_type_name(name)
        if inspect.isasyncgenfunction(handler) or inspect.isgeneratorfunction(handler):
            raise InvalidSettings(
                f"the handler of {name!r} is a generator, which would never run; use return, not yield"
            )
        if name in self.types:
            raise InvalidSettings(f"the job type {name!r} is registered already")
        self.types[name] = JobType(
            name=name,
            handler=handler,
            decoder=msgspec.json.Decoder(payload),
            kind=Kind.ASYNC if inspect.iscoroutinefunction(handler) else Kind.THREAD,
        )

    def job(self, name: str, *, payload: Any = Any) -> Callable[[_F], _F]:
        """Register the decorated function, async or plain, as the handler of *name*."""

        def decorate(handler: _F) -> _F:
            self.register(name, handler, payload)
            return handler

        return decorate
