"""JSON values of every kind that PostgreSQL can hold, what comes back of each, and a comparison that knows types."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

NUMBERS = (
    *(0, 1, -1, 2**31, 2**53 + 1, -(2**53) - 1, 2**63, -(2**63) - 1, 2**64, 2**64 + 1, 10**22 + 1, 10**300 + 7),
    *(0.0, 1.0, -1.0, 0.1, 1.5, 1e15, 1e16, 1e22, 1e23, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308),
    *(-1.7976931348623157e308, 1e-7, 123456789.123456789, 9007199254740993.0, 0.30000000000000004),
)
WORDS = (
    *(
        "",
        " ",
        "\u2028",
        "\u2029",
        "\u0085",
        "\ufeff",
        "\ufffe",
        "\uffff",
        "e\u0301",
        "\u00e9",
        "\U0001f4a9",
        "\x01",
        "\x1f",
    ),
    *(
        "\x7f",
        "\U0010ffff",
        "\ud7ff",
        "\ue000",
        '"',
        "\\",
        "\\u0000",
        "\\ud800",
        "/",
        "null",
        "ｆｕｌｌ",
        "\u202e",
        "a\r\n\tb",
    ),
)
texts = st.sampled_from(WORDS) | st.text(st.characters(exclude_characters="\x00", codec="utf-8"), max_size=20)
numbers = (
    st.sampled_from(NUMBERS)
    | st.integers(-(10**30), 10**30)
    | st.integers(-(10**307), 10**307)
    | st.floats(allow_nan=False, allow_infinity=False)
)
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=25,
)


@st.composite
def deep_values(draw: st.DrawFn) -> Any:
    """A value at the bottom of up to 64 arrays and objects."""
    value: Any = draw(scalars)
    for _ in range(draw(st.sampled_from((10, 62, 63, 64)))):
        value = {draw(texts): value} if draw(st.booleans()) else [value]
    return value


def as_stored(text: str) -> Any:
    """
    What Python's readers make of *text* once PostgreSQL has held it.

    jsonb keeps every digit of a number and the places behind its point, and writes no
    exponents: 1e3 comes back as 1000 and 1.50 as 1.50. There is no -0.
    """
    return json.loads(text, parse_float=_number, parse_int=int)


def _number(text: str) -> int | float:
    written = f"{Decimal(text):f}"
    return float(written) + 0.0 if "." in written else int(written)


def exactly(text: str) -> Any:
    """The same with each digit: numbers are what their text says, places included."""

    def digits(number: str) -> tuple[str, str]:
        written = f"{Decimal(number):f}"
        return ("number", written.removeprefix("-") if not Decimal(number) else written)

    return json.loads(text, parse_float=digits, parse_int=digits)


def same(one: Any, other: Any) -> bool:
    """Equal, and of equal types all the way down: 1 isn't 1.0, and neither is True. -0.0 isn't 0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(item, other[key]) for key, item in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) and (not isinstance(one, float) or repr(one) == repr(other))


def respelled(value: Any, dice: random.Random) -> str:
    """The same JSON value in other words: members in another order, other spaces, other escapes, other numbers."""
    space = dice.choice(("", " ", "\n", "\t \r\n"))
    if isinstance(value, dict):
        members = [f"{respelled(key, dice)}:{space}{respelled(item, dice)}" for key, item in value.items()]
        dice.shuffle(members)
        return "{" + space + ("," + space).join(members) + space + "}"
    if isinstance(value, list):
        return "[" + space + ("," + space).join(respelled(item, dice) for item in value) + space + "]"
    if isinstance(value, str):
        escaped = json.dumps(value, ensure_ascii=dice.random() < 0.5)
        return escaped.replace("/", "\\/") if dice.random() < 0.5 else escaped
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    text = json.dumps(value)
    if "e" not in text and len(text) < 300:
        return dice.choice((text, text + "e0", text + "E+00", text + ("0" if "." in text else ".0")))
    return dice.choice((text, text.replace("e", "E")))


def alike(one: Any, other: Any) -> bool:
    """Equal, where a whole number may stand for the float of the same digits: 9223372036854776000 for 2.0 ** 63."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(item, other[key]) for key, item in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other or (isinstance(one, int) and isinstance(other, float) and float(one) == other))
