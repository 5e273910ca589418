"""The closed set of ways an attempt ends, and what each makes of its job."""

from __future__ import annotations

import enum
import math
import traceback
from uuid import UUID

import msgspec

from fencepost.domain.jitter import between
from fencepost.domain.job import Lease, Limits, Status
from fencepost.domain.policy import Policy
from fencepost.domain.text import clean_text
from fencepost.errors import Cancel, Retry, Snooze

MESSAGE_CHARACTERS = 4_000
TRACEBACK_CHARACTERS = 16_000
DELAY_CEILING_SECONDS = 24 * 3600.0
"""The longest a handler's own `Retry(after=…)` is believed."""
LATER = 0.1
"""How much later than that it may be, as a share: jobs that were sent away together don't come back together."""


class Ending(enum.StrEnum):
    """How an attempt ended; also the `outcome` in logs and metrics."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The handler raised; may be tried again."""
    TIMED_OUT = "timed_out"
    PERMANENT = "permanent"
    """It can't ever succeed."""
    CANCELLED = "cancelled"
    RELEASED = "released"
    """Interrupted by a shutdown; the attempt is given back."""
    SNOOZED = "snoozed"
    """Its time hasn't come, or this worker doesn't know its type and another does; the attempt is given back."""
    LOST = "lost"
    """The lease went to someone else; there is nothing to write."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one attempt, under its lease token: what the settlement writes."""

    id: UUID
    queue_id: int
    token: int
    ending: Ending
    status: Status
    """Where the job goes."""
    delay_seconds: float = 0.0
    """How long it waits, when it goes back to pending."""
    result: bytes | None = None
    """JSON text."""
    error_type: str | None = None
    error: str | None = None
    traceback: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to say but that it succeeded."""
        return self.ending is Ending.SUCCEEDED and self.result is None


def succeeded(lease: Lease, result: bytes | None) -> Outcome:
    """The handler returned."""
    return Outcome(
        id=lease.id,
        queue_id=lease.queue_id,
        token=lease.token,
        ending=Ending.SUCCEEDED,
        status=Status.COMPLETED,
        result=result,
    )


def released(lease: Lease) -> Outcome:
    """A shutdown came first: back to pending, due now, with the attempt given back."""
    return Outcome(
        id=lease.id,
        queue_id=lease.queue_id,
        token=lease.token,
        ending=Ending.RELEASED,
        status=Status.PENDING,
        error_type="Released",
        error="interrupted by a shutdown of its worker; the attempt was given back",
    )


def cancelled(lease: Lease) -> Outcome:
    """Somebody asked for the job to stop, and it did."""
    return Outcome(
        id=lease.id,
        queue_id=lease.queue_id,
        token=lease.token,
        ending=Ending.CANCELLED,
        status=Status.CANCELLED,
        error_type="Cancelled",
        error="cancelled on request while it was running",
    )


def expired(lease: Lease) -> Outcome:
    """It was to start before a certain moment, and that has passed."""
    return _ended(
        lease, Ending.CANCELLED, Status.CANCELLED, ("Expired", "its time was over before this attempt started", None)
    )


def snoozed(lease: Lease, seconds: float) -> Outcome:
    """Back to pending, due after *seconds*, with the attempt given back."""
    return Outcome(
        id=lease.id,
        queue_id=lease.queue_id,
        token=lease.token,
        ending=Ending.SNOOZED,
        status=Status.PENDING,
        # In this order a NaN, which no statement takes, is 0.
        delay_seconds=min(max(0.0, seconds), Limits.DELAY_SECONDS),
    )


def timed_out(lease: Lease, seconds: float, policy: Policy) -> Outcome:
    """The attempt took too long."""
    message = f"the attempt exceeded its timeout of {seconds:g} seconds"
    return _retryable(lease, Ending.TIMED_OUT, policy.delay(lease.attempt), ("Timeout", message, None))


def permanent(lease: Lease, error_type: str, message: str) -> Outcome:
    """No attempt can succeed: the type is unknown here, or the payload doesn't fit it."""
    return _ended(lease, Ending.PERMANENT, Status.FAILED, (error_type, clean_text(message, MESSAGE_CHARACTERS), None))


class Verdict(enum.StrEnum):
    """What an exception makes of its attempt."""

    RETRY = "retry"
    FINAL = "final"
    CANCEL = "cancel"
    SNOOZE = "snooze"


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """An exception in words, and its verdict: all that an outcome needs, without the exception."""

    verdict: Verdict
    error_type: str = ""
    error: str = ""
    traceback: str | None = None
    seconds: float | None = None
    """How long the job is to wait, if the exception says."""


