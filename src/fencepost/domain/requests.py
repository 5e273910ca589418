"""
From what a caller asks for to a job that can be stored.

HTTP, bulk requests, the library and the command line all come through here, so that
the same input gets the same verdict everywhere, naming the field and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fencepost.domain.durations import parse_duration
from fencepost.domain.ids import new_id
from fencepost.domain.job import Limits, NewJob
from fencepost.domain.text import check_json
from fencepost.errors import InvalidJob

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")
_KEY = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?(?:[Zz]|[+-]\d{2}:\d{2})")
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(2100, 1, 1, tzinfo=UTC)


class JobRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job as a caller writes it. Only `type` is needed."""

    type: Annotated[str, Meta(description="A registered job type.", examples=["send_email"])]
    payload: Annotated[
        msgspec.Raw,
        Meta(
            description="Any JSON value; {} when left out.",
            extra_json_schema={"examples": [{"to": "ada@example.org"}]},
        ),
    ] = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))
    queue: Annotated[str, Meta(description="Made by its first job.", max_length=Limits.NAME_BYTES)] = "default"
    priority: Annotated[int, Meta(description="The higher goes first.", ge=0, le=Limits.PRIORITY)] = 0
    max_attempts: (
        Annotated[int, Meta(description="MAX_ATTEMPTS when left out.", ge=1, le=Limits.MAX_ATTEMPTS)] | UnsetType
    ) = UNSET
    run_at: Annotated[
        str | None,
        Meta(
            description="Not before this moment: RFC 3339 with an offset.",
            examples=["2027-01-01T09:00:00+01:00"],
        ),
    ] = None
    delay: Annotated[str | None, Meta(description="Not before this long from now.", examples=["90s"])] = None
    timeout: Annotated[
        str | None,
        Meta(description="Longest run of one attempt; JOB_TIMEOUT when left out.", examples=["5m"]),
    ] = None
    idempotency_key: Annotated[str | None, Meta(description="The same as the Idempotency-Key header.")] = None


class Rules(msgspec.Struct, frozen=True):
    """What a door enforces beyond the fixed limits."""

    types: Collection[str]
    """The registered job types."""
    max_attempts: int
    """The default."""
    payload_bytes: int
    """The largest payload."""


def make_job(request: JobRequest, rules: Rules, *, request_id: str | None = None) -> NewJob:
    """
    Check *request* and make the job it asks for, with a new id.

    Raises InvalidJob naming the first field that is wrong.
    """
    payload = bytes(request.payload)
    _check_type(request.type, rules.types)
    check_queue(request.queue)
    _check_range(request.priority, "priority", 0, Limits.PRIORITY)
    max_attempts = rules.max_attempts if request.max_attempts is UNSET else request.max_attempts
    _check_range(max_attempts, "max_attempts", 1, Limits.MAX_ATTEMPTS)
    if len(payload) > rules.payload_bytes:
        raise InvalidJob(f"takes {len(payload):,} bytes; the limit is {rules.payload_bytes:,}", field="payload")
    try:
        check_json(payload)
    except ValueError as error:
        raise InvalidJob(str(error), field="payload") from None
    if request.run_at is not None and request.delay is not None:
        raise InvalidJob("can't be given together with run_at; use one of them", field="delay")
    return NewJob(
        id=new_id(),
        type=request.type,
        queue=request.queue,
        priority=request.priority,
        payload=payload,
        max_attempts=max_attempts,
        run_at=None if request.run_at is None else parse_moment(request.run_at, field="run_at"),
        delay_seconds=_delay(request.delay),
        timeout_seconds=_timeout(request.timeout),
        idempotency_key=None if request.idempotency_key is None else parse_key(request.idempotency_key),
        request_id=request_id,
    )


def check_queue(name: str) -> None:
    """Raise InvalidJob unless *name* can be a queue's."""
    if not _NAME.fullmatch(name) or len(name) > Limits.NAME_BYTES:
        raise InvalidJob(
            f"must be 1 to {Limits.NAME_BYTES} of the characters A-Z a-z 0-9 _ . : - and start with a letter, a digit "
            f"or _, not {_shown(name)}",
            field="queue",
        )


def parse_key(text: str) -> str:
    """
    Read an idempotency key: 1 to 255 printable ASCII characters.

    The quoted form of the header's draft (a Structured Field string) and the bare form
    are the same key. Raises InvalidJob.
    """
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = re.sub(r'\\(["\\])', r"\1", text[1:-1])
    if len(text) > Limits.KEY_BYTES or not _KEY.fullmatch(text):
        raise InvalidJob(
            f"must be 1 to {Limits.KEY_BYTES} printable ASCII characters, not {_shown(text)}",
            field="idempotency_key",
        )
    return text


def parse_moment(text: str, *, field: str) -> datetime:
    """
    Read an RFC 3339 date-time with an offset, as UTC. Raises InvalidJob.

    A time without an offset is refused rather than guessed at.
    """
    try:
        if not _RFC3339.fullmatch(text):
            raise ValueError
        moment = datetime.fromisoformat(text.upper().replace(" ", "T")).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidJob(
            f"must be a time in RFC 3339 with an offset, such as 2027-01-01T09:00:00Z, not {_shown(text)}",
            field=field,
        ) from None
    if not _EARLIEST <= moment < _LATEST:
        raise InvalidJob(f"must be between the years 1970 and 2099, not {_shown(text)}", field=field)
    return moment


def _check_type(name: str, known: Collection[str]) -> None:
    if name not in known:
        raise InvalidJob(
            f"{_shown(name)} is not a registered job type; registered are {', '.join(sorted(known)) or 'none'}",
            field="type",
        )


def _check_range(value: int, field: str, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidJob(f"must be from {low} to {high}, not {value}", field=field)


def _delay(text: str | None) -> float | None:
    if text is None:
        return None
    seconds = _duration(text, "delay")
    if seconds > Limits.DELAY_SECONDS:
        raise InvalidJob("must not be longer than ten years", field="delay")
    return seconds


def _timeout(text: str | None) -> float | None:
    if text is None:
        return None
    seconds = _duration(text, "timeout")
    if not 0.001 <= seconds <= Limits.TIMEOUT_SECONDS:
        raise InvalidJob(f"must be from 1ms to 24h, not {_shown(text)}", field="timeout")
    return seconds


def _duration(text: str, field: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidJob(str(error), field=field) from None


def _shown(text: str) -> str:
    """What the caller wrote, short and printable."""
    return ascii(text if len(text) <= 60 else text[:60] + "…")
