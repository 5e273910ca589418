"""What PostgreSQL can hold, and what is refused or mended so that it can."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.domain.text import check_json, clean_text, storable_json

encode = msgspec.json.encode

ACCEPTED = [
    b"{}", b"[]", b"null", b"true", b"0", b"-0", b"-0.0", b'""', b' {"a" : 1} ', b"1e308", b"-1.7976931348623157e308",
    b"5e-324", b"0e-99", b"0.0", b"1" + b"0" * 300, b"-1" + b"0" * 307, b"0." + b"0" * 300 + b"1",
    b"4611686018427387907",
    rb'"\ud83d\ude00"', rb'"\\u0000"', rb'"\\ud800"', '"\ufffd\uffff\u2028"'.encode(), '"é😀"'.encode(),
    b"[" * 64 + b"]" * 64, b'{"a":' * 64 + b"1" + b"}" * 64, b'["' + b"[{" * 100 + b'"]',
    b'{"a": 1, "A": 2, "": 3}', rb'{"\u0061b": 1, "a": 2}', b'"' + b"x" * 100_000 + b'"',
    b"[" + b"[]," * 1_000 + b"[]]",
]  # fmt: skip

REFUSED = {
    b'{"a": "x\\u0000y"}': "NUL",
    b'{"x\\u0000y": 1}': "NUL",
    b'[[["\\u0000"]]]': "NUL",
    b'"\x00"': "is not valid JSON",
    rb'"\ud835"': "half a surrogate pair",
    rb'"\uDC59\uD835"': "half a surrogate pair",
    rb'{"\ud835": 1}': "half a surrogate pair",
    rb'["ok", {"a": ["\udfff"]}]': "half a surrogate pair",
    b'"\xed\xa0\x80"': "is not valid UTF-8",
    b'{"\xed\xb0\x80": 1}': "is not valid UTF-8",
    b'"\xff"': r"is not valid UTF-8 \(byte 1\)",
    "{}".encode("utf-16"): "is not valid UTF-8",
    b"\xef\xbb\xbf{}": "is not valid JSON",
    b'{"x": NaN}': "NaN, which is not JSON",
    b'{"x": -Infinity}': "-Infinity, which is not JSON",
    b"1e400": "beyond the range of a double",
    b"-1e400": "beyond the range of a double",
    b"[1e-400]": "beyond the range of a double",
    b"1e-16000": "beyond the range of a double",
    b"1e-2000000000": "beyond the range of a double",
    b"0e2000000000": "beyond the range of a double",
    b"0e-16000": "beyond the range of a double",
    b"0.0e-000999": "beyond the range of a double",
    b"9" * 309: "beyond the range of a double",
    b"-" + b"9" * 309: "beyond the range of a double",
    b"9" * 100_000: "beyond the range of a double",
    b"1." + b"0" * 17_000: "more than 1,100 characters",
    b"0." + b"0" * 17_000: "more than 1,100 characters",
    b'{"a": 1, "a": 2}': "the key 'a' twice",
    rb'{"a": 1, "\u0061": 2}': "the key 'a' twice",
    b'[{"x": {"k": 1, "b": 2, "k": 1}}]': "the key 'k' twice",
    b"[" * 65 + b"]" * 65: "more than 64 levels",
    b'{"a":' * 65 + b"1" + b"}" * 65: "more than 64 levels",
    b"[" * 100_000 + b"]" * 100_000: "more than 64 levels",
    b"[" * 100_000: "more than 64 levels",
    b"": "is not valid JSON",
    b"{": "is not valid JSON",
    b"{'a': 1}": "is not valid JSON",
    b"[1,]": "is not valid JSON",
    b"01": "is not valid JSON",
    b"1 2": "is not valid JSON",
    b'{"a": 1} // x': "is not valid JSON",
    b'"\n"': "is not valid JSON",
}


@pytest.mark.parametrize("raw", ACCEPTED, ids=lambda raw: repr(raw[:40]))
def test_accepts(raw: bytes) -> None:
    check_json(raw)


@pytest.mark.parametrize(("raw", "reason"), REFUSED.items(), ids=lambda value: repr(value[:40]))
def test_refuses_with_the_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        check_json(raw)
    message = str(refused.value)
    assert len(message) < 200
    message.encode()
    assert "\x00" not in message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**300), 10**300) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)  # fmt: skip


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for item in pair for text in _strings(item)]
    return [text for item in value for text in _strings(item)] if isinstance(value, list) else []


@given(json_values, st.booleans())
def test_the_verdict_depends_only_on_the_strings_of_valid_json(value: Any, ascii_only: bool) -> None:
    try:
        raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:
        return
    storable = all("\x00" not in text and text.isprintable() | _encodes(text) for text in _strings(value))
    if storable:
        check_json(raw)
    else:
        with pytest.raises(ValueError, match=r"NUL|surrogate"):
            check_json(raw)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@given(st.binary(max_size=60) | st.text(alphabet='{}[]",:\\u0d8eE+-.19 a', max_size=40).map(str.encode))
def test_any_bytes_get_a_verdict(raw: bytes) -> None:
    try:
        check_json(raw)
    except ValueError:
        return
    json.loads(raw)


@given(st.text(), st.integers(2, 40), st.booleans())
def test_cleaned_text_fits_and_can_be_stored(text: str, limit: int, keep_end: bool) -> None:
    cleaned = clean_text(text, limit, keep_end=keep_end)
    assert len(cleaned) <= limit
    cleaned.encode()
    assert "\x00" not in cleaned
    if len(text) <= limit and _encodes(text) and "\x00" not in text:
        assert cleaned == text


def test_long_text_is_cut_at_the_end_that_matters_less_and_marked() -> None:
    assert clean_text("abcdef", 4) == "abc…"
    assert clean_text("abcdef", 4, keep_end=True) == "…def"
    assert clean_text("ab\x00\ud800", 4) == "ab\ufffd\ufffd"


class Answer(msgspec.Struct):
    text: str


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ({"a": [1, 2.5, None, True, "é"]}, {"a": [1, 2.5, None, True, "é"]}),
        ("a\x00b", "a\ufffdb"),
        ("a\ud835b", "a\ufffdb"),
        ({"k\x00": {"\ud800": ["\x00", ("\udfff",)]}}, {"k\ufffd": {"\ufffd": ["\ufffd", ["\ufffd"]]}}),
        (10**30, 10**30),
        (Answer("a\x00b"), {"text": "a\ufffdb"}),
        ("\\u0000", "\\u0000"),
        ({1, 2}, [1, 2]),
    ],
)
def test_a_result_is_mended(value: object, stored: object) -> None:
    raw = storable_json(value, encode=encode, limit=1000)
    assert json.loads(raw) == stored
    check_json(raw)


def _looped() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def _deep(last: object) -> object:
    for _ in range(100_000):
        last = [last]
    return last


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "is not JSON"),
        (_looped(), "nested too deep"),
        (_deep(1), "nested too deep"),
        (["\ud800", _looped()], "nested too deep"),
        (_deep("\ud800"), "nested too deep"),
        ("x" * 2_000, "takes 2,002 bytes; the limit is 1,000"),
        ({(1, 2): 3}, "is not JSON"),
    ],
    ids=["object", "loop", "deep", "surrogate and loop", "deep surrogate", "large", "tuple as key"],
)  # fmt: skip
def test_a_result_that_cannot_be_kept_is_refused_with_the_reason(value: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        storable_json(value, encode=encode, limit=1_000)


@given(json_values)
def test_any_json_value_can_be_kept_as_a_result(value: Any) -> None:
    raw = storable_json(value, encode=encode, limit=1 << 20)
    raw.decode()
    assert all("\x00" not in text and _encodes(text) for text in _strings(json.loads(raw)))
    if all("\x00" not in text and _encodes(text) for text in _strings(value)):
        assert json.loads(raw) == value


@pytest.mark.parametrize("value", [math.nan, math.inf, [1, -math.inf]])
def test_numbers_that_json_lacks_become_null_in_a_result(value: object) -> None:
    assert json.loads(storable_json(value, encode=encode, limit=100)) in (None, [1, None])
