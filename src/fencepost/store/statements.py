"""
The SQL files, as the driver wants them.

A file is written to be read and run in psql: objects are qualified with `fencepost.`,
parameters are `:named`. Two rewrites make it a statement: that qualifier becomes the
schema's real name, and each parameter becomes `$n`.

A file whose head says `-- fuse settle claim` is those two statements put together,
with its own select to tell the first one's answer; each file still says one thing.

`fencepost.` means the schema wherever it stands outside a comment. A test holds the
files to that, so the rewrite can't hit anything else.
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Any

import msgspec

from fencepost.errors import InvalidSettings

SCHEMA_BYTES = 50
"""Longest schema name: the notification channel carries it, and PostgreSQL cuts channels at 63 bytes."""

_NOT_A_NAME = re.compile("[\x00'%$:\ud800-\udfff]")
_COMMENT = re.compile(r"--[^\n]*")
_QUALIFIER = re.compile(r"\bfencepost\.")
_FUSE = re.compile(r"^-- fuse (\w+) (\w+)$", re.M)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
# Every module has one; the type checker doesn't know of it.
_loader: Any = __loader__  # type: ignore[name-defined]


class Statement(msgspec.Struct, frozen=True):
    """One SQL file, ready for the driver."""

    name: str
    text: str
    parameters: tuple[str, ...]
    """Their names, in the order of `$1`, `$2`, …"""

    def arguments(self, values: dict[str, object]) -> list[object]:
        """Put named *values* in the statement's order. Raises KeyError for one that is missing."""
        if len(values) != len(self.parameters):
            raise TypeError(f"{self.name} takes {self.parameters}, not {tuple(values)}")
        return [values[name] for name in self.parameters]


def quote_schema(schema: str) -> str:
    """
    Quote a schema's name for SQL text.

    Raises InvalidSettings for one that PostgreSQL would refuse or cut, or that would not stay a name inside a
    migration's literals.
    """
    if not schema or _NOT_A_NAME.search(schema) or len(schema.encode()) > SCHEMA_BYTES:
        raise InvalidSettings(
            f"SCHEMA must be a name of 1 to {SCHEMA_BYTES} bytes, without any of ' % $ :, not {schema[:60]!r}"
        )
    return '"' + schema.replace('"', '""') + '"'


def qualify(sql: str, schema: str) -> str:
    """Write the schema's real name wherever *sql* says `fencepost.`."""
    quoted = quote_schema(schema)
    return _QUALIFIER.sub(lambda _: f"{quoted}.", sql)


@cache
def load(name: str, schema: str) -> Statement:
    """Read `sql/<name>.sql` for *schema*."""
    source = _read(name)
    fused = _FUSE.search(source)
    if fused:
        source = _fuse(_read(fused[1]), _read(fused[2]), source)
    parameters: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in parameters:
            parameters.append(match[1])
        return f"${parameters.index(match[1]) + 1}"

    text = _PARAMETER.sub(number, _COMMENT.sub("", source))
    return Statement(name=name, text=qualify(text, schema).strip(), parameters=tuple(parameters))


@cache
def text(name: str, schema: str) -> str:
    """`sql/<name>.sql` for *schema* with its `:parameters` left as they are, for other drivers."""
    return qualify(_COMMENT.sub("", _read(name)), schema).strip()


def _read(name: str) -> str:
    # By the loader itself, also out of a zip file: importlib.resources takes a fifth of the time that a script
    # which enqueues one job may take to start.
    raw: bytes = _loader.get_data(os.path.join(os.path.dirname(__file__), "sql", f"{name}.sql"))
    return raw.decode()


def _fuse(first: str, second: str, answer: str) -> str:
    """
    Make one statement of two, the first one's answer being the relation `settled` to the select in *answer*.

    Both are `with` statements whose names differ, and whose own select is the first that isn't indented.
    """
    (first_parts, first_select), (second_parts, second_select) = (
        _COMMENT.sub("", text).strip().split("\nselect", 1) for text in (first, second)
    )
    return (
        f"{first_parts},\nsettled as materialized (\nselect{first_select}\n),\n"
        f"{second_parts.removeprefix('with ')}\nselect{second_select}\nunion all\n{_COMMENT.sub('', answer).strip()}\n"
    )
