"""
What happens, as calls: the one place where counting and logging attach.

The engine reports to an `Events`; this base class ignores everything, and the
service's (telemetry/metrics.py) counts. Methods are called on hot paths, from
several threads: they must be quick and must not raise.

`Hooks` is for everybody else: functions of an app's own that hear of each event as a value.
Nothing is made for them while nobody listens.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from uuid import UUID

import msgspec

from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending
from fencepost.errors import InvalidSettings
from fencepost.logger import get_logger

log = get_logger("fencepost.events")


class Events:
    """Hears what happens to jobs."""

    def submitted(self, count: int) -> None:
        """Jobs were stored; replays of an idempotency key don't count."""

    def started(self) -> None:
        """An attempt started."""

    def ended(self, ending: Ending, status: str | None, seconds: float) -> None:
        """
        An attempt ended after *seconds*, and its job is now in *status*.

        None when the lease was lost, so that nothing was recorded.
        """

    def retried_by_hand(self) -> None:
        """A dead-lettered job was put back."""

    def recovered(self, count: int) -> None:
        """Expired leases were taken back."""

    def pruned(self, count: int) -> None:
        """Finished jobs were removed: their time was over."""

    def stuck(self, change: int) -> None:
        """A handler that ignored its cancellation keeps a slot (+1), or let go of it (−1)."""


class JobEnqueued(msgspec.Struct, frozen=True):
    """This process has enqueued a job; in somebody's transaction, which may still roll back."""

    job_id: UUID
    type: str
    queue: str


class AttemptStarted(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt has started in this worker."""

    job_id: UUID
    type: str
    queue: str
    attempt: int
    token: int


class AttemptEnded(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt has ended, and that is written."""

    job_id: UUID
    type: str
    queue: str
    attempt: int
    token: int
    ending: Ending
    status: Status | None
    """Where its job is now; None when the lease was lost, so that nothing was written."""
    seconds: float
    error_type: str | None = None
    error: str | None = None
    retry_delay_seconds: float | None = None
    """How long the job waits, when it is pending again."""


class JobRecovered(msgspec.Struct, frozen=True):
    """A job was taken back: its lease had run out, so its worker is gone or was cut off."""

    job_id: UUID
    attempt: int
    status: Status
    """Pending, or dead_letter when that was the last attempt."""


class HandlerStuck(msgspec.Struct, frozen=True, kw_only=True):
    """A handler was interrupted and doesn't stop: its attempt has ended, its slot stays taken."""

    job_id: UUID
    type: str
    attempt: int
    interrupted_by: Ending


class HandlerReturned(msgspec.Struct, frozen=True, kw_only=True):
    """A stuck handler has returned after all; its slot is free."""

    job_id: UUID
    type: str
    attempt: int


Event = JobEnqueued | AttemptStarted | AttemptEnded | JobRecovered | HandlerStuck | HandlerReturned
"""Everything a listener may hear of."""

Listener = Callable[[Event], object]
"""Called in whatever thread the event happens in, the worker's loop mostly: it must be quick."""


class Hooks:
    """
    The listeners of an app, called one after the other.

    Look at `listeners` before making an event: with none of them nothing needs to be made.
    """

    __slots__ = ("listeners",)

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self.listeners: list[Listener] = []
        for listener in listeners:
            self.add(listener)

    def add(self, listener: Listener) -> None:
        """One more listener. Raises InvalidSettings for an async function, which would never run."""
        if inspect.iscoroutinefunction(listener) or inspect.isasyncgenfunction(listener):
            raise InvalidSettings(
                f"{listener.__name__} can't hear events: use a plain function, async ones aren't awaited"
            )
        self.listeners.append(listener)

    def emit(self, event: Event) -> None:
        """Tell every listener. What one raises is logged, and neither the others nor the caller notice."""
        for listener in self.listeners:
            try:
                listener(event)
            except BaseException:
                log.exception("fault in a listener", extra={"event_type": type(event).__name__})
