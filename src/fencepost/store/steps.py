"""
The steps that a schema is made of: those this version ships, as text, and those a database says it has.

They are `migrations/NNNN_name.sql`, forward only. A step whose first line is `-- breaking` can't
be worked with by older code: older code that finds such a step refuses to start.
"""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from typing import Any

import msgspec

from fencepost.errors import SchemaMismatch
from fencepost.store.statements import qualify, quote_schema

_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
VERSION_TABLE = """
create table if not exists fencepost.schema_version (
    number int primary key,
    name text not null,
    checksum text not null,
    breaking bool not null,
    applied_at timestamptz not null default clock_timestamp()
)
"""
"""Makes the table of the steps that were applied."""


class Step(msgspec.Struct, frozen=True):
    """One migration."""

    number: int
    name: str
    source: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the file as it was published."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def breaking(self) -> bool:
        """Whether older code must not run beside it."""
        return self.source.startswith("-- breaking")


APPLIED = "select number, name, checksum, breaking, applied_at from fencepost.schema_version order by 1"
"""Reads what an `Applied` is made of."""


class Applied(msgspec.Struct, frozen=True):
    """A step as the database recorded it."""

    number: int
    name: str
    checksum: str
    breaking: bool
    applied_at: Any


def steps() -> list[Step]:
    """Every step this version knows, in order."""
    found = []
    for file in files("fencepost.store").joinpath("migrations").iterdir():
        match = _NAME.fullmatch(file.name)
        if match:
            found.append(Step(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    return sorted(found, key=lambda step: step.number)


def script(schema: str) -> str:
    """All steps as one SQL text, for people whose migrations run elsewhere. Needs no connection."""
    parts = [
        f"create schema if not exists {quote_schema(schema)};",
        qualify(VERSION_TABLE, schema).strip() + ";",
    ]
    for step in steps():
        parts.append("begin;\n{};\n{};\ncommit;".format(*(text.rstrip(";") for text in statements(step, schema))))
    return "\n\n".join(parts) + "\n"


def opening(schema: str) -> list[str]:
    """
    What must come first in a transaction that isn't ours: the lock, the schema, and the table of its steps.

    With `statements` it is all that another migration tool needs. Whoever holds the lock is the only one
    who changes the schema, until the transaction ends.
    """
    return [
        locking(schema),
        # Where it exists, a role that may not create schemas can go on.
        f"do $$ begin if not exists (select from pg_namespace where nspname = '{schema}') then "
        f"create schema {quote_schema(schema)}; end if; end $$",
        qualify(VERSION_TABLE, schema).strip(),
    ]


def statements(step: Step, schema: str) -> list[str]:
    """What applies *step*, and what records that; the first may hold many statements."""
    return [qualify(step.source, schema).strip(), recording(step, schema)]


def locking(schema: str) -> str:
    """The statement that waits until nobody else changes this schema; for a transaction."""
    name = schema.replace("'", "''")
    return f"select pg_advisory_xact_lock(hashtextextended('fencepost migrations {name}', 0))"


def recording(step: Step, schema: str) -> str:
    """The statement that records that *step* was applied."""
    return qualify(
        "insert into fencepost.schema_version (number, name, checksum, breaking) "
        f"values ({step.number}, '{step.name}', '{step.checksum}', {str(step.breaking).lower()})",
        schema,
    )


def check(known: list[Step], found: list[Applied]) -> None:
    """Raise SchemaMismatch when the database's steps aren't ones this code can work with."""
    by_number = {step.number: step for step in known}
    for step in found:
        ours = by_number.get(step.number)
        if ours is None and step.breaking:
            raise SchemaMismatch(
                f"the database has step {step.number} ({step.name}), which this version of fencepost doesn't know and "
                "can't work beside; upgrade this process"
            )
        if ours is not None and ours.checksum != step.checksum:
            raise SchemaMismatch(
                f"step {step.number} ({step.name}) in the database isn't the one this version ships (its checksum "
                "differs); it was changed after it was applied, so compare the schemas before going on"
            )


def missing(known: list[Step], found: list[Applied]) -> list[Step]:
    """What is to be applied. Raises SchemaMismatch."""
    check(known, found)
    present = {step.number for step in found}
    return [step for step in known if step.number not in present]
