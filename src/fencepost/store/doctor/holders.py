"""Who is in the way: of others, by a lock; of vacuum, by an open transaction, a prepared one, a slot or a standby."""

from __future__ import annotations

from fencepost.store.doctor.findings import Finding, duration, error, named, signalling, warning
from fencepost.store.doctor.patient import Patient
from fencepost.store.querying import Row


async def locks(patient: Patient) -> list[Finding]:
    """Who holds a table of ours that others wait for. Asks for no lock itself, so it isn't kept waiting by any."""
    limit = patient.limits.blocked_seconds
    rows = await patient.fetch("locks", schema=patient.schema, held_seconds=limit)
    return [_lock(row, limit) for row in rows]


def _lock(row: Row, limit: float) -> Finding:
    waits = "nobody who needs it can have it"
    if row["waiters"]:
        waits = f"others wait for it ({row['waiters']}), the first for {duration(row['waited_seconds'])}"
    # Without others: who keeps out everybody who comes.
    make = warning if row["waiters"] and row["waited_seconds"] <= limit else error
    if not row["pid"]:
        what = f"a prepared transaction holds a lock on {named(row['names'])}, and {waits}"
        return make("locks.held", what, "select * from pg_prepared_xacts; then commit it or roll it back by its gid")
    state = (
        "" if row["age_seconds"] is None else f" It is {row['state']}, {duration(row['age_seconds'])} in a transaction"
    )
    what = f"{_who(row)} holds a lock on {named(row['names'])}, and {waits}.{state}. Its last statement: {row['query']}"
    return make("locks.held", what, _ending("pg_terminate_backend", row))


def _who(row: Row) -> str:
    return f"session {row['pid']} ({row['application'] or 'no application name'}, role {row['role']}, {row['client']})"


def _ending(function: str, row: Row) -> str:
    return signalling(function, row["pid"], role=row["role"], of_superuser=row["of_superuser"])


async def transactions(patient: Patient) -> list[Finding]:
    """Everything that holds old rows back, each by its name."""
    limits = patient.limits
    sessions = await patient.fetch("sessions", idle_seconds=limits.idle_seconds, busy_seconds=limits.busy_seconds)
    prepared = await patient.fetch("prepared", age_seconds=limits.prepared_seconds)
    return [
        *map(_session, sessions),
        *map(_prepared, prepared),
        *map(_slot, await patient.fetch("slots", transactions=limits.pinned_transactions)),
        *map(_standby, await patient.fetch("standbys", transactions=limits.pinned_transactions)),
    ]


def _session(row: Row) -> Finding:
    who, age = _who(row), duration(row["age_seconds"])
    if row["idle"]:
        what = f"{who} has been in a transaction for {age} and waits for its client. Its last statement: {row['query']}"
        return warning("transactions.idle", what, _ending("pg_terminate_backend", row))
    what = f"{who} has had a transaction open for {age}: {row['query']}"
    return warning("transactions.long", what, f"unless it is meant, {_ending('pg_cancel_backend', row)}")


def _prepared(row: Row) -> Finding:
    gid = row["gid"].replace("'", "''")
    return warning(
        "transactions.prepared",
        f"transaction {row['gid']!r} of role {row['role']} in database {row['database']} was prepared "
        f"{duration(row['age_seconds'])} ago and is neither committed nor rolled back",
        f"in that database: rollback prepared '{gid}'; or commit prepared '{gid}';",
    )


def _slot(row: Row) -> Finding:
    wal = "" if row["wal_bytes"] is None else f" and {row['wal_bytes'] / 2**20:,.0f} MB of WAL"
    idle = "" if row["active"] else ", and nobody reads from it"
    name = row["name"].replace("'", "''")
    return warning(
        "transactions.slot",
        f"{row['type']} replication slot {row['name']!r} keeps what is {row['transactions']:,} transactions old{wal}"
        f"{idle}",
        f"start its reader again; or, if that is gone for good: select pg_drop_replication_slot('{name}');",
    )


def _standby(row: Row) -> Finding:
    return warning(
        "transactions.standby",
        f"standby {row['application'] or row['client']} keeps rows from vacuum that are {row['transactions']:,} "
        "transactions old, for a query of its own (hot_standby_feedback)",
        "end the long query on the standby, or turn hot_standby_feedback off there",
    )
