"""
What this role is for, by what it may do; and what it lacks of that.

`fencepost grant` sets a role to exactly what it is told, so a remedy that left out one of
the role's purposes would take that away. What a role is for is told from what each purpose
has and the others haven't; what can't be told is said to be so.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable

import msgspec

from fencepost.store.doctor.findings import Finding, error, named
from fencepost.store.doctor.patient import Patient
from fencepost.store.grants import GRANTS, Grant, Purpose

Privilege = tuple[str, str, str]
"""Kind and name of an object, and the word for what may be done with it."""


def _of(*purposes: Purpose) -> dict[Privilege, None]:
    """What *purposes* need, in the order of their lists."""
    grants = (grant for purpose in purposes for grant in GRANTS[purpose])
    return {(grant.kind, grant.name, word): None for grant in grants for word in grant.privileges}


_WORKING = {
    ("table", name, word) for name in ("pending", "leases", "finished") for word in ("insert", "update", "delete")
}
"""What nobody is granted who doesn't work."""
_BY_HAND = {
    ("table", grant.name, word): None
    for grant in GRANTS[Purpose.WORKER]
    if grant.kind == "table"
    for word in ("select", "insert", "update", "delete")
}
"""What a role may have been granted on tables of ours, for whatever purpose."""
_ALL = list(_of(*Purpose) | _BY_HAND)


class Holding(msgspec.Struct, frozen=True):
    """What a role has."""

    role: str
    held: frozenset[Privilege]
    own: frozenset[Privilege]
    """Of these, what not everybody has."""

    def purposes(self) -> list[Purpose]:
        """What it is meant for: where it has most of what a purpose has and no other. Empty when that can't be told."""
        found = set()
        if self.own & _WORKING or self._has_most(_of(Purpose.WORKER).keys() - _of(Purpose.PRODUCER, Purpose.READER)):
            found.add(Purpose.WORKER)
        elif self._has_most(_of(Purpose.READER).keys() - _of(Purpose.PRODUCER)):
            found.add(Purpose.READER)
        # One of these is on the worker's list too.
        others = Purpose.WORKER if Purpose.WORKER in found else Purpose.READER
        if self.own & (_of(Purpose.PRODUCER).keys() - _of(others)):
            found.add(Purpose.PRODUCER)
        return [purpose for purpose in Purpose if purpose in found]

    def _has_most(self, privileges: Collection[Privilege]) -> bool:
        # The rest came with a later version, or was taken away. Less than that was granted by hand, for something else.
        return 2 * len(self.own.intersection(privileges)) >= len(privileges)

    def lacking(self, purposes: Iterable[Purpose]) -> list[Privilege]:
        """What it hasn't of what *purposes* need."""
        return [privilege for privilege in _of(*purposes) if privilege not in self.held]

    def granting(self, purposes: Collection[Purpose], schema: str) -> str:
        """How it gets all that *purposes* need, and loses nothing."""
        besides = [one for one in _ALL if one in self.own and one not in _of(*purposes)]
        if not besides or not self.lacking(purposes):
            return f"as the owner of the schema: {_command(self.role, purposes)}"
        statements = (Grant(kind, name, (word,)).sql(self.role, schema) for kind, name, word in self.lacking(purposes))
        return (
            f"as the owner of the schema: {'; '.join(statements)}; "
            f"(`fencepost grant` would take away what it has besides: {_words(besides)})"
        )


async def holding(patient: Patient) -> Holding:
    """What the role of this session has, by the catalogue alone: it needn't be allowed anything for that."""
    [role] = await patient.fetch("role", schema=patient.schema)
    kinds, names, words = zip(*_ALL, strict=True)
    rows = await patient.fetch("privileges", schema=patient.schema, kinds=kinds, names=names, words=words)
    held = {(row["kind"], row["name"], row["word"]): row["by_all"] for row in rows if row["held"]}
    own = frozenset(privilege for privilege, by_all in held.items() if not by_all)
    return Holding(role["name"], frozenset(held), own)


async def sufficient(patient: Patient) -> tuple[list[Finding], str]:
    """What this role is for, by what it may do; and that as a sentence."""
    [role] = await patient.fetch("role", schema=patient.schema)
    if role["is_superuser"] or role["is_owner"]:
        who = "is a superuser" if role["is_superuser"] else "owns the schema"
        return [], f"role {role['name']} {who}: it may do everything here"
    ours = await holding(patient)
    purposes = ours.purposes()
    lacking = ours.lacking(purposes)
    if not purposes:
        return [error("privileges.missing", _puzzled(ours), _of_choice(ours))], ""
    if not lacking:
        return [], f"role {ours.role} may do what a {' and a '.join(purposes)} does"
    what = f"role {ours.role} may not do all that a {' and a '.join(purposes)} may: it lacks {_words(lacking)}"
    return [error("privileges.missing", what, ours.granting(purposes, patient.schema))], ""


async def to_use(patient: Patient) -> str:
    """What lets a role that can't even use the schema do what it is for."""
    ours = await holding(patient)
    purposes = ours.purposes()
    return ours.granting(purposes, patient.schema) if purposes else _of_choice(ours)


async def to_look(patient: Patient) -> str:
    """What lets this role look at everything, beside what it is for."""
    ours = await holding(patient)
    purposes = ours.purposes()
    if not {Purpose.WORKER, Purpose.READER}.isdisjoint(purposes):
        return ours.granting(purposes, patient.schema)
    granting = ours.granting([*purposes, Purpose.READER], patient.schema)
    return f"run this as a worker or a reader; or, if this role may read jobs, {granting}"


def _puzzled(ours: Holding) -> str:
    some = [privilege for privilege in _ALL if privilege in ours.own]
    return (
        f"role {ours.role} may not do what a producer, a worker or a reader does, and which of them it is meant for "
        f"can't be told: it has {_words(some) if some else 'nothing'}"
    )


def _of_choice(ours: Holding) -> str:
    return (
        f"as the owner of the schema: {_command(ours.role, [Purpose.READER])} (or worker, or producer; with a --to for "
        "each that it is for, since it is set to exactly these)"
    )


def _command(role: str, purposes: Iterable[Purpose]) -> str:
    return " ".join(["fencepost grant", shlex.quote(role), *(f"--to {purpose}" for purpose in purposes)])


def _words(privileges: Iterable[Privilege]) -> str:
    return named(f"{word} on {name.split('(')[0] or 'the schema'}" for _, name, word in privileges)
