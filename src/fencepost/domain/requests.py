"""
From what a caller asks for to a job that can be stored.

HTTP, bulk requests, the library and the command line all come through here, so that
the same input gets the same verdict everywhere, naming the field and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Annotated, Protocol

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fencepost.domain.fields import (
    check_metadata,
    check_tags,
    check_unique_key,
    parse_delay,
    parse_span,
    parse_timeout,
    shown,
)
from fencepost.domain.ids import new_id
from fencepost.domain.job import Limits, NewJob, Unique, UniqueMode, UniqueUntil
from fencepost.domain.text import check_json
from fencepost.errors import InvalidJob

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")
_KEY = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?(?:[Zz]|[+-]\d{2}:\d{2})")
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(2100, 1, 1, tzinfo=UTC)


class UniqueRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A unique key as a caller writes it. Only `key` is needed."""

    key: Annotated[str, Meta(description="No second job of the same type with it.", examples=["user-4711"])]
    until: (
        Annotated[UniqueUntil, Meta(description="How long a job holds it; `finished`, or `period` with one.")]
        | UnsetType
    ) = UNSET
    period: Annotated[
        str | None, Meta(description="With `until` `period`: for how long from its creation on.", examples=["10m"])
    ] = None
    mode: Annotated[UniqueMode, Meta(description="What becomes of a request while another job holds the key.")] = (
        UniqueMode.SKIP
    )


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
    queue: (
        Annotated[
            str, Meta(description="Made by its first job; `default`, or the type's.", max_length=Limits.NAME_BYTES)
        ]
        | UnsetType
    ) = UNSET
    priority: (
        Annotated[int, Meta(description="The higher goes first; 0, or the type's.", ge=0, le=Limits.PRIORITY)]
        | UnsetType
    ) = UNSET
    max_attempts: (
        Annotated[int, Meta(description="MAX_ATTEMPTS, or the type's, when left out.", ge=1, le=Limits.MAX_ATTEMPTS)]
        | UnsetType
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
    unique: Annotated[UniqueRequest | None, Meta(description="Keeps a second job with the same key away.")] = None
    tags: Annotated[
        list[str], Meta(description="Words to find it by; one that is there twice counts once.", examples=[["import"]])
    ] = []
    metadata: Annotated[
        msgspec.Raw,
        Meta(
            description="A JSON object for whoever handles or watches the job; not a part of its payload.",
            extra_json_schema={"type": ["object", "null"], "default": None},
        ),
    ] = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    expires: Annotated[
        str | None,
        Meta(
            description="Not started by then, it ends cancelled: a duration from now, or RFC 3339 with an offset.",
            examples=["10m", "2027-01-01T09:00:00Z"],
        ),
    ] = None


class Defaults(Protocol):
    """What a job type asks for where the caller doesn't; a registered job type is one."""

    @property
    def queue(self) -> str:
        """The queue of its jobs."""
        ...

    @property
    def priority(self) -> int:
        """Their priority."""
        ...

    @property
    def max_attempts(self) -> int | None:
        """How often they are tried; None leaves it to `Rules`."""
        ...

    @property
    def expires_seconds(self) -> float | None:
        """How long they may wait for their start; None is for ever."""
        ...


class Rules(msgspec.Struct, frozen=True):
    """What a door enforces beyond the fixed limits."""

    types: Mapping[str, Defaults]
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
    defaults = rules.types[request.type]
    queue = defaults.queue if request.queue is UNSET else request.queue
    check_queue(queue)
    priority = defaults.priority if request.priority is UNSET else request.priority
    _check_range(priority, "priority", 0, Limits.PRIORITY)
    max_attempts = request.max_attempts
    if max_attempts is UNSET:
        max_attempts = rules.max_attempts if defaults.max_attempts is None else defaults.max_attempts
    _check_range(max_attempts, "max_attempts", 1, Limits.MAX_ATTEMPTS)
    _check_payload(payload, rules.payload_bytes)
    if request.run_at is not None and request.delay is not None:
        raise InvalidJob("can't be given together with run_at; use one of them", field="delay")
    expires_at, expires_seconds = _expiry(request.expires, defaults.expires_seconds)
    return NewJob(
        id=new_id(),
        type=request.type,
        queue=queue,
        priority=priority,
        payload=payload,
        max_attempts=max_attempts,
        run_at=None if request.run_at is None else parse_moment(request.run_at, field="run_at"),
        delay_seconds=None if request.delay is None else parse_delay(request.delay),
        timeout_seconds=None if request.timeout is None else parse_timeout(request.timeout),
        idempotency_key=None if request.idempotency_key is None else parse_key(request.idempotency_key),
        request_id=request_id,
        unique=None if request.unique is None else _unique(request.unique),
        tags=check_tags(request.tags) if request.tags else (),
        metadata=check_metadata(bytes(request.metadata)),
        expires_at=expires_at,
        expires_seconds=expires_seconds,
    )


def check_queue(name: str) -> None:
    """Raise InvalidJob unless *name* can be a queue's."""
    if not _NAME.fullmatch(name) or len(name) > Limits.NAME_BYTES:
        raise InvalidJob(
            f"must be 1 to {Limits.NAME_BYTES} of the characters A-Z a-z 0-9 _ . : - and start with a letter, a digit "
            f"or _, not {shown(name)}",
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
            f"must be 1 to {Limits.KEY_BYTES} printable ASCII characters, not {shown(text)}",
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
            f"must be a time in RFC 3339 with an offset, such as 2027-01-01T09:00:00Z, not {shown(text)}",
            field=field,
        ) from None
    if not _EARLIEST <= moment < _LATEST:
        raise InvalidJob(f"must be between the years 1970 and 2099, not {shown(text)}", field=field)
    return moment


def _unique(request: UniqueRequest) -> Unique:
    check_unique_key(request.key, field="unique.key")
    until = request.until
    if until is UNSET:
        until = UniqueUntil.FINISHED if request.period is None else UniqueUntil.PERIOD
    if until is not UniqueUntil.PERIOD:
        if request.period is not None:
            raise InvalidJob(f"can't be given together with until {until}", field="unique.period")
        return Unique(key=request.key, until=until, mode=request.mode)
    if request.period is None:
        raise InvalidJob("is needed with until period", field="unique.period")
    seconds = parse_span(request.period, field="unique.period")
    return Unique(key=request.key, until=until, period_seconds=seconds, mode=request.mode)


def _expiry(text: str | None, default_seconds: float | None) -> tuple[datetime | None, float | None]:
    if text is None:
        return None, default_seconds
    if _RFC3339.fullmatch(text):
        return parse_moment(text, field="expires"), None
    try:
        return None, parse_span(text, field="expires")
    except InvalidJob as error:
        raise InvalidJob(f"{error.message}; or a time in RFC 3339 with an offset", field="expires") from None


def _check_payload(payload: bytes, limit: int) -> None:
    if len(payload) > limit:
        raise InvalidJob(f"takes {len(payload):,} bytes; the limit is {limit:,}", field="payload")
    try:
        check_json(payload)
    except ValueError as error:
        raise InvalidJob(str(error), field="payload") from None


def _check_type(name: str, known: Collection[str]) -> None:
    if name not in known:
        raise InvalidJob(
            f"{shown(name)} is not a registered job type; registered are {', '.join(sorted(known)) or 'none'}",
            field="type",
        )


def _check_range(value: int, field: str, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidJob(f"must be from {low} to {high}, not {value}", field=field)
