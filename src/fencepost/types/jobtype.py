"""One kind of job: its function, what its payload is, and what it asks for when the caller doesn't."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from fencepost.domain.context import Context
from fencepost.domain.fields import check_name
from fencepost.domain.job import Unique
from fencepost.domain.policy import Policy
from fencepost.errors import InvalidJob, InvalidSettings

Handler = Callable[[Context, Any], Any]
"""Takes the attempt's context and its decoded payload; returns the result, or a coroutine that does."""


class Kind(enum.Enum):
    """Where a handler runs."""

    ASYNC = "async"
    """In the worker's loop."""
    THREAD = "thread"
    """A plain function, in a thread of its own, so that it doesn't hold up the other jobs."""
    PROCESS = "process"
    """In a child process, which can be killed."""


class PayloadDecoder(Protocol):
    """Reads a payload."""

    def decode(self, text: str | bytes, /) -> Any:
        """Read JSON text. Raises msgspec.ValidationError or ValueError naming what doesn't fit."""
        ...


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """A resource that a function takes from its worker."""

    parameter: str
    name: str | None
    """The resource's name; None is by *annotation*."""
    annotation: Any


def never_unique(payload: bytes) -> Unique | None:
    """The unique rule of types that declare none."""
    return None


class JobType(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of job that can be run."""

    name: str
    handler: Handler
    decoder: PayloadDecoder
    kind: Kind
    policy: Policy | None = None
    """None leaves it to the settings of the worker."""
    timeout_seconds: float | None = None
    """The longest run of an attempt at a job that doesn't say; None leaves it to the worker."""
    queue: str = "default"
    priority: int = 0
    max_attempts: int | None = None
    """Of a job that doesn't say; None leaves it to the settings of whoever enqueues."""
    expires_seconds: float | None = None
    """A job that isn't started this long after it was stored ends cancelled; None is never."""
    unique_of: Callable[[bytes], Unique | None] = never_unique
    """The unique rule of a job with this payload, when the caller sends none. Raises InvalidJob."""
    path: str | None = None
    """`module:qualname`, by which a child process finds the function; only with `Kind.PROCESS`."""
    encode: Callable[[Any], bytes] | None = None
    """Writes a result as JSON; None is msgspec's own way. Raises TypeError or ValueError."""
    needs: tuple[Need, ...] = ()
    """The resources that its handler asks the context for."""

    @property
    def is_async(self) -> bool:
        """Whether it runs in the worker's loop, where it can be cancelled."""
        return self.kind is Kind.ASYNC


def check_type_name(name: str) -> None:
    """Raise InvalidSettings unless *name* can be a job type's."""
    try:
        check_name(name, "name")
    except InvalidJob as error:
        raise InvalidSettings(f"{name!r} can't name a job type: it {error.message}") from None
