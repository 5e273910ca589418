"""A declared job in the hands of tools: help, inspect, copy, pickle."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
import typing

import pytest

from fencepost import Context, Fencepost

app = Fencepost("postgresql://nowhere/none")


@app.job
async def greet(name: str, *, shout: bool = False) -> str:
    """Greet somebody."""
    return name.upper() if shout else name


@app.job(name="other-name")
def count(context: Context, n: int) -> int:
    return n


def test_it_looks_like_its_function() -> None:
    assert (greet.__name__, greet.__qualname__, greet.__module__) == ("greet", "greet", __name__)
    assert (greet.__doc__, greet.__wrapped__) == ("Greet somebody.", greet.function)
    assert (count.name, count.__name__, count.__doc__) == ("other-name", "count", None)
    assert str(inspect.signature(greet)) == "(name: 'str', *, shout: 'bool' = False) -> 'str'"
    assert list(inspect.signature(count).parameters) == ["context", "n"]
    assert typing.get_type_hints(greet) == {"name": str, "shout": bool, "return": str}
    assert inspect.unwrap(greet) is greet.function
    assert inspect.iscoroutinefunction(greet.function)
    assert not inspect.iscoroutinefunction(count.function)
    assert "Greet somebody." in inspect.getsource(greet)
    said = pydoc.render_doc(greet, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    assert "<job 'greet'>" in said
    assert "Greet somebody." in said
    # With other options it still is the same function.
    assert inspect.signature(greet.options(delay=1)) == inspect.signature(greet)


def test_it_is_copied_and_pickled_as_a_function_is() -> None:
    assert copy.copy(greet) is copy.deepcopy(greet) is greet
    changed = greet.options(delay=1)
    assert copy.deepcopy([changed])[0] is changed
    assert changed is not greet
    for job in (greet, count):
        assert pickle.loads(pickle.dumps(job)) is job


def test_what_a_name_does_not_lead_to_is_not_pickled() -> None:
    @app.job
    def local() -> None: ...

    for job in (local, greet.options(delay=1)):
        with pytest.raises(pickle.PicklingError, match=r"<job '\w+'> can't be pickled: .*declare it in a module"):
            pickle.dumps(job)
