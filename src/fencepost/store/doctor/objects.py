"""Whether everything is there that the steps of the schema made."""

from __future__ import annotations

import re
from collections.abc import Collection

from fencepost.store.doctor.findings import Finding, error, named
from fencepost.store.doctor.patient import Patient
from fencepost.store.steps import steps

_STATEMENT = re.compile(
    r"^(create|drop) (?:or replace )?(?:unique )?(table|index|function) (?:fencepost\.)?(\w+)",
    re.IGNORECASE | re.MULTILINE,
)


def made(numbers: Collection[int]) -> list[tuple[str, str]]:
    """Kind and name of each table, index and function that the steps of these numbers make and leave, by their text."""
    objects: dict[tuple[str, str], None] = {}
    for step in steps():
        for verb, kind, name in _STATEMENT.findall(step.source) if step.number in numbers else ():
            if verb == "drop":
                del objects[kind, name]
            else:
                objects[kind, name] = None
    return list(objects)


async def complete(patient: Patient, applied: Collection[int]) -> list[Finding]:
    """Whether nothing of the steps that were *applied* was removed since."""
    if not {step.number for step in steps()}.issuperset(applied):
        # A step of a later version may have removed it.
        return []
    objects = made(applied)
    missing = await patient.fetch(
        "objects", schema=patient.schema, kinds=[kind for kind, _ in objects], names=[name for _, name in objects]
    )
    if not missing:
        return []
    names = named(f"{row['kind']} {row['name']}" for row in missing)
    return [
        error(
            "schema.incomplete",
            f"not there, though the steps of the schema make it: {names}",
            "find out who removed it; `fencepost migrate --print` has the statements that make it (a function may have "
            "several), and `fencepost grant` gives roles what they need. Rows have to come from a backup",
        )
    ]
