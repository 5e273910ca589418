"""
What a function's code says of it.

As `inspect` says it, which is only imported for what isn't a plain function: it takes as
long as the rest of what a script needs that enqueues one job.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import msgspec

EMPTY: Any = object()
"""No default, or no annotation."""

POSITIONAL_ONLY, POSITIONAL_OR_KEYWORD, VAR_POSITIONAL, KEYWORD_ONLY, VAR_KEYWORD = range(5)
"""The kinds of parameters, in the order and with the numbers of `inspect`."""

_VARARGS, _VARKEYWORDS, _GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x04, 0x08, 0x20, 0x80, 0x200


class Parameter(msgspec.Struct, frozen=True):
    """One parameter of a function."""

    name: str
    kind: int
    default: Any = EMPTY
    is_annotated: bool = False


def parameters_of(function: Callable[..., Any]) -> list[Parameter]:
    """The parameters of *function*, in order; without `self` for a bound method."""
    if type(function) is FunctionType and not function.__dict__.keys() & {"__wrapped__", "__signature__"}:
        return _of_code(function)
    import inspect

    return [
        Parameter(
            one.name,
            int(one.kind),
            EMPTY if one.default is one.empty else one.default,
            one.annotation is not one.empty,
        )
        for one in inspect.signature(function).parameters.values()
    ]


def _of_code(function: FunctionType) -> list[Parameter]:
    code = function.__code__
    by_position, by_name = code.co_argcount, code.co_kwonlyargcount
    names = list(code.co_varnames)
    defaults = dict(zip(names[:by_position][::-1], (function.__defaults__ or ())[::-1], strict=False))
    defaults |= function.__kwdefaults__ or {}
    kinds = [
        POSITIONAL_ONLY if place < code.co_posonlyargcount else POSITIONAL_OR_KEYWORD for place in range(by_position)
    ]
    kinds += [KEYWORD_ONLY] * by_name
    found = list(zip(names, kinds, strict=False))
    rest = names[by_position + by_name :]
    if code.co_flags & _VARARGS:
        found.insert(by_position, (rest.pop(0), VAR_POSITIONAL))
    if code.co_flags & _VARKEYWORDS:
        found.append((rest.pop(0), VAR_KEYWORD))
    annotated = _annotated(function)
    return [Parameter(name, kind, defaults.get(name, EMPTY), name in annotated) for name, kind in found]


def _annotated(function: FunctionType) -> Any:
    try:
        return function.__annotations__
    except NameError:
        # Python 3.14 evaluates them now, and one names what only type checkers import; that is told elsewhere.
        return dict.fromkeys(function.__code__.co_varnames)


def code_of(function: Any) -> Any:
    """The code that runs when *function*, a partial or an object with `__call__` is called; None for what has none."""
    found = inner(function)
    if isinstance(found, MethodType):
        found = found.__func__
    if not isinstance(found, FunctionType):
        found = type(found).__call__
    return getattr(found, "__code__", None)


def inner(function: Any) -> Any:
    """What a partial is of; anything else is itself."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def unwrapped(function: Any) -> Any:
    """The function as it was written, below the wrappers that say what they wrap."""
    found = inner(function)
    if isinstance(found, MethodType):
        found = found.__func__
    seen: set[int] = set()
    while hasattr(found, "__wrapped__") and id(found) not in seen:
        seen.add(id(found))
        found = found.__wrapped__
    return found


def is_async(function: Any) -> bool:
    """Whether calling *function* makes a coroutine."""
    code = code_of(function)
    if code is not None and code.co_flags & _COROUTINE:
        return True
    # Marked as such by its maker.
    return getattr(inner(function), "_is_coroutine_mark", None) is not None


def is_generator(function: Any) -> bool:
    """Whether calling *function* makes a generator, of either kind."""
    code = code_of(function)
    return code is not None and bool(code.co_flags & (_GENERATOR | _ASYNC_GENERATOR))
