"""What a worker is given to run: the job types, and what belongs around them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from fencepost.domain.context import Context
from fencepost.telemetry.events import Hooks
from fencepost.types.jobtype import JobType

Lifespan = Callable[..., AsyncIterator[Any] | AbstractAsyncContextManager[Any]]
"""
Opens what handlers share, yields it, closes it: an async generator function, bare or under
`contextlib.asynccontextmanager`, of no argument or of the app.
"""
AroundAttempt = Callable[[Context], AsyncIterator[None]] | Callable[[Context], Iterator[None]]
"""
A generator function, async or plain, that yields once: the attempt runs there. Async ones run in
the worker's loop; plain ones where the handler does, which for a plain handler is its own thread.
"""


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of a handler that is to be filled with a resource."""

    job_type: str
    parameter: str
    name: str | None
    """The resource's name; None is by *annotation*."""
    annotation: Any = None


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker needs to know of an app."""

    types: Mapping[str, JobType]
    lifespan: Lifespan | None = None
    around_attempt: tuple[AroundAttempt, ...] = ()
    """The first is the outermost."""
    hooks: Hooks = msgspec.field(default_factory=Hooks)
    needs: tuple[Need, ...] = ()
    """Checked once the lifespan is open, before the first claim."""
    app: Any = None
    """What a lifespan with a parameter gets."""

    def all_needs(self) -> list[Need]:
        """These needs, and those that the job types have themselves."""
        own = [
            Need(job_type=job_type.name, parameter=need.parameter, name=need.name, annotation=need.annotation)
            for job_type in self.types.values()
            for need in job_type.needs
        ]
        return [*self.needs, *own]

    @classmethod
    def of(cls, runtime_or_types: Runtime | Mapping[str, JobType]) -> Runtime:
        """Take a runtime as it is, and job types as one that has nothing else."""
        return runtime_or_types if isinstance(runtime_or_types, Runtime) else cls(types=runtime_or_types)
