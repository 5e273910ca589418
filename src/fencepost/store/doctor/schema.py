"""Our schema: is it there, is it up to date, may this role use it at all, are its partitions as they should be."""

from __future__ import annotations

from fencepost.store.database import Row
from fencepost.store.doctor import objects, privileges
from fencepost.store.doctor.findings import Finding, duration, error, named, warning
from fencepost.store.doctor.patient import Patient
from fencepost.store.statements import quote_schema
from fencepost.store.steps import Applied, steps

MOST_DEFAULT_ROWS = 1001
_MIGRATE = "run `fencepost migrate` as the owner of the schema"


async def version(patient: Patient) -> list[Finding]:
    """Whether the schema is the one that this version of fencepost knows."""
    rows = await patient.fetch("schema", schema=patient.schema)
    if not rows or not rows[0]["has_steps"]:
        return [
            error("schema.missing", f"there is no schema {patient.schema!r} of fencepost's in this database", _MIGRATE)
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
        found.append(error("schema.behind", f"the schema lacks step {', '.join(missing)}", _MIGRATE))
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


async def partitions(patient: Patient) -> list[Finding]:
    """Whether every time has its partitions, and every partition its place."""
    found = []
    problems: dict[str, list[str]] = {}
    rows = await patient.fetch("partitions", schema=patient.schema)
    for row in rows:
        problems.setdefault(row["problem"], []).append(row["name"])
    if "unattached" in problems:
        found.append(_unattached([row for row in rows if row["problem"] == "unattached"], patient.schema))
    if "lost" in problems:
        found.append(
            error(
                "partitions.lost",
                f"on the list of ranges, and not there: {named(problems['lost'])}. History in them is gone, and what "
                "comes goes to the default partitions",
                "restore them from a backup and attach them; or delete their range from the list, the table partitions",
            )
        )
    if "detached" in problems:
        found.append(
            warning(
                "partitions.detached",
                f"detached and left behind: {named(problems['detached'])}. Nothing reads or removes them",
                f"look into them; then: drop table {quote_schema(patient.schema)}.{problems['detached'][0]}; and so on",
            )
        )
    if "unlisted" in problems:
        found.append(
            warning(
                "partitions.unlisted",
                f"attached by somebody else, so retention never drops them: {named(problems['unlisted'])}",
                "detach them, or add their range to the list, the table partitions",
            )
        )
    return found + await _ahead(patient) + await _defaults(patient)


def _unattached(rows: list[Row], schema: str) -> Finding:
    """Live jobs may be in there, so it is never to be dropped."""
    first, quoted = rows[0], quote_schema(schema)
    return error(
        "partitions.unattached",
        f"detached, and still on the list of ranges: {named(row['name'] for row in rows)}. Jobs in them are there, but "
        "nothing runs, shows or ends them",
        f"alter table {quoted}.{first['parent']} attach partition {quoted}.{first['name']} for values from "
        f"('{first['low']}') to ('{first['high']}'); and so on. If rows of that time are in {first['parent']}_default, "
        "move them into it first",
    )


async def _ahead(patient: Patient) -> list[Finding]:
    [row] = await patient.fetch("partitions_ahead")
    width = patient.settings.partition_days * 86400.0
    ahead = row["ahead_seconds"]
    if ahead is not None and ahead >= width / 2:
        return []
    if not row["has_now"]:
        what = "there is no partition for this moment: jobs go to the default partitions, which are never dropped"
        return [error("partitions.none", what, f"start a worker, or {_MIGRATE}: both make partitions")]
    what = f"the last partition ends in {duration(ahead)}, and workers keep one of {duration(width)} ready ahead"
    return [warning("partitions.late", what, f"look for `making partitions` in a worker's log; or {_MIGRATE}")]


async def _defaults(patient: Patient) -> list[Finding]:
    since = patient.settings.partition_days * 86400.0
    [row] = await patient.fetch("default_rows", since_seconds=since, most=MOST_DEFAULT_ROWS)
    if not row["rows"]:
        return []
    count = f"{MOST_DEFAULT_ROWS - 1:,} or more" if row["rows"] == MOST_DEFAULT_ROWS else f"{row['rows']:,}"
    return [
        warning(
            "partitions.default",
            f"{count} recent jobs are in the default partition (as {named(row['ids'], most=2)}): no range was there "
            "for them, or a client's clock is wrong",
            f"{_MIGRATE}: new ranges take in what belongs to them; and look at the clocks of whoever enqueues",
        )
    ]
