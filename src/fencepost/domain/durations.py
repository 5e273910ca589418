"""Durations as people and Go write them: `90s`, `1m30s`, `1.5h`, `250ms`."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import Decimal

_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h|d)")

LONGEST_SECONDS = 100 * 365 * 86400.0
"""A hundred years; anything longer is a mistake and would overflow a date."""


def parse_duration(text: str) -> float:
    """
    Read a duration as seconds.

    The grammar is that of Go's `time.ParseDuration`, with `d` for days and without a
    sign: numbers with units, joined. A bare `0` needs no unit.

    Raises ValueError with a sentence for people.
    """
    if text == "0":
        return 0.0
    seconds, end = 0.0, 0
    for part in _PART.finditer(text):
        if part.start() != end:
            break
        seconds += float(part[1]) * _UNITS[part[2]]
        end = part.end()
    if not text or len(text) > 100 or end != len(text):
        raise ValueError(f"{text[:50]!r} is not a duration; write numbers with units, such as 90s, 1m30s or 250ms")
    if seconds > LONGEST_SECONDS:
        raise ValueError(f"{text[:50]!r} is longer than a hundred years")
    return seconds


def in_seconds(value: object) -> float:
    """Read what Python programs give for a time: seconds or a timedelta. Raises ValueError."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not _is_finite(seconds):
        raise ValueError(f"must be seconds or a timedelta, not {repr(value)[:60]}")
    return float(seconds)


def _is_finite(seconds: float) -> bool:
    try:
        return math.isfinite(seconds)
    except OverflowError:
        return False


def format_duration(seconds: float) -> str:
    """Write *seconds* so that `parse_duration` reads the same number back."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    in_milliseconds = f"{seconds * 1000:g}ms"
    if 0 < seconds < 1 and "e" not in in_milliseconds and parse_duration(in_milliseconds) == seconds:
        return in_milliseconds
    # Every digit, and no exponent.
    return f"{Decimal(repr(float(seconds))).normalize():f}s"
