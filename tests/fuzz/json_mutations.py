"""What is done to the JSON of a body: the value is taken apart and written again, with parts that no encoder writes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from tests.fuzz.requests import Sent

AWKWARD = (
    *(b"\0", b"\xff", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b'"', b"\\", b"\\u0000", b"\\ud800", b"NaN"),
    *(b"{", b"}", b"[", b"]", b",", b":", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"1e999", b"-", b"//", b"\x1f", b"\r\n"),
)


class Text(str):
    """JSON as it is to be written."""

    __slots__ = ()


NUMBERS = (
    *("0", "-0", "-0.0", "1.0", "1e2", "-1", "1.5", "9007199254740993", "18446744073709551616", "-9223372036854775809"),
    *("1e308", "1.7976931348623157e308", "1.8e308", "1e400", "5e-324", "1e-400", "0e999", "0e-99999", "1e-16000"),
    *("9" * 200, "9" * 309, "9" * 5000, "0." + "1" * 2000, "01", "1.", ".5", "+1", "0x1", "NaN", "Infinity", "-", "1e"),
)
WORDS = (
    *(r'"\u0000"', r'"\ud800"', r'"\udc00\ud800"', r'"\ud83d\ude00"', r'"\u2028"', r'"\x"', r'"\u12"', '"\t"', '""'),
    *(
        r'"e\u0301"',
        '"\U0001f4a9"',
        "'single'",
        '"' + "x" * 10_000 + '"',
        '"\u202e"',
        '"../../etc"',
        '"$1; --"',
        '"%s"',
    ),
    *(
        '"2027-01-01T00:00:00Z"',
        '"9999-12-31T23:59:59+14:00"',
        '"-5s"',
        '"1e9h"',
        '"\u0665s"',
        '"0000-00-00T00:00:00Z"',
    ),
)
OTHERS = (
    "null",
    "true",
    "false",
    "[]",
    "{}",
    "[[]]",
    '{"":{}}',
    "tru",
    "None",
    "undefined",
    '{"a":1,"a":2}',
    "[1,]",
    "",
)
NAMES = (
    "",
    "type ",
    "Type",
    "__proto__",
    "payload\\u0000",
    "x" * 3000,
    "idempotency-key",
    "id",
    "status",
    "\\ud800",
    "ü",
)
_WIDE = tuple(
    Text(json.dumps(wide))
    for many in (100, 5000)
    for wide in ({f"k{number}": number for number in range(many)}, [f"t{number}" for number in range(many)])
)


def dumps(value: Any) -> str:
    """Write a value that may hold `Text`, whatever that makes of it."""
    if isinstance(value, Text):
        return str.__str__(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_name(name)}:{dumps(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dumps, value)) + "]"
    return json.dumps(value)


def _name(name: str) -> str:
    return str.__str__(name) if isinstance(name, Text) else json.dumps(name)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a value with each of its keys or places."""
    found: list[tuple[Any, Any]] = []
    stack = [value]
    while stack:
        item = stack.pop()
        keys = list(item) if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else ()
        for key in keys:
            found.append((item, key))
            stack.append(item[key])
    return found


def _objects(value: Any) -> list[dict[str, Any]]:
    inner = [container[key] for container, key in _places(value)]
    return [item for item in [value, *inner] if isinstance(item, dict)] or [{}]


def _changed(change: Callable[[Any, random.Random], None]) -> Callable[[Sent, random.Random], None]:
    def mutate(sent: Sent, dice: random.Random) -> None:
        change(sent.value, dice)
        # A lone surrogate can't be written otherwise than by an escape; what is here is text that was meant.
        sent.body = dumps(sent.value).encode("utf-8", "surrogatepass")
        sent.alone = sent.alone or len(sent.body) > 1_000_000

    return mutate


def _put(*texts: str) -> Callable[[Sent, random.Random], None]:
    def change(value: Any, dice: random.Random) -> None:
        places = _places(value)
        if places:
            container, key = dice.choice(places)
            container[key] = Text(dice.choice(texts))

    return _changed(change)


def _swap(value: Any, dice: random.Random) -> None:
    places = _places(value)
    if places:
        (one, here), (other, there) = dice.choice(places), dice.choice(places)
        # By text, so that nothing comes to hold itself.
        one[here], other[there] = Text(dumps(other[there])), Text(dumps(one[here]))


def _wrap(value: Any, dice: random.Random) -> None:
    places = _places(value)
    if places:
        container, key = dice.choice(places)
        inner = dumps(container[key])
        container[key] = Text(dice.choice((f"[{inner}]", f'{{"x":{inner}}}', json.dumps(inner))))


def _drop(value: Any, dice: random.Random) -> None:
    places = _places(value)
    if places:
        container, key = dice.choice(places)
        del container[key]


def _unknown(sent: Sent, dice: random.Random) -> None:
    """A member that no job has."""
    name = Text('"' + dice.choice(NAMES) + '"')
    target = sent.value if isinstance(sent.value, dict) else dice.choice(_objects(sent.value))
    target[name] = 1
    sent.body = dumps(sent.value).encode("utf-8", "surrogatepass")
    if isinstance(sent.value, dict):
        sent.expected = frozenset({400})


def _twice(value: Any, dice: random.Random) -> None:
    target = dice.choice(_objects(value))
    if target:
        name = dice.choice(sorted(target, key=str))
        target[Text(json.dumps(name) + " ")] = target[name]


def _deep(value: Any, dice: random.Random) -> None:
    depth = dice.choice((60, 63, 64, 65, 66, 100, 1000, 20_000))
    inner = dice.choice(("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, "[" * depth, '[{"":' * depth))
    target = dice.choice(_objects(value))
    target[dice.choice(("payload", "metadata", "tags", "x"))] = Text(inner)


def _wide(value: Any, dice: random.Random) -> None:
    target = dice.choice(_objects(value))
    target[dice.choice(("payload", "payload", "tags", "metadata"))] = dice.choice(_WIDE)


def _large(value: Any, dice: random.Random) -> None:
    size = dice.choice((1000, 60_000, (1 << 20) - 2, (1 << 20) - 1, 2 << 20))
    # Now and then: a campaign is not to store gigabytes.
    dice.choice(_objects(value))["payload"] = "x" * (size if dice.random() < 0.05 else 1000)


JSON_MUTATIONS: dict[str, Callable[[Sent, random.Random], None]] = {
    "json: number": _put(*NUMBERS),
    "json: text": _put(*WORDS),
    "json: another type": _put(*OTHERS),
    "json: swapped": _changed(_swap),
    "json: wrapped": _changed(_wrap),
    "json: left out": _changed(_drop),
    "json: unknown member": _unknown,
    "json: member twice": _changed(_twice),
    "json: deep": _changed(_deep),
    "json: wide": _changed(_wide),
    "json: large": _changed(_large),
}
