"""
What single fields of a job may hold, for whoever reads one.

Each says what is allowed when it refuses, and names the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fencepost.domain.durations import parse_duration
from fencepost.domain.job import Limits
from fencepost.domain.text import check_json
from fencepost.errors import InvalidJob

_TRACE_PARENT = re.compile(
    r"(?!ff|00.{54})[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?"
)
"""Version, trace, parent and flags: https://www.w3.org/TR/trace-context/."""
_TRACE_PARENT_BYTES = 255


def parse_trace_context(text: str) -> str | None:
    """Read a W3C `traceparent`; None for what isn't one, as its specification has it."""
    text = text.strip()
    return text if len(text) <= _TRACE_PARENT_BYTES and _TRACE_PARENT.fullmatch(text) else None


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Read tags; one that is there twice counts once. Raises InvalidJob."""
    found = tuple(dict.fromkeys(tags))
    if len(found) > Limits.TAGS:
        raise InvalidJob(f"must be at most {Limits.TAGS}, not {len(found)}", field="tags")
    for tag in found:
        if not tag or not tag.isprintable() or len(tag.encode()) > Limits.TAG_BYTES:
            raise InvalidJob(
                f"must each be 1 to {Limits.TAG_BYTES} bytes of printable text, not {shown(tag)}", field="tags"
            )
    return found


def check_unique_key(key: str, *, field: str) -> None:
    """Raise InvalidJob unless *key* can be a unique key."""
    if not key or not key.isprintable() or len(key.encode()) > Limits.UNIQUE_KEY_BYTES:
        raise InvalidJob(
            f"must be 1 to {Limits.UNIQUE_KEY_BYTES} bytes of printable text, not {shown(key)}", field=field
        )


def parse_delay(text: str) -> float:
    """Read a delay: a duration of at most ten years. Raises InvalidJob."""
    seconds = _duration(text, "delay")
    if seconds > Limits.DELAY_SECONDS:
        raise InvalidJob("must not be longer than ten years", field="delay")
    return seconds


def parse_timeout(text: str) -> float:
    """Read the longest run of an attempt: 1 ms to 24 hours. Raises InvalidJob."""
    seconds = _duration(text, "timeout")
    if not 0.001 <= seconds <= Limits.TIMEOUT_SECONDS:
        raise InvalidJob(f"must be from 1ms to 24h, not {shown(text)}", field="timeout")
    return seconds


def parse_span(text: str, *, field: str) -> float:
    """Read a time that something holds: 1 ms to ten years. Raises InvalidJob."""
    seconds = _duration(text, field)
    if not 0.001 <= seconds <= Limits.DELAY_SECONDS:
        raise InvalidJob(f"must be from 1ms to ten years, not {shown(text)}", field=field)
    return seconds


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


def _duration(text: str, field: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidJob(str(error), field=field) from None


def shown(text: str) -> str:
    """What the caller wrote, short and printable."""
    return ascii(text if len(text) <= 60 else text[:60] + "…")
