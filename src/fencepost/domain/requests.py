"""
From what a caller asks for to a job that can be stored.

HTTP, bulk requests, the library and the command line all come through here, so that
the same input gets the same verdict everywhere, naming the field and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Annotated, Protocol

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fencepost.domain.durations import parse_duration
from fencepost.domain.fields import (
    KEY_PATTERN,
    NAME_PATTERN,
    check_delay,
    check_due,
    check_expiry,
    check_key,
    check_max_attempts,
    check_metadata,
    check_moment,
    check_priority,
    check_queue,
    check_tags,
    check_timeout,
    check_unique,
    shown,
)
from fencepost.domain.ids import new_id
from fencepost.domain.job import Limits, NewJob, Unique, UniqueMode, UniqueUntil
from fencepost.domain.text import check_json
from fencepost.errors import InvalidJob

_RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?(?:[Zz]|[+-]\d{2}:\d{2})")


class UniqueRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A unique key as a caller writes it. Only `key` is needed."""

    key: Annotated[str, Meta(description="No second job of the same type with it.", examples=["user-4711"])]
    until: (
        Annotated[
            str,
            Meta(
                description="How long a job holds it; `finished`, or `period` with one.",
                extra_json_schema={"enum": list(map(str, UniqueUntil))},
            ),
        ]
        | UnsetType
    ) = UNSET
    period: Annotated[
        str | None, Meta(description="With `until` `period`: for how long from its creation on.", examples=["10m"])
    ] = None
    mode: Annotated[
        str,
        Meta(
            description="What becomes of a request while another job holds the key.",
            extra_json_schema={"enum": list(map(str, UniqueMode))},
        ),
    ] = "skip"


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
            str,
            Meta(
                description="Made by its first job; `default`, or the type's.",
                extra_json_schema={"minLength": 1, "maxLength": Limits.NAME_BYTES, "pattern": f"^{NAME_PATTERN}$"},
            ),
        ]
        | UnsetType
    ) = UNSET
    priority: (
        Annotated[
            int,
            Meta(
                description="The higher goes first; 0, or the type's.",
                extra_json_schema={"minimum": 0, "maximum": Limits.PRIORITY},
            ),
        ]
        | UnsetType
    ) = UNSET
    max_attempts: (
        Annotated[
            int,
            Meta(
                description="MAX_ATTEMPTS, or the type's, when left out.",
                extra_json_schema={"minimum": 1, "maximum": Limits.MAX_ATTEMPTS},
            ),
        ]
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
    idempotency_key: Annotated[
        str | None,
        Meta(
            description="The same as the Idempotency-Key header.",
            extra_json_schema={"minLength": 1, "maxLength": Limits.KEY_BYTES, "pattern": f"^{KEY_PATTERN}$"},
        ),
    ] = None
    unique: Annotated[UniqueRequest | None, Meta(description="Keeps a second job with the same key away.")] = None
    tags: Annotated[
        list[str],
        Meta(
            description="Words to find it by, each of printable text; one that is there twice counts once.",
            examples=[["import"]],
            extra_json_schema={"items": {"type": "string", "minLength": 1, "maxLength": Limits.TAG_BYTES}},
        ),
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

    @property
    def unique_of(self) -> Callable[[bytes], Unique | None]:
        """Tells the unique rule of a job with this payload. Raises InvalidJob."""
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
    queue = check_queue(defaults.queue if request.queue is UNSET else request.queue)
    priority = check_priority(defaults.priority if request.priority is UNSET else request.priority)
    max_attempts = request.max_attempts
    if max_attempts is UNSET:
        max_attempts = rules.max_attempts if defaults.max_attempts is None else defaults.max_attempts
    check_max_attempts(max_attempts)
    _check_payload(payload, rules.payload_bytes)
    check_due(request.run_at, request.delay)
    expires_at, expires_seconds = _expiry(request.expires, defaults.expires_seconds)
    return NewJob(
        id=new_id(),
        type=request.type,
        queue=queue,
        priority=priority,
        payload=payload,
        max_attempts=max_attempts,
        run_at=None if request.run_at is None else parse_moment(request.run_at, field="run_at"),
        delay_seconds=None if request.delay is None else check_delay(_seconds(request.delay, "delay")),
        timeout_seconds=None if request.timeout is None else check_timeout(_seconds(request.timeout, "timeout")),
        idempotency_key=None if request.idempotency_key is None else check_key(request.idempotency_key),
        request_id=request_id,
        unique=defaults.unique_of(payload) if request.unique is None else _unique(request.unique),
        tags=check_tags(request.tags) if request.tags else (),
        metadata=check_metadata(bytes(request.metadata)),
        expires_at=expires_at,
        expires_seconds=expires_seconds,
    )


def parse_moment(text: str, *, field: str) -> datetime:
    """
    Read an RFC 3339 date-time with an offset, as UTC. Raises InvalidJob.

    A time without an offset is refused rather than guessed at.
    """
    try:
        if not _RFC3339.fullmatch(text):
            raise ValueError
        moment = datetime.fromisoformat(text.upper().replace(" ", "T"))
    except ValueError:
        raise InvalidJob(
            f"must be a time in RFC 3339 with an offset, such as 2027-01-01T09:00:00Z, not {shown(text)}",
            field=field,
        ) from None
    return check_moment(moment, field)


def _unique(request: UniqueRequest) -> Unique:
    seconds = None if request.period is None else _seconds(request.period, "unique", "period ")
    until = request.until
    if until is UNSET:
        until = UniqueUntil.FINISHED if seconds is None else UniqueUntil.PERIOD
    return check_unique(request.key, until, seconds, request.mode)


def _expiry(text: str | None, default_seconds: float | None) -> tuple[datetime | None, float | None]:
    if text is None:
        return None, default_seconds
    if _RFC3339.fullmatch(text):
        return parse_moment(text, field="expires"), None
    try:
        seconds = _seconds(text, "expires")
    except InvalidJob as error:
        raise InvalidJob(f"{error.message}; or a time in RFC 3339 with an offset", field="expires") from None
    return None, check_expiry(seconds)


def _seconds(text: str, field: str, what: str = "") -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidJob(f"{what}{error}", field=field) from None


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
