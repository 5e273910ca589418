"""The work: is it being done, is any of it waiting for nobody."""

from __future__ import annotations

from fencepost.store.doctor.findings import Finding, duration, error, named, warning
from fencepost.store.doctor.patient import Patient

_START = "start a worker: DATABASE_URL=… fencepost worker MODULE:APP"


async def leases(patient: Patient) -> list[Finding]:
    """Whether leases that ran out are taken back."""
    limits, interval = patient.limits, patient.settings.recovery_interval_seconds
    [row] = await patient.fetch(
        "expired_leases",
        overdue_seconds=interval + limits.overdue_lease_seconds,
        silence_seconds=limits.silent_seconds,
    )
    if not row["rows"]:
        return []
    what = (
        f"{row['rows']:,} leases ran out up to {duration(row['oldest_seconds'])} ago, and their jobs weren't taken "
        f"back (as {named(row['ids'], most=2)})"
    )
    if not row["workers"]:
        return [error("leases.no_worker", f"{what}: no worker is alive to do it", _START)]
    return [
        error(
            "leases.unswept",
            f"{what}, though {row['workers']} workers are alive",
            f"look for `recovery` in their logs, and for locks on {patient.schema}.leases; every worker sweeps every "
            "queue, so restarting one may help",
        )
    ]


async def queues(patient: Patient) -> list[Finding]:
    """Whether every queue with due jobs is served."""
    limits = patient.limits
    due = await patient.fetch("queues")
    [workers] = await patient.fetch("workers", silence_seconds=limits.silent_seconds)
    found = [
        warning(
            "queues.paused",
            f"queue {row['name']} is paused, and its oldest job has been due for {duration(row['oldest_seconds'])}",
            f"when it may go on: POST /queues/{row['name']}/resume",
        )
        for row in due
        if row["paused"]
    ]
    late = [row for row in due if not row["paused"] and row["oldest_seconds"] > limits.unserved_seconds]
    if late and not workers["alive"]:
        names = named(row["name"] for row in late)
        what = f"no worker is alive, and jobs have been due for {duration(late[0]['oldest_seconds'])} in {names}"
        return [*found, error("queues.no_worker", what, _START)]
    return found + [
        warning(
            "queues.unserved",
            f"the oldest job of queue {row['name']} has been due for {duration(row['oldest_seconds'])} and none of it "
            f"runs, though {workers['alive']} workers are alive",
            f"see that a worker serves it: QUEUES without a value, or with {row['name']}",
        )
        for row in late
        if not row["running"]
    ]


async def types(patient: Patient) -> list[Finding]:
    """Whether somebody knows the types of the jobs that wait. Says nothing while no worker is alive: nobody could."""
    limits = patient.limits
    [workers] = await patient.fetch("workers", silence_seconds=limits.silent_seconds)
    if not workers["alive"]:
        return []
    rows = await patient.fetch("undeclared_types", within_seconds=limits.declared_seconds, most=limits.looked_at_jobs)
    return [
        warning(
            "types.undeclared",
            f"{row['rows']:,} due jobs (at least) are of type {row['type']}, which no process has declared lately: a "
            "worker that takes one fails it for good",
            "start a worker whose app has that type, or correct the name where it is enqueued",
        )
        for row in rows
    ]
