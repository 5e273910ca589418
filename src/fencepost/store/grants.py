"""
What a role is granted, by what it is for.

A purpose is a list of grants; a role may have several purposes. Granting sets a role to
exactly what its purposes need: whatever else it has in our schema is taken away, in the
same transaction. Roles themselves are made by whoever runs the server. The lists are
held to the statements by tests: enough for each, and none too many.
"""

from __future__ import annotations

import enum
from collections.abc import Collection

import msgspec

from fencepost.errors import InvalidSettings, PrivilegeMissing
from fencepost.store import migrate, steps
from fencepost.store.database import Database
from fencepost.store.statements import quote_schema


class Purpose(enum.StrEnum):
    """What a role is for."""

    PRODUCER = "producer"
    """Enqueues, through functions. Touches no table: reads no job, and can't say how one ends."""
    WORKER = "worker"
    """Runs jobs, and serves the HTTP API. Owns nothing and makes nothing but through functions."""
    READER = "reader"
    """Looks: jobs with their payloads and results, queues, `fencepost doctor`. Writes nothing."""


class Grant(msgspec.Struct, frozen=True):
    """Some privileges on one object."""

    kind: str
    """schema, table or function."""
    name: str
    """A function with the types of its arguments."""
    privileges: tuple[str, ...]

    def sql(self, role: str, schema: str) -> str:
        """The statement that grants it."""
        return f"grant {', '.join(self.privileges)} on {self.place(schema)} to {quote_role(role)}"

    def place(self, schema: str) -> str:
        """What it is about, as GRANT and REVOKE name it."""
        quoted = quote_schema(schema)
        return f"schema {quoted}" if self.kind == "schema" else f"{self.kind} {quoted}.{self.name}"


_USAGE = Grant("schema", "", ("usage",))
_ENQUEUE_JOBS = Grant("function", "enqueue_jobs(jsonb, boolean, boolean)", ("execute",))
_ENQUEUE = Grant(
    "function",
    "enqueue(text, jsonb, text, integer, integer, timestamptz, interval, interval, interval, text, text, text, "
    "interval, text, text[], jsonb)",
    ("execute",),
)


def _tables(**privileges: str) -> tuple[Grant, ...]:
    return tuple(Grant("table", name, tuple(words.split())) for name, words in privileges.items())


def _functions(*signatures: str) -> tuple[Grant, ...]:
    return tuple(Grant("function", signature, ("execute",)) for signature in signatures)


GRANTS: dict[Purpose, tuple[Grant, ...]] = {
    Purpose.PRODUCER: (_USAGE, *_tables(schema_version="select"), _ENQUEUE, _ENQUEUE_JOBS),
    Purpose.WORKER: (
        _USAGE,
        *_tables(
            attempts="select insert delete",
            finished="select insert update delete",
            idempotency_keys="select update delete",
            job_types="select insert update delete",
            jobs="select insert delete",
            jobs_default="select",
            lanes="select insert",
            leases="select insert update delete",
            partitions="select update",
            pending="select insert update delete",
            queues="select insert update",
            schema_version="select",
            survivors="select insert delete",
            unique_keys="select insert update delete",
            workers="select insert update delete",
        ),
        _ENQUEUE_JOBS,
        *_functions(
            "complete(jsonb)",
            "drop_range(timestamptz, integer, bigint)",
            "ensure_partitions(interval, integer)",
            "first_id_at(timestamptz)",
            "is_expired(text, timestamptz, jsonb)",
            "retention_turn()",
            "watch_range(timestamptz)",
        ),
    ),
    Purpose.READER: (
        _USAGE,
        *_tables(
            attempts="select",
            finished="select",
            idempotency_keys="select",
            job_types="select",
            jobs="select",
            jobs_default="select",
            lanes="select",
            leases="select",
            partitions="select",
            pending="select",
            queues="select",
            schema_version="select",
            workers="select",
        ),
        *_functions("first_id_at(timestamptz)", "is_expired(text, timestamptz, jsonb)"),
    ),
}


def quote_role(role: str) -> str:
    """Quote a role's name for SQL text. Raises InvalidSettings for one that can't be."""
    if not role or "\x00" in role or len(role.encode()) > 63:
        raise InvalidSettings(f"ROLE must be a role's name of 1 to 63 bytes, not {role[:70]!r}")
    return '"' + role.replace('"', '""') + '"'


def grants_of(purposes: Collection[Purpose]) -> list[Grant]:
    """What roles for all of *purposes* need, each object once."""
    merged: dict[tuple[str, str], Grant] = {}
    for purpose in Purpose:
        for grant in GRANTS[purpose] if purpose in purposes else ():
            known = merged.get((grant.kind, grant.name))
            words = dict.fromkeys((known.privileges if known else ()) + grant.privileges)
            merged[grant.kind, grant.name] = Grant(grant.kind, grant.name, tuple(words))
    return list(merged.values())


def statements(role: str, purposes: Collection[Purpose], schema: str) -> list[str]:
    """What sets *role* to exactly *purposes*; none of them takes everything away. For one transaction."""
    quoted, name = quote_schema(schema), quote_role(role)
    return [
        # Two at once would be in each other's way.
        steps.locking(schema),
        f"revoke all on all tables in schema {quoted} from {name}",
        f"revoke all on all sequences in schema {quoted} from {name}",
        f"revoke all on all functions in schema {quoted} from {name}",
        f"revoke all on schema {quoted} from {name}",
        *(grant.sql(role, schema) for grant in grants_of(purposes)),
    ]


async def apply(database: Database, role: str, purposes: Collection[Purpose]) -> list[str]:
    """
    Set *role* to exactly *purposes* in our schema, in one transaction. Safe to repeat.

    Returns what it may do with tables of ours all the same, through PUBLIC, another role or default privileges:
    nothing, where it is as it should be.

    Raises SchemaMismatch when a step is missing, InvalidSettings for a role that there isn't or that needs no
    grants, and PrivilegeMissing when we are not the owner.
    """
    await migrate.require_current(database)
    async with database.transaction() as transaction:
        [state] = await transaction.fetch("grantee", role=role, schema=database.schema)
        if state["role_exists"] is False:
            raise InvalidSettings(
                f"there is no role {role!r}; have it made first: create role {quote_role(role)} login password '…'"
            )
        if not state["we_own"]:
            raise PrivilegeMissing(
                f"the schema {database.schema!r} belongs to {state['owner']!r}, and only that role may grant; "
                f"this one is {state['ours']!r}"
            )
        if state["needs_none"]:
            raise InvalidSettings(
                f"the role {role!r} is a superuser, or owns the schema or is a member of its owner: it may do "
                "everything already, and a grant would change nothing; use another role"
            )
    # Text of several statements is one transaction.
    await database.execute(";\n".join(statements(role, purposes, database.schema)))
    meant = {(grant.name, word) for grant in grants_of(purposes) for word in grant.privileges}
    rows = await database.fetch("grantee_excess", role=role, schema=database.schema)
    return [f"{row['word']} on {row['name']}" for row in rows if (row["name"], row["word"]) not in meant]
