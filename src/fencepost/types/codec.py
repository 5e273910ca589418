"""
Values as JSON and back, exactly.

msgspec does the work: dataclasses, structs, attrs classes, dates and times, UUIDs, Decimals, enums, sets, tuples,
bytes, NamedTuples and TypedDicts. Added here are pydantic's models, paths, and subclasses of `str`, `int` and
`float`; and what JSON or PostgreSQL can't hold is refused rather than changed on the way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import msgspec

from fencepost.domain.text import check_json

_SIMPLE_ARRAYS = 60
"""With fewer opening brackets than this, and one object, text can't be nested too deep."""
_NOT_A_NUMBER = b"null"
_LONG_NUMBER_DIGITS = 300
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % _LONG_NUMBER_DIGITS)
"""What may be beyond the range of a double."""


class NotEncodable(ValueError):
    """A value that can't be written as JSON; the message says why, to follow the value's name."""


def encode(value: Any, *, are_members: bool = False) -> bytes:
    """
    Write *value* as JSON text that PostgreSQL can hold and that reads back equal.

    With *are_members* it is a dict of values by names, of which nothing has to be looked at twice.

    Raises NotEncodable.
    """
    try:
        raw = _encoder.encode(value)
        if _NOT_A_NUMBER in raw:
            _refuse_non_numbers(value)
        if not are_members or _needs_a_look(raw):
            check_json(raw)
    except NotEncodable:
        raise
    except UnicodeEncodeError:
        raise NotEncodable("contains half a surrogate pair, which PostgreSQL can't store") from None
    except RecursionError:
        raise NotEncodable("is nested too deep, or contains itself") from None
    except (TypeError, OverflowError) as error:
        raise NotEncodable(f"can't be written as JSON: {_lower(error)}") from None
    except ValueError as error:
        raise NotEncodable(str(error)) from None
    return raw


def _needs_a_look(raw: bytes) -> bool:
    """Whether *raw* has nested objects, many arrays, escapes or a long number: only those can hold what must not be."""
    if raw.count(b"{") > 1 or b"\\u" in raw or raw.count(b"[") > _SIMPLE_ARRAYS:
        return True
    return len(raw) > _LONG_NUMBER_DIGITS and _LONG_NUMBER.search(raw) is not None


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """
    A decoder of JSON text into *kind*, which never converts: "1" and true aren't numbers.

    Raises TypeError for a type that can't be read from JSON.
    """
    return msgspec.json.Decoder(kind, dec_hook=_read)


def unreadable(kind: Any) -> Iterator[Any]:
    """The classes within *kind* that nothing here can read from JSON."""
    # Only looked at where a function is declared.
    from msgspec import inspect

    seen: set[int] = set()
    stack: list[Any] = [inspect.type_info(kind)]
    while stack:
        item = stack.pop()
        if isinstance(item, list | tuple):
            stack.extend(item)
        elif isinstance(item, inspect.CustomType):
            if not _is_known(item.cls):
                yield item.cls
        elif isinstance(item, inspect.Type | inspect.Field) and id(item) not in seen:
            seen.add(id(item))
            stack.extend(getattr(item, name) for name in item.__struct_fields__ if name not in _NOT_TYPES)


_PLAIN = (PurePath, str, int, float)
_NOT_TYPES = {"default", "default_factory", "name", "encode_name", "cls"}


def _is_known(kind: Any) -> bool:
    return isinstance(kind, type) and (kind is object or _is_model(kind) or issubclass(kind, _PLAIN))


def _is_model(kind: type) -> bool:
    """Whether *kind* is a pydantic model; told without importing pydantic."""
    return hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_validate_json")


def _write(value: Any) -> Any:
    """For the encoder: a form that it knows."""
    kind = type(value)
    if _is_model(kind):
        # By its own names and without what is computed, since only that always reads back.
        return value.model_dump(mode="json", round_trip=True, by_alias=False)
    if isinstance(value, PurePath):
        return str(value)
    for base in (str, int, float):
        if isinstance(value, base):
            return base.__str__(value) if base is str else base(value)
    raise TypeError(f"{kind.__module__}.{kind.__qualname__} is no type that JSON has a form for")


def _read(kind: type, value: Any) -> Any:
    """For the decoder: an object of *kind*, from what JSON gave."""
    if kind is object:
        return value
    if _is_model(kind):
        return _validate(kind, value)
    if isinstance(kind, type) and issubclass(kind, PurePath | str):
        if not isinstance(value, str):
            raise ValueError(f"Expected `str`, got `{_json_name(value)}`")
        return kind(value)
    if isinstance(kind, type) and issubclass(kind, int | float):
        allowed = (int,) if issubclass(kind, int) else (int, float)
        if isinstance(value, bool) or not isinstance(value, allowed):
            raise ValueError(f"Expected `{allowed[-1].__name__}`, got `{_json_name(value)}`")
        return kind(value)
    raise NotImplementedError(f"{kind!r} can't be read from JSON")


def _validate(model: Any, value: Any) -> Any:
    try:
        return model.model_validate_json(_encoder.encode(value), by_alias=True, by_name=True)
    except ValueError as error:
        raise ValueError(_first_of(error)) from None


def _first_of(error: ValueError) -> str:
    """The first thing that pydantic found, in one line."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return str(error)
    first = errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else str(first["msg"])


def _refuse_non_numbers(value: Any) -> None:
    """Raise NotEncodable for a NaN or an Infinity, of which msgspec makes null."""
    stack = [msgspec.to_builtins(value, enc_hook=_write)]
    while stack:
        item = stack.pop()
        if isinstance(item, float):
            if not math.isfinite(item):
                raise NotEncodable(f"contains {item}, which is not a number in JSON")
        elif isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            stack.extend(item)


def _json_name(value: Any) -> str:
    if value is None:
        return "null"
    return {"dict": "object", "list": "array"}.get(type(value).__name__, type(value).__name__)


def _lower(error: BaseException) -> str:
    text = str(error)
    return text[:1].lower() + text[1:]


_encoder = msgspec.json.Encoder(enc_hook=_write)

encode_result = _encoder.encode
"""As `encode`, without the checks: results are mended, not refused (domain/text.py)."""


def result_decoder(kind: Any) -> msgspec.json.Decoder[Any] | None:
    """A decoder of results of *kind*; None for what can't be read from JSON, or needs no reading."""
    try:
        if kind in (Any, None, type(None)) or any(True for _ in unreadable(kind)):
            return None
        return decoder(kind)
    except (TypeError, NotImplementedError):
        return None
