"""Jobs that wait, and whether they are the ones that a test expects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from fencepost.client.job import Job
from fencepost.errors import InvalidJob
from fencepost.types import codec, signature
from fencepost.types.jobtype import JobType

_SHOWN_JOBS = 20
_SHOWN_CHARACTERS = 200


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was enqueued and hasn't started."""

    id: UUID
    type: str
    arguments: Any
    """Of a job that the app knows: the function's arguments by name, with its defaults; else what the JSON says."""
    payload: Any
    """What the JSON says."""
    queue: str
    priority: int
    run_at: datetime | None
    """When it is due; in a recording None, unless it was enqueued for a moment."""
    delay_seconds: float | None = None
    """Only in a recording: how long after its enqueue it is due."""
    attempts: int = 0
    """Attempts already spent."""
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    idempotency_key: str | None = None

    def __str__(self) -> str:
        due = "" if self.run_at is None else f", due {self.run_at:%Y-%m-%dT%H:%M:%S}Z"
        if self.delay_seconds:
            due = f", due after {self.delay_seconds:g} s"
        spent = f", {self.attempts} attempts spent" if self.attempts else ""
        return f"{self.type}({shown(self.arguments)}) in {self.queue}{due}{spent}"


def shown(arguments: Any) -> str:
    """Arguments as they are written in a call."""
    if isinstance(arguments, Mapping):
        text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    else:
        text = repr(arguments)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def read_arguments(job_type: JobType | None, raw: bytes) -> Any:
    """What a function would be called with; what the JSON says when that is unknown, or the payload doesn't fit."""
    plain = msgspec.json.decode(raw)
    if job_type is None:
        return plain
    try:
        read = job_type.decoder.decode(raw)
    except (msgspec.ValidationError, ValueError):
        return plain
    # The struct that stands for a function's parameters, and not one of the user's own.
    return msgspec.structs.asdict(read) if type(read).__module__ == signature.__name__ else read


def expected_arguments(job: Job[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """
    The arguments that a test has named, by name.

    Raises InvalidJob for one that the function doesn't have: such a test could never say anything.
    """
    known = job._signature
    given = dict(zip(known.positional, args, strict=False))
    if len(args) > len(known.positional):
        raise InvalidJob(f"takes {len(known.positional)} arguments by position, not {len(args)}", field="arguments")
    for name, value in kwargs.items():
        if name in given:
            raise InvalidJob("is given twice, by position and by name", field=name)
        given[name] = value
    for name in given:
        if name not in known.names and known._extra is None:
            raise InvalidJob(f"is no argument of {job.name}; there are {', '.join(known.names) or 'none'}", field=name)
    return given


def matches(waiting: Waiting, job: Job[..., Any], expected: Mapping[str, Any]) -> bool:
    """Whether it is of this job, with at least these arguments: equal as Python has them, or as JSON does."""
    if waiting.type != job.name:
        return False
    if job._signature.whole is not None:
        return all(_equal(waiting.arguments, value) for value in expected.values())
    if not isinstance(waiting.arguments, Mapping):
        return not expected
    return all(name in waiting.arguments and _equal(waiting.arguments[name], value) for name, value in expected.items())


def _equal(found: Any, expected: Any) -> bool:
    try:
        if bool(found == expected):
            return True
        return bool(msgspec.json.decode(codec.encode(found)) == msgspec.json.decode(codec.encode(expected)))
    except (codec.NotEncodable, ValueError):
        return False


def check(
    waiting: Sequence[Waiting], job: Job[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], count: int
) -> list[Waiting]:
    """Raise AssertionError, with what is there instead, unless exactly *count* jobs match; returns those."""
    expected = expected_arguments(job, args, kwargs)
    found = [one for one in waiting if matches(one, job, expected)]
    if len(found) != count:
        call = f"{job.name}({shown(expected) if expected else '…'})"
        raise AssertionError(
            f"expected {_jobs(count)} {call} to be enqueued, found {len(found)}.\n{_listed(waiting, first=job.name)}"
        )
    return found


def _jobs(count: int) -> str:
    return "no" if count == 0 else str(count)


def _listed(waiting: Sequence[Waiting], *, first: str) -> str:
    if not waiting:
        return "Nothing is enqueued."
    lines = [f"  {one}" for one in _sorted(waiting, first)[:_SHOWN_JOBS]]
    more = len(waiting) - len(lines)
    return "\n".join(["Enqueued:", *lines, *([f"  and {more} more"] if more > 0 else [])])


def _sorted(waiting: Iterable[Waiting], first: str) -> list[Waiting]:
    """Those of the type that was looked for first."""
    return sorted(waiting, key=lambda one: one.type != first)