def failed(lease: Lease, error: BaseException, policy: Policy) -> Outcome:
    """The handler raised *error*. What can't be printed of it is replaced, never raised."""
    return judged(lease, judge(error, policy), policy)


def judge(error: BaseException, policy: Policy) -> Judgement:
    """Say what *error* makes of an attempt. Asks *policy* only which errors are final. Never raises."""
    try:
        return _judge(error, policy)
    except BaseException:  # noqa: BLE001 - classes may have properties, and checks of instances, that raise
        return _judgement(Verdict.RETRY, error, None)


def _judge(error: BaseException, policy: Policy) -> Judgement:
    # Attributes are looked for with care: a subclass may have forgotten to call ours.
    if isinstance(error, Snooze) and (pause := _seconds(getattr(error, "seconds", None))) is not None:
        return Judgement(verdict=Verdict.SNOOZE, seconds=pause)
    if isinstance(error, Cancel):
        return _judgement(Verdict.CANCEL, error, None)
    if isinstance(error, Retry):
        return _judgement(Verdict.RETRY, error, _seconds(getattr(error, "after", None)))
    return _judgement(Verdict.FINAL if policy.is_final(error) else Verdict.RETRY, error, None)


def _judgement(verdict: Verdict, error: BaseException, seconds: float | None) -> Judgement:
    error_type, message, trace = describe(error)
    return Judgement(verdict=verdict, error_type=error_type, error=message, traceback=trace, seconds=seconds)


def _seconds(value: object) -> float | None:
    """A wait as a float, which travels from a child process, whatever number it is."""
    if not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else 0.0


def judged(lease: Lease, judgement: Judgement, policy: Policy) -> Outcome:
    """The handler raised, here or elsewhere, and it was judged."""
    if judgement.verdict is Verdict.SNOOZE:
        return snoozed(lease, judgement.seconds or 0.0)
    described = judgement.error_type, judgement.error, judgement.traceback
    if judgement.verdict is Verdict.CANCEL:
        return _ended(lease, Ending.CANCELLED, Status.CANCELLED, described)
    if judgement.verdict is Verdict.FINAL:
        return _ended(lease, Ending.PERMANENT, Status.FAILED, described)
    delay = policy.delay(lease.attempt)
    if judgement.seconds is not None:
        delay = max(delay, _spread(min(judgement.seconds, DELAY_CEILING_SECONDS)))
    return _retryable(lease, Ending.FAILED, delay, described)


def _spread(seconds: float) -> float:
    """A wait that was asked for, or up to a tenth more: one answer sends many jobs away at once."""
    return seconds * between(1, 1 + LATER)


def describe(error: BaseException) -> tuple[str, str, str | None]:
    """
    Put an exception into words that can be stored: its type, its message, its trace.

    Bounded, free of what PostgreSQL can't hold, and safe for exceptions whose own
    `__str__` raises. Keeps no reference to the exception's frames.
    """
    name = _name(error)
    try:
        message = str(error)
    except BaseException:  # noqa: BLE001 - an exception that can't be printed must still be recorded
        message = "(the exception's own text could not be made)"
    try:
        trace = "".join(traceback.format_exception(error, limit=-20, chain=True))
    except BaseException:  # noqa: BLE001 - the same
        trace = None
    return (
        clean_text(name, 200),
        clean_text(message, MESSAGE_CHARACTERS) or name,
        None if trace is None else clean_text(trace, TRACEBACK_CHARACTERS, keep_end=True),
    )


def _name(error: BaseException) -> str:
    try:
        name = type(error).__name__
    except BaseException:  # noqa: BLE001 - a metaclass has its own way with names
        name = ""
    return name if isinstance(name, str) and name else "Exception"


def _retryable(lease: Lease, ending: Ending, delay: float, described: tuple[str, str, str | None]) -> Outcome:
    if lease.attempt >= lease.max_attempts:
        return _ended(lease, ending, Status.DEAD_LETTER, described)
    return _ended(lease, ending, Status.PENDING, described, delay=delay)


def _ended(
    lease: Lease,
    ending: Ending,
    status: Status,
    described: tuple[str, str, str | None],
    *,
    delay: float = 0.0,
) -> Outcome:
    error_type, message, trace = described
    return Outcome(
        id=lease.id,
        queue_id=lease.queue_id,
        token=lease.token,
        ending=ending,
        status=status,
        delay_seconds=delay,
        error_type=error_type,
        error=message,
        traceback=trace,
    )
