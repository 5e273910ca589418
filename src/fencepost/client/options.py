"""What one enqueue may ask for, checked when it is said."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from fencepost.domain.job import Limits, Unique
from fencepost.domain.requests import check_queue, parse_key
from fencepost.errors import InvalidJob
from fencepost.types import codec
from fencepost.types.unique import UniqueBy

Seconds = float | timedelta
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(2100, 1, 1, tzinfo=UTC)


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
    if delay is not None and run_at is not None:
        raise InvalidJob("can't be given together with run_at; use one of them", field="delay")
    if delay is not None:
        values |= {"delay_seconds": duration(delay, "delay", 0, Limits.DELAY_SECONDS), "run_at": None}
    if run_at is not None:
        values |= {"run_at": moment(run_at, "run_at"), "delay_seconds": None}
    if isinstance(expires, datetime):
        values |= {"expires_at": moment(expires, "expires"), "expires_seconds": None}
    elif expires is not None:
        values |= {"expires_seconds": duration(expires, "expires", 0.001, Limits.DELAY_SECONDS), "expires_at": None}
    if timeout is not None:
        values["timeout_seconds"] = duration(timeout, "timeout", 0.001, Limits.TIMEOUT_SECONDS)
    if tags is not None:
        values["tags"] = check_tags(tags)
    if metadata is not None:
        values["metadata"] = check_metadata(metadata)
    if idempotency_key is not None:
        if not isinstance(idempotency_key, str):
            raise InvalidJob(f"must be a string, not {idempotency_key!r}", field="idempotency_key")
        values["idempotency_key"] = parse_key(idempotency_key)
    _check_plain(values)
    return msgspec.structs.replace(before, **values)


def _check_plain(values: Mapping[str, Any]) -> None:
    if "queue" in values:
        if not isinstance(values["queue"], str):
            raise InvalidJob(f"must be a string, not {values['queue']!r}", field="queue")
        check_queue(values["queue"])
    check_whole(values.get("priority", 0), "priority", 0, Limits.PRIORITY)
    check_whole(values.get("max_attempts", 1), "max_attempts", 1, Limits.MAX_ATTEMPTS)
    unique = values.get("unique")
    if isinstance(unique, Unique):
        check_unique(unique)
    elif not isinstance(unique, UniqueBy | None):
        raise InvalidJob(f"must be a Unique or a UniqueBy, not {unique!r}", field="unique")


def check_whole(value: object, field: str, low: int, high: int) -> None:
    """Raise InvalidJob unless *value* is a whole number from *low* to *high*."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidJob(f"must be a whole number from {low} to {high}, not {value!r}", field=field)


def duration(value: object, field: str, low: float, high: float) -> float:
    """Read seconds or a timedelta. Raises InvalidJob."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise InvalidJob(f"must be seconds or a timedelta, not {value!r}", field=field)
    if not low <= seconds <= high:
        raise InvalidJob(f"must be from {low:g} to {high:g} seconds, not {seconds:g}", field=field)
    return float(seconds)


def moment(value: object, field: str) -> datetime:
    """Read an aware datetime, as UTC. Raises InvalidJob."""
    if not isinstance(value, datetime):
        raise InvalidJob(f"must be a datetime, not {value!r}", field=field)
    if value.utcoffset() is None:
        raise InvalidJob(
            f"must be a datetime with a time zone, such as datetime.now(UTC), not {value.isoformat()}", field=field
        )
    try:
        value = value.astimezone(UTC)
    except OverflowError:
        value = _LATEST
    if not _EARLIEST <= value < _LATEST:
        raise InvalidJob(f"must be between the years 1970 and 2099, not {value.isoformat()}", field=field)
    return value


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Read tags; one that is there twice counts once. Raises InvalidJob."""
    if isinstance(tags, str):
        raise InvalidJob(f"must be a list of strings, not the string {tags[:60]!r}", field="tags")
    found = tuple(dict.fromkeys(tags))
    if len(found) > Limits.TAGS:
        raise InvalidJob(f"must be at most {Limits.TAGS}, not {len(found)}", field="tags")
    for tag in found:
        if not isinstance(tag, str) or not tag or not tag.isprintable() or len(tag.encode()) > Limits.TAG_BYTES:
            raise InvalidJob(f"must each be 1 to {Limits.TAG_BYTES} bytes of printable text, not {tag!r}", field="tags")
    return found


def check_metadata(metadata: Mapping[str, Any]) -> bytes | None:
    """Write metadata as JSON. Raises InvalidJob for anything but an object of bounded size."""
    if not isinstance(metadata, Mapping):
        raise InvalidJob(f"must be a mapping of names to JSON values, not {metadata!r}", field="metadata")
    try:
        raw = codec.encode(dict(metadata))
    except codec.NotEncodable as error:
        raise InvalidJob(str(error), field="metadata") from None
    if len(raw) > Limits.METADATA_BYTES:
        raise InvalidJob(f"takes {len(raw):,} bytes; the limit is {Limits.METADATA_BYTES:,}", field="metadata")
    return raw if metadata else None


def check_unique(unique: Unique) -> None:
    """Raise InvalidJob for a unique rule that can't be stored."""
    key = unique.key
    if not isinstance(key, str) or not key or not key.isprintable() or len(key.encode()) > Limits.UNIQUE_KEY_BYTES:
        raise InvalidJob(
            f"must have a key of 1 to {Limits.UNIQUE_KEY_BYTES} bytes of printable text, not {key!r}", field="unique"
        )
    if (unique.until == "period") != (unique.period_seconds is not None):
        raise InvalidJob('must have period_seconds with until="period", and only then', field="unique")
    if unique.period_seconds is not None:
        duration(unique.period_seconds, "unique", 0.001, Limits.DELAY_SECONDS)
