"""What keeps vacuum from dead rows: open transactions, prepared ones, slots, standbys."""

from __future__ import annotations

from fencepost.store.database import Row
from fencepost.store.doctor.findings import Finding, duration, warning
from fencepost.store.doctor.patient import Patient


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
    who = f"session {row['pid']} ({row['application'] or 'no application name'}, role {row['role']}, {row['client']})"
    age = duration(row["age_seconds"])
    if row["idle"]:
        what = f"{who} has been in a transaction for {age} and waits for its client. Its last statement: {row['query']}"
        return warning("transactions.idle", what, f"select pg_terminate_backend({row['pid']});")
    what = f"{who} has had a transaction open for {age}: {row['query']}"
    return warning("transactions.long", what, f"select pg_cancel_backend({row['pid']}); unless it is meant")


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
