"""
What single fields of a job may hold, whoever asks for it.

Values come in, checked ones go out; each refusal says what is allowed and names the
field. HTTP and the library convert their own notations first (texts such as `90s`
there, numbers of seconds and timedeltas here), so the same value gets the same verdict
in the same words from both. The SQL function `fencepost.enqueue` repeats the words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from fencepost.domain.durations import format_duration, in_seconds
from fencepost.domain.job import Limits, Status, Unique, UniqueMode, UniqueUntil
from fencepost.domain.text import check_json
from fencepost.errors import InvalidJob

NAME_PATTERN = "[A-Za-z0-9_][A-Za-z0-9_.:-]*"
"""What the names of queues and job types look like; the OpenAPI document says so, too."""
KEY_PATTERN = "[!-~](?:[ -~]*[!-~])?"
"""What idempotency keys look like: printable ASCII, no spaces at their ends."""

_NAME = re.compile(NAME_PATTERN)
_KEY = re.compile(KEY_PATTERN)
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(2100, 1, 1, tzinfo=UTC)
_TRACE_PARENT = re.compile(
    r"(?!ff|00.{54})[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?"
)
"""Version, trace, parent and flags: https://www.w3.org/TR/trace-context/."""
_TRACE_PARENT_BYTES = 255


def parse_trace_context(text: str) -> str | None:
    """Read a W3C `traceparent`; None for what isn't one, as its specification has it."""
    text = text.strip()
    return text if len(text) <= _TRACE_PARENT_BYTES and _TRACE_PARENT.fullmatch(text) else None


def check_name(name: object, field: str) -> str:
    """Read the name of a queue or a job type. Raises InvalidJob."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > Limits.NAME_BYTES:
        raise InvalidJob(
            f"must be 1 to {Limits.NAME_BYTES} of the characters A-Z a-z 0-9 _ . : - and start with a letter, a digit "
            f"or _, not {shown(name)}",
            field=field,
        )
    return name


def check_queue(name: object) -> str:
    """Read the name of a queue. Raises InvalidJob."""
    return check_name(name, "queue")


def check_priority(value: object) -> int:
    """Read a priority. Raises InvalidJob."""
    return check_whole(value, "priority", 0, Limits.PRIORITY)


def check_max_attempts(value: object) -> int:
    """Read a number of attempts. Raises InvalidJob."""
    return check_whole(value, "max_attempts", 1, Limits.MAX_ATTEMPTS)


def check_whole(value: object, field: str, low: int, high: int) -> int:
    """Read a whole number from *low* to *high*. Raises InvalidJob."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidJob(f"must be a whole number from {low} to {high}, not {shown(value)}", field=field)
    return value


def check_key(key: object) -> str:
    """
    Read an idempotency key: 1 to 255 printable ASCII characters.

    The quoted form of the header's draft (a Structured Field string) and the bare form
    are the same key. Raises InvalidJob.
    """
    text = key
    if isinstance(text, str) and len(text) >= 2 and text[0] == text[-1] == '"':
        text = re.sub(r'\\(["\\])', r"\1", text[1:-1])
    if not isinstance(text, str) or len(text) > Limits.KEY_BYTES or not _KEY.fullmatch(text):
        raise InvalidJob(
            f"must be 1 to {Limits.KEY_BYTES} printable ASCII characters, not {shown(text)}",
            field="idempotency_key",
        )
    return text


def read_seconds(value: object, field: str, what: str = "") -> float:
    """Read what Python callers give for a time: seconds or a timedelta. Raises InvalidJob."""
    try:
        return in_seconds(value)
    except ValueError as error:
        raise InvalidJob(f"{what}{error}", field=field) from None


def check_delay(seconds: float) -> float:
    """Read a delay: at most ten years. Raises InvalidJob."""
    return _check_seconds(seconds, "delay", "0 to ten years", 0, Limits.DELAY_SECONDS)


def check_timeout(seconds: float) -> float:
    """Read the longest run of an attempt: 1 ms to 24 hours. Raises InvalidJob."""
    return _check_seconds(seconds, "timeout", "1ms to 24h", 0.001, Limits.TIMEOUT_SECONDS)


def check_expiry(seconds: float) -> float:
    """Read how long a job may wait for its start: 1 ms to ten years. Raises InvalidJob."""
    return _check_seconds(seconds, "expires", "1ms to ten years", 0.001, Limits.DELAY_SECONDS)


