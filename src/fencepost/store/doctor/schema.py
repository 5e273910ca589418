"""Our schema: is it there, is it up to date, may this role use it."""

from __future__ import annotations

import shlex

from fencepost.store import grants
from fencepost.store.doctor.findings import Finding, error, named, warning
from fencepost.store.doctor.patient import Patient
from fencepost.store.grants import Purpose
from fencepost.store.steps import Applied, steps

MIGRATE = "run `fencepost migrate` as the owner of the schema"


async def version(patient: Patient) -> list[Finding]:
    """Whether the schema is the one that this version of fencepost knows."""
    rows = await patient.fetch("schema", schema=patient.schema)
    if not rows or not rows[0]["has_steps"]:
        return [
            error("schema.missing", f"there is no schema {patient.schema!r} of fencepost's in this database", MIGRATE)
        ]
    if not (rows[0]["may_use"] and rows[0]["may_read"]):
        return [
            error(
                "schema.closed",
                f"this role may not use the schema {patient.schema!r}, which belongs to {rows[0]['owner']}",
                "as its owner: fencepost grant ROLE --to reader (or worker, or producer)",
            )
        ]
    return _compare([Applied(**dict(row)) for row in await patient.fetch("steps")])


def _compare(applied: list[Applied]) -> list[Finding]:
    known = {step.number: step for step in steps()}
    found = []
    missing = [
        f"{step.number} ({step.name})" for step in known.values() if step.number not in {a.number for a in applied}
    ]
    if missing:
        found.append(error("schema.behind", f"the schema lacks step {', '.join(missing)}", MIGRATE))
    for step in applied:
        ours = known.get(step.number)
        if ours is None:
            make = error if step.breaking else warning
            found.append(
                make(
                    "schema.newer",
                    f"the schema has step {step.number} ({step.name}), which this version of fencepost doesn't know"
                    + (" and can't work beside" if step.breaking else ""),
                    "upgrade fencepost here",
                )
            )
        elif ours.checksum != step.checksum:
            found.append(
                error(
                    "schema.changed",
                    f"step {step.number} ({step.name}) in the database isn't the one that this version ships",
                    "find out who changed it; compare `fencepost migrate --print` with the schema",
                )
            )
    return found


async def privileges(patient: Patient) -> tuple[list[Finding], str]:
    """What this role is for, by what it may do; and that as a sentence."""
    [role] = await patient.fetch("role", schema=patient.schema)
    if role["is_superuser"] or role["is_owner"]:
        who = "is a superuser" if role["is_superuser"] else "owns the schema"
        return [], f"role {role['name']} {who}: it may do everything here"
    lacking = {purpose: await _lacking(patient, purpose) for purpose in Purpose}
    whole = [purpose for purpose, words in lacking.items() if not words]
    found = []
    for purpose, words in lacking.items():
        total = sum(len(grant.privileges) for grant in grants.GRANTS[purpose])
        # Half of a purpose is a purpose that was granted by an older version, or by hand.
        is_meant = purpose not in _covered(whole) and 2 * len(words) < total
        if words and (is_meant or (not whole and purpose is Purpose.READER)):
            found.append(
                error(
                    "privileges.missing",
                    f"role {role['name']} may not do all that a {purpose} does: it lacks {named(words)}",
                    f"as the owner of the schema: fencepost grant {shlex.quote(role['name'])} --to {purpose}",
                )
            )
    # One is enough when a role may do nothing: whoever reads it knows what the role is for.
    return found[:1] if not whole else found, f"role {role['name']} may do what a {' and a '.join(whole)} does"


def _covered(whole: list[Purpose]) -> set[Purpose]:
    """What nobody misses who has all of *whole*."""
    return {*Purpose} if Purpose.WORKER in whole else {Purpose.WORKER} if whole else set()


async def _lacking(patient: Patient, purpose: Purpose) -> list[str]:
    wanted = [(grant.kind, grant.name, word) for grant in grants.GRANTS[purpose] for word in grant.privileges]
    rows = await patient.fetch(
        "privileges",
        schema=patient.schema,
        kinds=[kind for kind, _, _ in wanted],
        names=[name for _, name, _ in wanted],
        words=[word for _, _, word in wanted],
    )
    return [f"{row['word']} on {row['name'].split('(')[0] or 'the schema'}" for row in rows if not row["held"]]
