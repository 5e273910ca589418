"""
The SQL files, as the driver wants them.

A file is written to be read and run in psql: objects are qualified with `fencepost.`,
parameters are `:named`. Two rewrites make it a statement: that qualifier becomes the
schema's real name, and each parameter becomes `$n`.

`fencepost.` means the schema wherever it stands outside a comment. A test holds the
files to that, so the rewrite can't hit anything else.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

import msgspec

from fencepost.errors import InvalidSettings

SCHEMA_BYTES = 50
"""Longest schema name: the notification channel carries it, and PostgreSQL cuts channels at 63 bytes."""

_COMMENT = re.compile(r"--[^\n]*")
_QUALIFIER = re.compile(r"\bfencepost\.")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


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
    if not schema or any(mark in schema for mark in "\x00'%$") or len(schema.encode()) > SCHEMA_BYTES:
        raise InvalidSettings(
            f"SCHEMA must be a name of 1 to {SCHEMA_BYTES} bytes, without any of ' % $, not {schema[:60]!r}"
        )
    return '"' + schema.replace('"', '""') + '"'


def qualify(sql: str, schema: str) -> str:
    """Write the schema's real name wherever *sql* says `fencepost.`."""
    quoted = quote_schema(schema)
    return _QUALIFIER.sub(lambda _: f"{quoted}.", sql)


@cache
def load(name: str, schema: str) -> Statement:
    """Read `sql/<name>.sql` for *schema*."""
    source = files("fencepost.store").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
    parameters: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in parameters:
            parameters.append(match[1])
        return f"${parameters.index(match[1]) + 1}"

    text = _PARAMETER.sub(number, _COMMENT.sub("", source))
    return Statement(name=name, text=qualify(text, schema).strip(), parameters=tuple(parameters))
