"""The registry of job types: which functions can be run, and what they take."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from fencepost.domain.context import Context
from fencepost.errors import InvalidSettings

Handler = Callable[[Context, Any], Any]
"""Takes the attempt's context and its payload; returns the result, or a coroutine that does."""

_F = TypeVar("_F", bound=Handler)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}")


class JobType(msgspec.Struct, frozen=True):
    """One kind of job that can be run."""

    name: str
    handler: Handler
    decoder: Any
    """Reads the payload; raises msgspec.ValidationError naming what doesn't fit."""
    is_async: bool
    """False runs it in a thread, so that it doesn't hold up the other jobs."""


class Fencepost:
    """Holds the job types that a process knows."""

    def __init__(self) -> None:
        self.types: dict[str, JobType] = {}

    def register(self, name: str, handler: Handler, payload: Any = Any) -> None:
        """
        Make *handler* run the jobs of type *name*; their payload must fit the type *payload*.

        Raises InvalidSettings for a name that is taken or can't be one.
        """
        if not _NAME.fullmatch(name):
            raise InvalidSettings(f"{name!r} can't name a job type: use up to 100 of A-Z a-z 0-9 _ . : -")
        if inspect.isasyncgenfunction(handler) or inspect.isgeneratorfunction(handler):
            raise InvalidSettings(
                f"the handler of {name!r} is a generator, which would never run; use return, not yield"
            )
        if name in self.types:
            raise InvalidSettings(f"the job type {name!r} is registered already")
        self.types[name] = JobType(name, handler, msgspec.json.Decoder(payload), inspect.iscoroutinefunction(handler))

    def job(self, name: str, *, payload: Any = Any) -> Callable[[_F], _F]:
        """Register the decorated function, async or plain, as the handler of *name*."""

        def decorate(handler: _F) -> _F:
            self.register(name, handler, payload)
            return handler

        return decorate
