"""
Text and JSON that PostgreSQL can hold.

Two rules. What comes from outside is checked, and refused with a reason. What comes
from inside (an error's message, a handler's result) is mended, because recording how
an attempt ended must never fail on the words it ended with.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

from fencepost.domain.job import Limits

_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")
_NUMBER_CHARACTERS = 1_100
"""Enough to write out any double in full."""
_NOT_ZERO = re.compile(r"-?[0.]*(?:[1-9]|[eE][+-]?0*[1-9][0-9]{2})")
"""What reads as 0 and isn't, or is a zero with hundreds of places."""
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def clean_text(text: str, limit: int, *, keep_end: bool = False) -> str:
    """Make *text* storable: NUL and lone surrogates replaced, cut to *limit* characters with a mark."""
    text = _NOT_STORABLE.sub("\ufffd", text[: limit + 1] if not keep_end else text[-limit - 1 :])
    if len(text) <= limit:
        return text
    return "…" + text[1 - limit :] if keep_end else text[: limit - 1] + "…"


def check_json(raw: bytes) -> None:
    """
    Refuse JSON text that a job can't hold, with a sentence that says why.

    Valid UTF-8 and valid JSON (RFC 8259), no NaN or Infinity, no number beyond a
    double's range, no NUL, no half of a surrogate pair, no key twice in an object, at
    most 64 levels deep: whatever passes comes back from PostgreSQL equal to what went in.

    Raises ValueError.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"is not valid UTF-8 (byte {error.start})") from None
    if text.count("[") + text.count("{") > Limits.PAYLOAD_DEPTH:
        _check_depth(text)
    # Only an escape can bring in what valid UTF-8 can't hold, so most payloads skip the per-string look.
    escaped = b"\\u0000" in raw or _SURROGATE_ESCAPE.search(raw) is not None
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError(f"is nested more than {Limits.PAYLOAD_DEPTH} levels deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not valid JSON: {error.msg.removesuffix(' at')} at character {error.pos}") from None
    if escaped:
        _check_strings(value)


def storable_json(value: object, *, encode: Callable[[object], bytes], limit: int) -> bytes:
    """
    Encode a handler's result. Lone surrogates and NULs in its strings are replaced.

    Raises ValueError with a reason when it can't be JSON, or takes more than *limit* bytes.
    """
    try:
        try:
            raw = encode(value)
        except UnicodeEncodeError:
            raw = encode(_mend(value))
        if b"\\u0000" in raw and len(raw) <= limit:
            raw = encode(_mend(json.loads(raw)))
    except RecursionError:
        raise ValueError("is nested too deep, or contains itself") from None
    except (TypeError, OverflowError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if len(raw) > limit:
        raise ValueError(f"takes {len(raw):,} bytes; the limit is {limit:,}")
    return raw


def _check_depth(text: str) -> None:
    """Count open brackets outside strings; the parser's own limit is far beyond what PostgreSQL likes."""
    depth = 0
    for token in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', text):
        mark = token[0]
        if mark in "[{":
            depth += 1
            if depth > Limits.PAYLOAD_DEPTH:
                raise ValueError(f"is nested more than {Limits.PAYLOAD_DEPTH} levels deep")
        elif mark in "]}":
            depth -= 1


def _check_strings(value: Any) -> None:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            found = _NOT_STORABLE.search(item)
            if found:
                what = (
                    "the character NUL (\\u0000)"
                    if found[0] == "\x00"
                    else f"half a surrogate pair (\\u{ord(found[0]):04x})"
                )
                raise ValueError(f"contains {what}, which PostgreSQL can't store")
        elif isinstance(item, dict):
            stack.extend(item)
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def _mend(value: Any) -> Any:
    if isinstance(value, str):
        return _NOT_STORABLE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_mend(key): _mend(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_mend(item) for item in value]
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"has the key {clean_text(twice, 60)!r} twice in one object")
    return found


def _finite(text: str) -> float:
    number = float(text)
    # PostgreSQL keeps every digit and writes no exponents: 1e-16000 would come back as 16,002 characters,
    # and a megabyte of those as more than it can send.
    if math.isinf(number) or (number == 0 and _NOT_ZERO.match(text)):
        raise ValueError(f"has a number beyond the range of a double: {text[:40]}")
    if len(text) > _NUMBER_CHARACTERS:
        raise ValueError(f"has a number of more than {_NUMBER_CHARACTERS:,} characters: {text[:40]}…")
    return number


def _digits(text: str) -> int:
    # The value isn't needed, and Python refuses to read very long ones.
    if len(text) > 300:
        _finite(text)
    return 0


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"has {name}, which is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_keys, parse_float=_finite, parse_int=_digits, parse_constant=_not_json
)
