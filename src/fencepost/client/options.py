"""What one enqueue may ask for, checked when it is said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from fencepost.domain import fields
from fencepost.domain.job import Unique
from fencepost.errors import InvalidJob
from fencepost.types import codec
from fencepost.types.unique import UniqueBy, unique_rule

Seconds = float | timedelta


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What an enqueue asks for; None leaves it to the job type, and then to the settings."""

    queue: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    timeout_seconds: float | None = None
    run_at: datetime | None = None
    delay_seconds: float | None = None
    expires_at: datetime | None = None
    expires_seconds: float | None = None
    idempotency_key: str | None = None
    unique: Unique | UniqueBy | None = None
    tags: tuple[str, ...] = ()
    metadata: bytes | None = None


def changed(
    before: Options,
    *,
    delay: Seconds | None = None,
    run_at: datetime | None = None,
    expires: Seconds | datetime | None = None,
    timeout: Seconds | None = None,
    tags: Iterable[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
    **plain: Any,
) -> Options:
    """*before*, with what is given here in its place. Raises InvalidJob naming the option."""
    values: dict[str, Any] = {name: value for name, value in plain.items() if value is not None}
    fields.check_due(run_at, delay)
    if delay is not None:
        values |= {"delay_seconds": fields.check_delay(fields.read_seconds(delay, "delay")), "run_at": None}
    if run_at is not None:
        values |= {"run_at": moment(run_at, "run_at"), "delay_seconds": None}
    if isinstance(expires, datetime):
        values |= {"expires_at": moment(expires, "expires"), "expires_seconds": None}
    elif expires is not None:
        values |= {"expires_seconds": fields.check_expiry(fields.read_seconds(expires, "expires")), "expires_at": None}
    if timeout is not None:
        values["timeout_seconds"] = fields.check_timeout(fields.read_seconds(timeout, "timeout"))
    if tags is not None:
        values["tags"] = check_tags(tags)
    if metadata is not None:
        values["metadata"] = check_metadata(metadata)
    for name, check in _PLAIN.items():
        if name in values:
            values[name] = check(values[name])
    if idempotency_key is not None:
        values["idempotency_key"] = fields.check_key(idempotency_key)
    return msgspec.structs.replace(before, **values)


def moment(value: object, field: str) -> datetime:
    """Read an aware datetime, as UTC. Raises InvalidJob."""
    if not isinstance(value, datetime):
        raise InvalidJob(f"must be a datetime, not {fields.shown(value)}", field=field)
    if value.utcoffset() is None:
        raise InvalidJob(
            f"must be a datetime with a time zone, such as datetime.now(UTC), not {value.isoformat()}", field=field
        )
    return fields.check_moment(value, field)


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Read tags; one that is there twice counts once. Raises InvalidJob."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise InvalidJob(f"must be a list of strings, not {fields.shown(tags)}", field="tags")
    return fields.check_tags(tags)


def check_metadata(metadata: Mapping[str, Any]) -> bytes | None:
    """Write metadata as JSON. Raises InvalidJob for anything but an object of bounded size."""
    try:
        raw = codec.encode(dict(metadata) if isinstance(metadata, Mapping) else metadata)
    except codec.NotEncodable as error:
        raise InvalidJob(str(error), field="metadata") from None
    return None if raw == b"{}" else fields.check_metadata(raw)


def check_unique(unique: object) -> Unique | UniqueBy:
    """Read a unique rule. Raises InvalidJob for one that can't be stored."""
    if isinstance(unique, UniqueBy):
        return unique
    if not isinstance(unique, Unique):
        raise InvalidJob(f"must be a Unique or a UniqueBy, not {fields.shown(unique)}", field="unique")
    return unique_rule(unique)


_PLAIN: dict[str, Any] = {
    "queue": fields.check_queue,
    "priority": fields.check_priority,
    "max_attempts": fields.check_max_attempts,
    "unique": check_unique,
}
"""What is checked as it is given."""
