"""Our partitions: has every time its own, is each in its place, and what sets right those that aren't."""

from __future__ import annotations

from fencepost.store.doctor.findings import Finding, duration, error, named, warning
from fencepost.store.doctor.patient import Patient
from fencepost.store.doctor.schema import MIGRATE
from fencepost.store.querying import Row
from fencepost.store.statements import quote_schema

MOST_DEFAULT_ROWS = 1001


async def partitions(patient: Patient) -> list[Finding]:
    """Whether every time has its partitions, and every partition its place."""
    found = []
    problems = await _problems(patient)
    names = {problem: [row["name"] for row in rows] for problem, rows in problems.items()}
    if "unattached" in problems:
        found.append(
            # Live jobs may be in there, so it is never to be dropped.
            error(
                "partitions.unattached",
                f"detached, and still on the list of ranges: {named(names['unattached'])}. Jobs in them are there, but "
                "nothing runs, shows or ends them",
                _attaching(problems["unattached"], patient.schema),
            )
        )
    if "lost" in problems:
        found.append(
            error(
                "partitions.lost",
                f"on the list of ranges, and not there: {named(names['lost'])}. History in them is gone, and what "
                "comes goes to the default partitions",
                "restore them from a backup, and look again for how to attach them; where there is none, make them "
                f"anew, empty: {_attaching(problems['lost'], patient.schema)}",
            )
        )
    if "detached" in problems:
        found.append(
            warning(
                "partitions.detached",
                f"detached and left behind: {named(names['detached'])}. Nothing reads or removes them",
                f"look into them; then: drop table {quote_schema(patient.schema)}.{names['detached'][0]}; and so on",
            )
        )
    if "unlisted" in problems:
        found.append(
            warning(
                "partitions.unlisted",
                f"attached by somebody else, so retention never drops them: {named(names['unlisted'])}",
                "detach them, or add their range to the list, the table partitions",
            )
        )
    found += await _ahead(patient)
    # Until a range on the list is whole again, what belongs to it has to be in the default partitions.
    return found if _apart(problems) else found + await _defaults(patient)


async def apart(patient: Patient) -> str | None:
    """Why rows of ranges on the list may not be seen, as a finding's code; None when all of them are."""
    return _apart(await _problems(patient))


async def _problems(patient: Patient) -> dict[str, list[Row]]:
    problems: dict[str, list[Row]] = {}
    for row in await patient.fetch("partitions", schema=patient.schema):
        problems.setdefault(row["problem"], []).append(row)
    return problems


def _apart(problems: dict[str, list[Row]]) -> str | None:
    return next((f"partitions.{one}" for one in ("unattached", "lost") if one in problems), None)


def _attaching(rows: list[Row], schema: str) -> str:
    """Statements that put tables in their places, all or none; those that are lost are made first."""
    each = " ".join(statement for row in rows for statement in _attaching_one(row, quote_schema(schema)))
    return f"begin; set local lock_timeout = '2s'; {each} commit;"


def _attaching_one(row: Row, schema: str) -> list[str]:
    parent, part = f"{schema}.{row['parent']}", f"{schema}.{row['name']}"
    low, high = row["low"], row["high"]
    statements = []
    if row["problem"] == "lost":
        statements.append(f"create table {part} (like {parent} including defaults including constraints);")
    if row["parent"] == "finished":
        # A survey that didn't see its rows would have the range dropped with what is to be kept.
        statements += [
            f"drop trigger if exists note_survivor on {part};",
            f"update {schema}.partitions set surveyed_to = null, expired = 0 "
            f"where {schema}.first_id_at(starts_at) = '{low}';",
        ]
    return [
        *statements,
        # Locked first, or a row that comes between would refuse the range.
        f"lock table {parent}_default in access exclusive mode;",
        f"with m as (delete from {parent}_default where id >= '{low}' and id < '{high}' returning *) "
        f"insert into {part} select * from m;",
        f"alter table {parent} attach partition {part} for values from ('{low}') to ('{high}');",
    ]


async def _ahead(patient: Patient) -> list[Finding]:
    [row] = await patient.fetch("partitions_ahead")
    width = patient.settings.partition_days * 86400.0
    if not row["has_now"]:
        what = "there is no partition for this moment: jobs go to the default partitions, which are never dropped"
        return [error("partitions.none", what, f"start a worker, or {MIGRATE}: both make partitions")]
    ahead = row["ahead_seconds"]
    if ahead >= width / 2:
        return []
    what = f"the last partition ends in {duration(ahead)}, and workers keep one of {duration(width)} ready ahead"
    return [warning("partitions.late", what, f"look for `making partitions` in a worker's log; or {MIGRATE}")]


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
            f"{MIGRATE}: new ranges take in what belongs to them; and look at the clocks of whoever enqueues",
        )
    ]
