"""Our schema: is it there, is it up to date, may this role use it at all."""

from __future__ import annotations

from fencepost.store.doctor import objects, privileges
from fencepost.store.doctor.findings import Finding, error, warning
from fencepost.store.doctor.patient import Patient
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
                await privileges.to_use(patient),
            )
        ]
    applied = [Applied(**dict(row)) for row in await patient.fetch("steps")]
    return _compare(applied) + await objects.complete(patient, [step.number for step in applied])


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
