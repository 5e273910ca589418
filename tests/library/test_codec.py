"""Arguments and results as JSON and back: equal, or refused with a reason."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost import Fencepost, InvalidJob
from fencepost.domain.text import check_json
from fencepost.types import codec


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Point:
    x: int
    y: float = 0.0
    labels: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Line:
    start: Point
    end: Point | None = None


class Struct(msgspec.Struct, tag="struct"):
    at: datetime
    amount: Decimal


class Other(msgspec.Struct, tag="other"):
    name: str


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Movie(TypedDict, total=False):
    title: str
    year: int


class Inner(pydantic.BaseModel):
    when: datetime
    amount: Decimal = Decimal("0")
    point: Point = Point(1)


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    camel_case: int = pydantic.Field(alias="camelCase")
    written: str = pydantic.Field(serialization_alias="out", validation_alias="in")
    inner: Inner
    others: list[Inner] = []
    raw: bytes = b""

    @pydantic.computed_field
    def double(self) -> int:
        return self.camel_case * 2


class Text(str):
    """As template engines mark what is safe."""


moments = st.datetimes(
    min_value=datetime(1, 1, 2),
    max_value=datetime(9999, 12, 30),
    timezones=st.sampled_from([None, UTC, timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(hours=3))]),
)
decimals = st.decimals(allow_nan=False, allow_infinity=False)
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
floats = st.floats(allow_nan=False, allow_infinity=False)
points = st.builds(Point, st.integers(), floats, st.lists(words))
inners = st.builds(Inner, when=moments, amount=decimals.filter(lambda number: number.adjusted() < 1000), point=points)

KINDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, words),
    (int, st.integers()),
    (int, st.integers(min_value=2**63, max_value=2**300)),
    (float, floats),
    (bool, st.booleans()),
    (bytes, st.binary()),
    (UUID, st.uuids()),
    (Decimal, decimals),
    (datetime, moments),
    (date, st.dates()),
    (time, st.times()),
    (timedelta, st.timedeltas()),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
    (Literal["a", 1], st.sampled_from(["a", 1])),
    (int | None, st.none() | st.integers()),
    (int | str | None, st.none() | st.integers() | words),
    (list[int], st.lists(st.integers())),
    (set[UUID], st.sets(st.uuids())),
    (frozenset[str], st.frozensets(words)),
    (tuple[int, str], st.tuples(st.integers(), words)),
    (tuple[Decimal, ...], st.lists(decimals).map(tuple)),
    (dict[str, float], st.dictionaries(words, floats)),
    (dict[int, datetime], st.dictionaries(st.integers(-(2**62), 2**62), moments)),
    (Point, points),
    (Line, st.builds(Line, points, st.none() | points)),
    (Struct | Other, st.builds(Struct, at=moments, amount=decimals) | st.builds(Other, name=words)),
    (Pair, st.builds(Pair, st.integers(), words)),
    (Movie, st.fixed_dictionaries({}, optional={"title": words, "year": st.integers()})),
    (Inner, inners),
    (list[Inner | None], st.lists(st.none() | inners)),
    (dict[str, Inner], st.dictionaries(words, inners)),
    (PurePosixPath, words.map(PurePosixPath)),
    (Text, words.map(Text)),
    (Annotated[int, msgspec.Meta(ge=0)], st.integers(min_value=0)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "values"), KINDS, ids=lambda found: str(found)[:40])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_round_trip(kind: Any, values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    value = data.draw(values)
    raw = codec.encode({"value": value})
    check_json(raw)
    struct = msgspec.defstruct("Payload", [("value", kind)])
    found = codec.decoder(struct).decode(raw).value
    assert found == value
    assert type(found) is type(value)
    if isinstance(value, datetime):
        assert found.utcoffset() == value.utcoffset()


def test_a_model_with_aliases_and_computed_fields() -> None:
    model = Model.model_validate(
        {"camelCase": 2, "in": "x", "inner": Inner(when=datetime(2027, 1, 1, tzinfo=UTC)), "raw": b"abc"}
    )
    raw = codec.encode(model)
    assert codec.decoder(Model).decode(raw) == model
    # Callers elsewhere may use the aliases.
    by_alias = {"camelCase": 2, "in": "x", "inner": {"when": "2027-01-01T00:00:00Z"}, "raw": "abc"}
    assert codec.decoder(Model).decode(msgspec.json.encode(by_alias)) == model


def test_a_model_that_doesnt_fit_names_its_field() -> None:
    app = Fencepost("postgresql://nowhere/none")

    @app.job
    def take(model: Inner, n: int = 0) -> None: ...

    with pytest.raises(InvalidJob) as caught:
        take.call({"when": "yesterday"})  # type: ignore[arg-type]
    assert caught.value.field == "model"
    assert caught.value.message.startswith("when: Input should be a valid datetime")


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (float, math.nan, "contains nan, which is not a number in JSON"),
        (float | None, math.inf, "contains inf, which"),
        (list[Any], [1, [-math.inf]], "contains -inf, which"),
        (Any, {"deep": math.nan}, "contains nan, which"),
        (Point, Point(1, math.nan), "contains nan, which"),
        (Any, {"nul": "\x00"}, "contains the character NUL"),
        (dict[str, int], {"\x00": 1}, "contains the character NUL"),
        (Any, ["\ud800"], "contains half a surrogate pair"),
        (Any, {1: "a", "1": "b"}, "has the key '1' twice"),
        (Any, {(1, 2): "a"}, "tuple is no type that JSON has a form for"),
        (Any, object(), "object is no type that JSON has a form for"),
        (Any, 1j, "complex is no type"),
        (int, True, "must be a whole number, not true or false"),
        (str, 1, "must be a string, not a whole number"),
        (datetime, "now", "invalid RFC3339 encoded datetime"),
        (UUID, "x", "invalid UUID"),
        (Colour, "green", "invalid enum value 'green'"),
        (Literal["a"], "b", "invalid enum value 'b'"),
        (Annotated[int, msgspec.Meta(le=3)], 4, "must be at most 3"),
    ],
)
def test_what_cant_be_kept_is_refused_with_the_parameters_name(kind: Any, value: Any, words: str) -> None:
    app = Fencepost("postgresql://nowhere/none")

    def take(before: int, value: Any) -> None: ...

    take.__annotations__["value"] = kind
    job = app.job(take)
    with pytest.raises(InvalidJob) as caught:
        job.call(1, value)
    assert (caught.value.field or "").startswith("value")
    assert words in caught.value.message


def test_what_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(codec.NotEncodable, match="nested too deep, or contains itself"):
        codec.encode(endless)
    deep: Any = 1
    for _ in range(70):
        deep = [deep]
    with pytest.raises(codec.NotEncodable, match="nested more than 64 levels"):
        codec.encode(deep)


def test_pydantic_is_not_imported_for_it() -> None:
    import subprocess
    import sys

    code = (
        "import sys, dataclasses, fencepost\n"
        "app = fencepost.Fencepost()\n"
        "@dataclasses.dataclass\nclass P:\n    x: int\n"
        "@app.job\ndef f(p: P) -> P: ...\n"
        "f.call(P(1))\n"
        "assert 'pydantic' not in sys.modules and 'attr' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
