"""The types of a function's parameters, found also where they are written as text."""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Callable, Collection
from typing import Any

from fencepost.domain.context import Context
from fencepost.errors import InvalidSettings
from fencepost.types.functions import unwrapped


def resolve(
    function: Callable[..., Any], parameters: Collection[str], *, lenient: Collection[str], where: str
) -> dict[str, Any]:
    """
    The annotations of *function* as types, and `return`: left out when it can't be found, as *lenient* ones are.

    Raises InvalidSettings naming a parameter whose type exists only for type checkers.
    """
    plain = unwrapped(function)
    if not isinstance(plain, types.FunctionType):
        plain = unwrapped(type(plain).__call__)
    scope = getattr(plain, "__globals__", {})
    hints: dict[str, Any] = {}
    for name, written in _written(plain).items():
        if name not in parameters and name != "return":
            continue
        try:
            hints[name] = _evaluate(written, scope)
        except Exception as error:
            if name == "return" or name in lenient:
                continue
            raise InvalidSettings(
                f"{where}: the type of the parameter {name}, {_shown(written)}, can't be found at run time ({error}); "
                "import it outside of `if TYPE_CHECKING:`, since payloads are read by it"
            ) from error
    return hints


def is_context(kind: Any) -> bool:
    """Whether a parameter of this type is the attempt's context."""
    if kind is Context:
        return True
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return union and Context in typing.get_args(kind)


def _written(function: Any) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        import annotationlib

        return dict(annotationlib.get_annotations(function, format=annotationlib.Format.FORWARDREF))
    return dict(getattr(function, "__annotations__", {}))


def _evaluate(written: Any, scope: dict[str, Any]) -> Any:
    holder = types.SimpleNamespace(__annotations__={"it": written})
    try:
        return typing.get_type_hints(holder, scope, include_extras=True)["it"]
    except NameError:
        # A class of the function in which this one is being declared.
        return typing.get_type_hints(holder, scope, _locals_of_declaration(), include_extras=True)["it"]


def _locals_of_declaration() -> dict[str, Any]:
    """The local names where a function is declared: of the innermost caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "fencepost":
        frame = frame.f_back
    return dict(frame.f_locals)


def _shown(written: Any) -> str:
    return written if isinstance(written, str) else repr(written)
