"""
From the bytes of a body to structs, and from what is wrong with them to words.

msgspec does the reading. Its messages name types in Python's terms and, for some broken
text, the wrong reason, so they are put differently here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

import msgspec

from fencepost.domain.job import Limits
from fencepost.domain.requests import UniqueRequest
from fencepost.domain.text import check_json, clean_text
from fencepost.domain.wording import explain, shown
from fencepost.errors import InvalidJob


class HasPayload(Protocol):
    """A request with one member of free JSON."""

    @property
    def payload(self) -> msgspec.Raw:
        """The free JSON."""
        ...


_T = TypeVar("_T", bound=HasPayload)

THE_BODY = "the body"
_UNIQUE = "unique"
"""The one member that has members of its own; metadata and the payload are looked through elsewhere."""
EXPLAINED_BYTES = 4 << 20
"""Text longer than this is not parsed a second time for a better message."""

_BOM = b"\xef\xbb\xbf"
_TOO_DEEP = f"is nested more than {Limits.PAYLOAD_DEPTH} levels deep"
# Numbers stay text: Python refuses to convert very long ones.
_PAIRS = json.JSONDecoder(object_pairs_hook=list, parse_int=str, parse_float=str)
_ANY = json.JSONDecoder(parse_int=str, parse_float=str)
_SPACE = re.compile(r"[ \t\n\r]*")
_BLANK_LINES = re.compile(rb"[ \t\n\r]*")


class BodyDecoder(Generic[_T]):
    """Reads a JSON object as one kind of struct, strictly: nothing unknown, nothing twice, nothing converted."""

    def __init__(self, kind: type[_T]) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._names = [field.encode_name for field in msgspec.structs.fields(kind)]  # type: ignore[arg-type]
        inner = msgspec.structs.fields(UniqueRequest) if _UNIQUE in self._names else ()
        self._quoted = [f'"{name}"'.encode() for name in [*self._names, *(field.encode_name for field in inner)]]

    def decode(self, raw: bytes, what: str = THE_BODY) -> _T:
        """Read *raw*, which messages call *what*. Raises InvalidJob, naming the field if it is one field's fault."""
        try:
            value = self._decoder.decode(raw)
        except RecursionError:
            raise InvalidJob(f"{what} {_TOO_DEEP}") from None
        except msgspec.ValidationError as error:
            raise explain(str(error), what, self._names) from None
        except msgspec.DecodeError as error:
            raise _explain_syntax(raw, error, what) from None
        self._refuse_repeated(raw, bytes(value.payload), what)
        return value

    def _refuse_repeated(self, raw: bytes, payload: bytes, what: str) -> None:
        """
        Refuse a member that is given twice; msgspec would take the last one.

        The payload is looked through elsewhere. What is outside of it can hold a member
        twice only if its name is there twice, or is spelled with escapes: only then is
        the text read again.
        """
        if raw.count(b"\\") == payload.count(b"\\"):
            for name in self._quoted:
                if raw.count(name) > 1 and raw.count(name) - payload.count(name) > 1:
                    break
            else:
                return
        try:
            pairs: list[tuple[str, object]] = _PAIRS.decode(raw.decode())
        except (RecursionError, ValueError) as error:
            raise _explain_syntax(raw, error, what) from None
        _refuse_twice(pairs)
        for name_, value in pairs:
            if name_ == _UNIQUE and isinstance(value, list):
                _refuse_twice(value, f"{_UNIQUE}.")


def _refuse_twice(pairs: list[tuple[str, object]], before: str = "") -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise InvalidJob("is given twice", field=before + shown(name))
        seen.add(name)


def split_array(body: bytes) -> Iterator[bytes]:
    """
    Give the items of a JSON array one at a time, each as it is written.

    Lazy, so that the caller can stop at its limit and let others run in between. Raises
    InvalidJob with the index of an item that isn't JSON.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InvalidJob(f"{THE_BODY} is not valid UTF-8 (byte {error.start})") from None
    position = _skip(text, _skip(text, 0) + 1)
    index = 0
    while text[position : position + 1] != "]" or index:
        try:
            _, end = _ANY.raw_decode(text, position)
        except RecursionError:
            raise InvalidJob(_TOO_DEEP, index=index) from None
        except json.JSONDecodeError as error:
            raise InvalidJob(
                f"is not valid JSON: {error.msg.removesuffix(' at')} at character {error.pos}", index=index
            ) from None
        yield text[position:end].encode()
        index += 1
        position = _skip(text, end)
        mark = text[position : position + 1]
        position = _skip(text, position + 1)
        if mark == "]":
            break
        if mark != ",":
            raise InvalidJob(f"{THE_BODY} is not a complete JSON array: expected , or ] at character {position}")
    else:
        position += 1
    if text[_skip(text, position) :]:
        raise InvalidJob(f"{THE_BODY} goes on after the end of its array, at character {position}")


def split_lines(body: bytes) -> Iterator[bytes]:
    """Give the lines of NDJSON that aren't blank, one at a time."""
    position = _end(_BLANK_LINES, body, 0)
    while position < len(body):
        end = body.find(b"\n", position)
        end = len(body) if end < 0 else end
        yield body[position:end].rstrip()
        position = _end(_BLANK_LINES, body, end)


def _skip(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return found.end() if found else position


def _end(pattern: re.Pattern[bytes], body: bytes, position: int) -> int:
    found = pattern.match(body, position)
    return found.end() if found else position


def _explain_syntax(raw: bytes, error: Exception, what: str) -> InvalidJob:
    if not raw.strip():
        return InvalidJob(f"{what} is empty; a JSON object is needed")
    if raw.startswith(_BOM):
        return InvalidJob(f"{what} starts with a byte order mark; send UTF-8 without one")
    if len(raw) <= EXPLAINED_BYTES:
        try:
            check_json(raw)
        except ValueError as better:
            return _guilty_field(raw) or InvalidJob(f"{what} {better}")
    if isinstance(error, RecursionError):
        return InvalidJob(f"{what} {_TOO_DEEP}")
    return InvalidJob(f"{what} is not valid JSON: {clean_text(str(error), 200)}")


def _guilty_field(raw: bytes) -> InvalidJob | None:
    """Find the member that holds what can't be stored, in text that is otherwise readable."""
    try:
        members = json.loads(raw, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    for name, value in members.items() if isinstance(members, dict) else ():
        try:
            check_json(json.dumps(value).encode())
        except ValueError as error:
            return InvalidJob(str(error), field=shown(name))
    return None
