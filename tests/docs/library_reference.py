"""
Make the reference of the library out of its signatures and docstrings.

    FENCEPOST_UPDATE_DOCS=1 python -m pytest tests/docs -k library_reference

writes docs/reference/library.md anew; without the variable the test compares. What is public
is what `__all__` of the modules below says; a member is public when its name has no underscore
in front and it has a docstring, which everything public has.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import griffe

MODULES = ("fencepost", "fencepost.testing")
HEAD = """# The library

What a program imports, made from the docstrings. The how-to pages show it at work:
[declaring jobs](../how-to/declare.md), [transactions](../how-to/transactions.md),
[resources and middleware](../how-to/resources-and-middleware.md), [testing](../how-to/testing.md).
"""

Documented = griffe.Class | griffe.Function | griffe.Attribute | griffe.TypeAlias


def render() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(line for name in MODULES for line in _module(name))]).rstrip() + "\n"


def _module(name: str) -> Iterator[str]:
    module = griffe.load(name, search_paths=["src"], resolve_aliases=True)
    assert isinstance(module, griffe.Module)
    assert module.exports is not None, f"{name} has no __all__"
    yield f"## `{name}`\n"
    yield _text(module)
    for exported in sorted(map(str, module.exports), key=lambda word: (word.islower(), word.lower())):
        member = module.members[exported]
        yield from _member(member.final_target if isinstance(member, griffe.Alias) else member, exported, level=3)


def _member(member: griffe.Object | griffe.Alias, name: str, *, level: int) -> Iterator[str]:
    if isinstance(member, griffe.Alias):
        member = member.final_target
    if name.startswith("__"):
        return
    yield f"{'#' * level} {name}\n"
    if isinstance(member, griffe.Class):
        yield from _class(member, name, level)
    elif isinstance(member, griffe.Function):
        yield from _function(member)
    else:
        yield _text(member)


def _class(kind: griffe.Class, name: str, level: int) -> Iterator[str]:
    init = kind.members.get("__init__")
    if isinstance(init, griffe.Function) and init.docstring is not None:
        yield _code(f"{name}{_parameters(init)}")
    yield _text(kind)
    for inherited in [*reversed(kind.mro()), kind] if _extends_ours(kind) else [kind]:
        if not str(inherited.path).startswith("fencepost."):
            continue
        yield from _attributes(inherited)
        for member_name, member in inherited.members.items():
            if isinstance(member, griffe.Function) and not member_name.startswith("_") and member.docstring is not None:
                yield f"{'#' * (level + 1)} {name}.{member_name}\n"
                yield from _function(member)


def _extends_ours(kind: griffe.Class) -> bool:
    return not kind.path.startswith("fencepost.errors.")


def _attributes(kind: griffe.Class) -> Iterator[str]:
    rows = [
        (name, member)
        for name, member in kind.members.items()
        if isinstance(member, griffe.Attribute)
        and not name.startswith("_")
        and (member.annotation is not None or member.docstring is not None)
    ]
    if not rows:
        return
    yield "| attribute | type | |\n|---|---|---|"
    for name, attribute in rows:
        type_of = "" if attribute.annotation is None else f"`{attribute.annotation}`"
        # A property has no value, and a factory's says nothing to a reader.
        if attribute.value is not None and "property" not in attribute.labels and "field(" not in str(attribute.value):
            type_of += f" = `{attribute.value}`"
        text = " ".join(_text(attribute).split())
        yield f"| `{name}` | {type_of} | {text} |".replace("|  |", "| |").replace(" | None", " \\| None")
    yield ""


def _function(function: griffe.Function) -> Iterator[str]:
    overloads = (
        function.parent.overloads.get(function.name) if isinstance(function.parent, griffe.Class) else None
    ) or [function]
    for one in overloads:
        prefix = "async " if "async" in one.labels else ""
        returns = "" if one.returns is None else f" -> {one.returns}"
        yield _code(f"{prefix}{one.name}{_parameters(one)}{returns}")
    yield _text(function)


def _parameters(function: griffe.Function) -> str:
    """The parameters as they are written, a line each when they are many."""
    parts: list[str] = []
    star = False
    for parameter in function.parameters:
        if parameter.name in ("self", "cls") and not parts:
            continue
        if parameter.kind is griffe.ParameterKind.keyword_only and not star:
            parts.append("*")
            star = True
        mark = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(
            parameter.kind or griffe.ParameterKind.positional_or_keyword, ""
        )
        star = star or mark == "*"
        annotation = "" if parameter.annotation is None else f": {parameter.annotation}"
        default = "" if mark or parameter.default is None else f"{' = ' if annotation else '='}{parameter.default}"
        parts.append(f"{mark}{parameter.name}{annotation}{default}")
    line = ", ".join(parts)
    return f"({line})" if len(line) < 90 else "(\n    " + ",\n    ".join(parts) + ",\n)"


def _code(text: str) -> str:
    return f"```text\n{text}\n```\n"


def _text(thing: griffe.Object) -> str:
    return "" if thing.docstring is None else inspect.cleandoc(thing.docstring.value) + "\n"
