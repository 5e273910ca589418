"""From a function to a payload: what is declared, what is refused, and how arguments are bound."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost import Context, Fencepost, InvalidJob, InvalidSettings, Payload, Permanent, UniqueBy, resource
from fencepost.domain.ids import new_id
from fencepost.types.functions import parameters_of
from fencepost.types.jobtype import Kind

if TYPE_CHECKING:
    from decimal import Context as OnlyForCheckers


@pytest.fixture
def app() -> Fencepost:
    return Fencepost("postgresql://nowhere/none")


def context() -> Context:
    return Context(id=new_id(), type="x", queue="q", attempt=1, max_attempts=3, token=1, timeout_seconds=1.0)


def run(job: Any, payload: str) -> Any:
    """What a worker does: read the payload, call the handler."""
    return job.job_type.handler(context(), job.job_type.decoder.decode(payload))


def test_arguments_become_members_by_name_and_come_back(app: Fencepost) -> None:
    @app.job
    def add(a: int, b: int = 2, *, c: int = 3) -> tuple[int, int, int]:
        return a, b, c

    assert add.call(1).payload == b'{"a":1}'
    assert add.call(1, 5, c=6).payload == b'{"a":1,"b":5,"c":6}'
    assert add.call(b=5, a=1).payload == b'{"b":5,"a":1}'
    assert run(add, '{"a": 1}') == (1, 2, 3)
    assert run(add, '{"a": 1, "c": 9}') == (1, 2, 9)
    assert add(1, c=4) == (1, 2, 4)


def test_wrong_arguments_name_the_parameter(app: Fencepost) -> None:
    @app.job
    def add(a: int, b: str | None = None, *, when: list[int] = []) -> None: ...  # noqa: B006

    calls: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((), {}, "a: is missing, and there is no default for it"),
        (("1",), {}, "a: must be a whole number, not a string"),
        ((True,), {}, "a: must be a whole number, not true or false"),
        ((1.0,), {}, "a: must be a whole number, not a number with a decimal point"),
        ((None,), {}, "a: must be a whole number, not null"),
        ((1, 2), {}, "b: must be a string or null, not a whole number"),
        ((1, "x", [2]), {}, "arguments: takes 2 arguments by position, not 3"),
        ((1,), {"a": 2}, "a: is given twice, by position and by name"),
        ((1,), {"wen": []}, "wen: is not a field here; did you mean when? There are a, b, when"),
        ((1,), {"when": [1, "x"]}, "when[1]: must be a whole number, not a string"),
        ((1,), {"b": "nul \x00 in it"}, "b: contains the character NUL (\\u0000), which PostgreSQL can't store"),
        ((1,), {"b": "half \ud800"}, "b: contains half a surrogate pair, which PostgreSQL can't store"),
        ((1,), {"b": object()}, "b: can't be written as JSON: builtins.object is no type that JSON has a form for"),
    ]
    for arguments, named, words in calls:
        with pytest.raises(InvalidJob) as caught:
            add.call(*arguments, **named)
        assert str(caught.value) == words
        assert words.startswith(f"{caught.value.field}: ")


def test_members_that_are_unknown_are_refused_by_the_worker_too(app: Fencepost) -> None:
    @app.job
    def add(a: int) -> None: ...

    with pytest.raises(msgspec.ValidationError, match="unknown field `b`"):
        add.job_type.decoder.decode('{"a": 1, "b": 2}')
    with pytest.raises(msgspec.ValidationError, match="missing required field `a`"):
        add.job_type.decoder.decode("{}")


def test_kwargs_take_what_else_there_is(app: Fencepost) -> None:
    @app.job
    def add(context: Context, a: int, **rest: int) -> Any:
        return a, rest

    assert add.call(1, b=2).payload == b'{"a":1,"b":2}'
    assert run(add, '{"a": 1, "b": 2, "c": 3}') == (1, {"b": 2, "c": 3})
    with pytest.raises(InvalidJob, match=r"^b: must be a whole number"):
        add.call(1, b="2")
    with pytest.raises(msgspec.ValidationError, match="unknown field `context`"):
        add.job_type.decoder.decode('{"a": 1, "context": 2}')
    with pytest.raises(InvalidJob, match="is the context, which the worker gives"):
        add.call(1, context=2)


def test_the_context_is_found_by_its_type(app: Fencepost) -> None:
    @app.job(name="first")
    def first(ctx: Context, a: int) -> Any:
        return ctx.type, a

    @app.job(name="by_name")
    def by_name(a: int, *, ctx: Context) -> Any:
        return ctx.type, a

    @app.job(name="only")
    def only(ctx: Context, /, a: int) -> Any:
        return ctx.type, a

    @app.job(name="perhaps")
    def perhaps(ctx: Context | None, a: int) -> Any:
        return ctx and ctx.type, a

    for job in (first, by_name, only, perhaps):
        assert job.call(a=1).payload == b'{"a":1}'
        assert run(job, '{"a": 1}') == ("x", 1)
    assert first(context(), 3) == ("x", 3)


def test_resources_are_no_part_of_the_payload(app: Fencepost) -> None:
    @app.job
    def send(a: int, *, pool: list[int] = resource(), named: Any = resource("other")) -> None: ...

    assert [(need.parameter, need.name) for need in send.job_type.needs] == [("pool", None), ("named", "other")]
    assert send.call(1).payload == b'{"a":1}'
    with pytest.raises(InvalidJob, match="pool: is a resource, which the worker gives"):
        send.call(1, pool=[])


def test_a_resource_whose_type_is_unknown_at_run_time_goes_by_name(app: Fencepost) -> None:
    @app.job
    def send(a: int, *, pool: OnlyForCheckers = resource(), bank: NoSuch[int] = resource("b")) -> None: ...  # type: ignore[name-defined] # noqa: F821

    assert [(need.parameter, need.name) for need in send.job_type.needs] == [("pool", "pool"), ("bank", "b")]


def test_a_payload_parameter_is_all_of_it(app: Fencepost) -> None:
    @app.job
    def total(context: Context, numbers: Payload[list[int]]) -> int:
        return sum(numbers)

    assert total.call([1, 2]).payload == b"[1,2]"
    assert run(total, "[1, 2]") == 3
    with pytest.raises(InvalidJob, match=r"must be a whole number, not a string"):
        total.call(["x"])  # type: ignore[list-item]
    with pytest.raises(InvalidJob, match=r"numbers must be an array, not null"):
        total.call(None)  # type: ignore[arg-type]


def test_classes_of_the_enclosing_function_are_found(app: Fencepost) -> None:
    class Local(msgspec.Struct):
        x: int

    @app.job
    def take(local: Local, more: list[Local] = []) -> int:  # noqa: B006
        return local.x

    assert take.call(Local(3)).payload == b'{"local":{"x":3}}'
    assert run(take, '{"local": {"x": 4}}') == 4
    with pytest.raises(InvalidJob, match=r"^local.x: must be a whole number"):
        take.call({"x": "3"})  # type: ignore[arg-type]


def doubled(function: Any) -> Any:
    """A decorator as people write them."""

    @functools.wraps(function)
    def twice(*args: Any, **kwargs: Any) -> Any:
        return [function(*args, **kwargs), function(*args, **kwargs)]

    return twice


class Methods:
    def bound(self, a: int) -> int:
        return a + 1

    def __call__(self, a: int) -> int:
        return a + 2


def test_other_callables(app: Fencepost) -> None:
    bound = app.job(Methods().bound)
    called = app.job(name="called")(Methods())
    part = app.job(name="part")(functools.partial(Methods().bound))
    small = app.job(name="small")(lambda a: a)
    wrapped = app.job(doubled(late_free))
    assert [run(job, '{"a": 1}') for job in (bound, called, part, small, wrapped)] == [2, 3, 2, 1, [None, None]]
    assert bound.name == "bound"
    assert small.call("anything").payload == b'{"a":"anything"}'
    assert wrapped.name == "late_free"
    with pytest.raises(InvalidJob, match="a: must be a whole number"):
        wrapped.call("x")


async def test_async_callables(app: Fencepost) -> None:
    class Async:
        async def __call__(self, a: int) -> int:
            return a

    async def plain(a: int) -> int:
        return a

    for job in (app.job(name="object")(Async()), app.job(name="part")(functools.partial(plain, 7)), app.job(plain)):
        assert job.job_type.kind is Kind.ASYNC
    assert await run(app.job(name="again")(plain), '{"a": 1}') == 1


def _nested() -> Any:
    def inner(a: int) -> None: ...

    return inner


def generator(a: int):  # type: ignore[no-untyped-def]
    yield a


async def asynchronous(a: int) -> None: ...


def by_position(a: int, /) -> None: ...


def star(*a: int) -> None: ...


def late(a: int, context: Context) -> None: ...


def two(one: Context, *, other: Context) -> None: ...


def hidden(context: OnlyForCheckers) -> None: ...


def strange(pool: Methods) -> None: ...


def mixed(both: int | Methods) -> None: ...


def whole(a: Payload[int], b: int) -> None: ...


def needing(a: int, *, pool: Any = resource()) -> None: ...


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (generator, {}, "is a generator, which would never run; use return, not yield"),
    (by_position, {}, "parameter a can only be passed by position"),
    (star, {}, r"parameter \*a can't be given by name"),
    (late, {}, "parameter context is the Context, which goes first, or after a"),
    (two, {}, "parameter other is a second Context"),
    (hidden, {}, "OnlyForCheckers, can't be found at run time .* import it outside of `if TYPE_CHECKING:`"),
    (strange, {}, "parameter pool is a Methods, which can't be read from JSON; use a dataclass"),
    (mixed, {}, "parameter both can't be read from JSON"),
    (whole, {}, "parameter a takes the whole payload, so there can be no other"),
    (lambda a: a, {}, "has no name of its own; give it one with name="),
    (functools.partial(late), {}, "has no name of its own; give it one with name="),
    (Methods, {}, "Methods is not a function"),
    (Methods.bound, {}, "parameter self is a method's"),
    (staticmethod(late), {}, "goes below @staticmethod"),
    ("send_email", {}, r'@app.job\(name="send_email"\)'),
    (3, {}, "is not a function"),
    (asynchronous, {"process": True}, "is async; process=True is for plain functions"),
    (_nested(), {"process": True}, "can't be imported by a child process"),
    (needing, {"process": True}, "takes the resource pool"),
    (asynchronous, {"name": "no spaces"}, "can't name a job type"),
    (asynchronous, {"queue": "no spaces"}, "queue: must be 1 to 100"),
    (asynchronous, {"priority": 101}, "priority: must be a whole number from 0 to 100, not 101"),
    (asynchronous, {"max_attempts": 0}, "max_attempts: must be a whole number from 1 to 100, not 0"),
    (asynchronous, {"timeout": 0}, "timeout: must be from 1ms to 24h, not 0s"),
    (asynchronous, {"timeout": float("nan")}, "timeout: must be seconds or a timedelta"),
    (asynchronous, {"timeout": "30s"}, "timeout: must be seconds or a timedelta"),
    (asynchronous, {"expires": -1}, "expires: must be from 1ms to ten years, not -1s"),
    (asynchronous, {"backoff": 3}, r"backoff must be Exponential\(…\), Linear\(…\), Constant\(…\) or a function"),
    (asynchronous, {"retry_on": (3,)}, "retry_on must be exception classes, not 3"),
    (asynchronous, {"permanent_on": int}, "permanent_on must be exception classes"),
    (asynchronous, {"unique": "a"}, "unique: must be a Unique or a UniqueBy"),
    (asynchronous, {"unique": UniqueBy("b")}, "unique: is by 'b', which is none of its parameters: a"),
    (asynchronous, {"nam": "x"}, "app.job: .*nam.*; it takes name, queue, priority"),
]


@pytest.mark.parametrize(("function", "options", "words"), REFUSED)
def test_what_cant_work_is_refused_where_it_is_declared(
    app: Fencepost, function: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidSettings, match=words):
        app.job(**options)(function) if options else app.job(function)
    assert not app.types


def test_a_name_is_taken_once_and_both_places_are_named(app: Fencepost) -> None:
    app.job(asynchronous)
    with pytest.raises(InvalidSettings) as caught:
        app.job(name="asynchronous")(late_free)
    assert "test_signature.asynchronous (test_signature.py:" in str(caught.value)
    assert "test_signature.late_free (test_signature.py:" in str(caught.value)


def late_free(a: int) -> None: ...


async def test_a_job_may_be_declared_again(app: Fencepost) -> None:
    first = app.job(asynchronous)
    second = app.job(name="second", queue="slow")(first)
    third = Fencepost("postgresql://nowhere/none").job(first)
    assert [job.job_type.kind for job in (first, second, third)] == [Kind.ASYNC] * 3
    assert (second.name, second.__name__, second.function) == ("second", "asynchronous", asynchronous)
    assert await run(second, '{"a": 1}') is None


def test_a_process_job_is_importable(app: Fencepost) -> None:
    job = app.job(process=True)(late_free)
    assert job.job_type.path == "tests.library.test_signature:late_free"
    assert job.job_type.kind is Kind.PROCESS


def test_retry_on_without_a_backoff_keeps_the_settings_own(app: Fencepost) -> None:
    job = app.job(permanent_on=KeyError)(late_free)
    assert job.job_type.policy is not None
    assert job.job_type.policy.is_final(KeyError())
    assert not job.job_type.policy.is_final(ValueError())
    assert job.job_type.policy.is_final(Permanent())


@given(st.integers(0, 3), st.integers(0, 3), st.booleans(), st.integers(0, 3), st.booleans(), st.integers(0, 3))
def test_parameters_are_those_that_inspect_finds(
    only: int, plain: int, star: bool, named: int, rest: bool, defaults: int
) -> None:
    names = [f"p{number}" for number in range(only + plain)]
    text = [name + (" = 1" if len(names) - place <= defaults else ": int") for place, name in enumerate(names)]
    if only:
        text.insert(only, "/")
    text += ["*args"] if star else ["*"] * bool(named)
    text += [f"n{number}" + (" = 2" if number % 2 else "") for number in range(named)]
    text += ["**kwargs: str"] * rest
    scope: dict[str, Any] = {}
    exec(f"def function({', '.join(text)}):\n    local = 1", scope)
    expected = inspect.signature(scope["function"]).parameters.values()
    found = parameters_of(scope["function"])
    assert [(one.name, one.kind) for one in found] == [(one.name, int(one.kind)) for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert (one.default == other.default) or (other.default is other.empty and one.default not in (1, 2))
        assert one.is_annotated == (other.annotation is not other.empty)
