"""What a handler may know about the attempt it is running, and what it may ask for meanwhile."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, MutableMapping
from typing import Any, Protocol
from uuid import UUID

import msgspec

from fencepost.domain.job import Limits
from fencepost.errors import InvalidJob, InvalidSettings, WrongConnection
from fencepost.logger import get_logger

_LOG = get_logger("fencepost.job")


class Control(Protocol):
    """
    What stands behind a Context: the worker, a child process, or a test.

    What reaches it has been checked. Everything but `complete_in` may be called from any
    thread.
    """

    def progress(self, fraction: float, message: str | None) -> None:
        """Note how far the handler is, from 0 to 1; the newest note counts."""
        ...

    def extend(self, seconds: float) -> None:
        """Give the attempt so much more time. Raises WrongStatus once it has ended or was interrupted."""
        ...

    @property
    def remaining_seconds(self) -> float:
        """How long the attempt may still take; 0 when its time is up."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the attempt was interrupted, for whatever reason."""
        ...

    async def complete_in(self, connection: Any, result: object) -> None:
        """End the attempt in the open transaction of an async connection; see `Context.complete_in`."""
        ...

    def complete_in_sync(self, connection: Any, result: object) -> None:
        """The same for a sync connection."""
        ...

    def resource(self, name: str | None, annotation: Any) -> Any:
        """What the lifespan opened, by its name or by its type; see `Context.resource`."""
        ...


class DetachedControl:
    """
    Stands behind a Context that no worker made: its time never runs out, and nothing interrupts it.

    Keeps what the handler said, for whoever wants to look. A subclass may know resources.
    """

    def __init__(self, *, seconds: float = math.inf) -> None:
        self.remaining = seconds
        self.reports: list[tuple[float, str | None]] = []
        """What was passed to `Context.progress`."""
        self.interrupted = False
        """Set it to have `Context.cancelled` say so."""

    def progress(self, fraction: float, message: str | None) -> None:
        """Keep it."""
        self.reports.append((fraction, message))

    def extend(self, seconds: float) -> None:
        """Add to the time that is left."""
        self.remaining += seconds

    @property
    def remaining_seconds(self) -> float:
        """What it was made with, and what was added since."""
        return self.remaining

    @property
    def cancelled(self) -> bool:
        """What `interrupted` was set to."""
        return self.interrupted

    async def complete_in(self, connection: Any, result: object) -> None:
        """Refuse: there is no attempt to end."""
        self.complete_in_sync(connection, result)

    def complete_in_sync(self, connection: Any, result: object) -> None:
        """Refuse: there is no attempt to end."""
        raise WrongConnection("this context belongs to no attempt, so there is nothing to complete; run it in a worker")

    def resource(self, name: str | None, annotation: Any) -> Any:
        """Refuse: no lifespan was opened."""
        raise InvalidSettings(
            f"there is no resource {wanted(name, annotation)}: no lifespan was opened for this context"
        )


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at one job, as its handler sees it."""

    id: UUID
    """The job's id: the same in every attempt, so use it as the key for idempotency downstream."""
    type: str
    queue: str
    attempt: int
    """1 for the first attempt."""
    max_attempts: int
    token: int
    """The lease token: larger in every later attempt."""
    timeout_seconds: float
    """How long this attempt may take, from its start, unless it is extended."""
    tags: tuple[str, ...] = ()
    """The words its job was enqueued with."""
    metadata_json: str | None = None
    """The text of `metadata`."""
    trace_context: str | None = None
    """The W3C `traceparent` of whoever enqueued the job."""
    control: Control = msgspec.field(default_factory=DetachedControl)
    """What answers the calls below. Two contexts of one attempt are equal whoever that is."""

    @property
    def is_last(self) -> bool:
        """Whether a failure now would be the end of the job."""
        return self.attempt >= self.max_attempts

    @property
    def metadata(self) -> dict[str, Any]:
        """What the job was enqueued with beside its payload. A new copy each time."""
        return {} if self.metadata_json is None else msgspec.json.decode(self.metadata_json, type=dict[str, Any])

    @property
    def remaining_seconds(self) -> float:
        """How long this attempt may still take; 0 when its time is up."""
        return self.control.remaining_seconds

    @property
    def cancelled(self) -> bool:
        """
        Whether the attempt was interrupted: out of time, cancelled, its lease lost, or a shutdown.

        An async handler is told by CancelledError. A plain function can't be stopped in its
        thread, and should look here now and then, and return when it says True.
        """
        return self.control.cancelled

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines carry `job_id`, `job_type` and `attempt`, beside what `extra=` adds."""
        return JobLogger(_LOG, {"job_id": str(self.id), "job_type": self.type, "attempt": self.attempt})

    def progress(self, fraction: float, message: str | None = None) -> None:
        """
        Say how far the work is, from 0 to 1, for whoever looks at the job. From any thread.

        Cheap: it is written later, and only the newest of many. Raises InvalidJob for
        anything but a number from 0 to 1 and a text.
        """
        if not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise InvalidJob(f"must be a number from 0 to 1, not {fraction!r}", field="fraction")
        if message is not None and not isinstance(message, str):
            raise InvalidJob("must be a text", field="message")
        self.control.progress(float(fraction), message)

    def extend(self, seconds: float) -> None:
        """
        Give this attempt *seconds* more, up to 24 hours at once. From any thread.

        Raises InvalidJob for a number that isn't allowed, WrongStatus when it is too late: the
        attempt has ended, or was interrupted.
        """
        if not isinstance(seconds, int | float) or not 0 < seconds <= Limits.TIMEOUT_SECONDS:
            raise InvalidJob(
                f"must be more than 0 seconds and at most {Limits.TIMEOUT_SECONDS:g} (24 hours), not {seconds!r}",
                field="seconds",
            )
        self.control.extend(float(seconds))

    async def complete_in(self, connection: Any, result: object = None) -> None:
        """
        End this attempt in the open transaction of *connection*, with *result*.

        When that commits, the job is completed, whatever the handler does afterwards: so what
        the transaction wrote happens exactly once. When it doesn't, the attempt has failed, and
        the job is tried again.

        Raises LeaseLost when the job is no longer ours (let the transaction roll back),
        InvalidJob for a result that can't be stored, WrongConnection without an open
        transaction, WrongStatus when called a second time.
        """
        await self.control.complete_in(connection, result)

    def complete_in_sync(self, connection: Any, result: object = None) -> None:
        """The same as `complete_in` for a sync connection, in a plain function."""
        self.control.complete_in_sync(connection, result)

    def resource(self, name: str | None = None, annotation: Any = None) -> Any:
        """
        What the app's lifespan opened for this worker: by *name*, else by its type.

        Raises InvalidSettings, with a list of what there is, when there is none or more than one.
        """
        return self.control.resource(name, annotation)

    def _named(self) -> tuple[object, ...]:
        return tuple(getattr(self, field) for field in self.__struct_fields__ if field != "control")

    def __eq__(self, other: object) -> bool:
        return self._named() == other._named() if isinstance(other, Context) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.id, self.token))


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds a job's fields to what the caller's own `extra` says; the caller's win."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Merge the two."""
        own: Mapping[str, object] = self.extra or {}
        return msg, {**kwargs, "extra": {**own, **(kwargs.get("extra") or {})}}


def wanted(name: str | None, annotation: Any) -> str:
    """Put into words which resource is asked for."""
    if name is not None:
        return repr(name)
    return f"of type {getattr(annotation, '__name__', annotation)}"