def check_due(run_at: object, delay: object) -> None:
    """Raise InvalidJob when both are given."""
    if run_at is not None and delay is not None:
        raise InvalidJob("can't be given together with run_at; use one of them", field="delay")


def check_moment(moment: datetime, field: str) -> datetime:
    """Read a moment with a time zone, as UTC. Raises InvalidJob."""
    try:
        found = moment.astimezone(UTC)
    except OverflowError:
        found = None
    if found is None or not _EARLIEST <= found < _LATEST:
        raise InvalidJob(f"must be between the years 1970 and 2099, not {(found or moment).isoformat()}", field=field)
    return found


def check_tags(tags: Iterable[object]) -> tuple[str, ...]:
    """Read tags; one that is there twice counts once. Raises InvalidJob."""
    found: dict[str, None] = {}
    for tag in tags:
        if not _is_text(tag, Limits.TAG_BYTES):
            raise InvalidJob(
                f"must each be 1 to {Limits.TAG_BYTES} bytes of printable text, not {shown(tag)}", field="tags"
            )
        found[str(tag)] = None
    if len(found) > Limits.TAGS:
        raise InvalidJob(f"must be at most {Limits.TAGS}, not {len(found)}", field="tags")
    return tuple(found)


def check_metadata(raw: bytes) -> bytes | None:
    """Read metadata: a JSON object of bounded size, or null, which is none. Raises InvalidJob."""
    if len(raw) > Limits.METADATA_BYTES:
        raise InvalidJob(f"takes {len(raw):,} bytes; the limit is {Limits.METADATA_BYTES:,}", field="metadata")
    if raw == b"null":
        return None
    if raw[:1] != b"{":
        raise InvalidJob("must be a JSON object", field="metadata")
    try:
        check_json(raw)
    except ValueError as error:
        raise InvalidJob(str(error), field="metadata") from None
    return raw


def check_status(value: object) -> Status:
    """Read a status, or its name. Raises InvalidJob."""
    try:
        return Status(str(value))
    except ValueError:
        raise InvalidJob(f"must be one of {', '.join(Status)}, not {shown(value)}", field="status") from None


def check_unique(key: object, until: object, period_seconds: float | None, mode: object) -> Unique:
    """Read a unique rule; *until* and *mode* may be plain strings. Raises InvalidJob."""
    if not _is_text(key, Limits.UNIQUE_KEY_BYTES):
        raise InvalidJob(
            f"key must be 1 to {Limits.UNIQUE_KEY_BYTES} bytes of printable text, not {shown(key)}", field="unique"
        )
    rule, seconds, then = check_hold(until, period_seconds, mode)
    return Unique(key=str(key), until=rule, period_seconds=seconds, mode=then)


def check_hold(
    until: object, period_seconds: float | None, mode: object
) -> tuple[UniqueUntil, float | None, UniqueMode]:
    """Read how long a unique key is held, and what becomes of the next request with it. Raises InvalidJob."""
    rule: UniqueUntil = _member(UniqueUntil, "until", until)
    then: UniqueMode = _member(UniqueMode, "mode", mode)
    if rule is not UniqueUntil.PERIOD and period_seconds is not None:
        raise InvalidJob(f"period can't be given together with until {rule}", field="unique")
    if rule is UniqueUntil.PERIOD:
        if period_seconds is None:
            raise InvalidJob("period is needed with until period", field="unique")
        period_seconds = _check_seconds(
            period_seconds, "unique", "1ms to ten years", 0.001, Limits.DELAY_SECONDS, what="period "
        )
    return rule, period_seconds, then


def _member(kind: Any, name: str, value: object) -> Any:
    # A look-up by value finds members, too.
    if not isinstance(value, str) or value not in kind._value2member_map_:
        raise InvalidJob(f"{name} must be one of {', '.join(kind)}, not {shown(value)}", field="unique")
    return kind(value)


def _is_text(value: object, limit: int) -> bool:
    return isinstance(value, str) and value != "" and value.isprintable() and len(value.encode()) <= limit


def _check_seconds(seconds: float, field: str, allowed: str, low: float, high: float, *, what: str = "") -> float:
    if not low <= seconds <= high:
        raise InvalidJob(f"{what}must be from {allowed}, not {format_duration(seconds)}", field=field)
    return float(seconds)


def shown(value: object) -> str:
    """What the caller wrote, short and printable."""
    if isinstance(value, str):
        return ascii(value if len(value) <= 60 else value[:60] + "…")
    text = ascii(value)
    return text if len(text) <= 60 else text[:60] + "…"
