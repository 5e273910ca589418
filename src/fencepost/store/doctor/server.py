"""The server: is it the right one, does it keep what it is given, has it room, does vacuum run."""

from __future__ import annotations

import time

from fencepost.errors import FencepostError
from fencepost.settings import CONNECTIONS_OF_A_WORKER
from fencepost.store.doctor import overrides
from fencepost.store.doctor.findings import Finding, duration, error, named, warning
from fencepost.store.doctor.patient import Patient
from fencepost.store.grants import quote_role
from fencepost.store.migrate import LOWEST_SERVER
from fencepost.store.querying import Row
from fencepost.store.statements import quote_schema

CLOCK_ROUNDS = 5


def unreachable(failure: FencepostError) -> Finding:
    """That there was nothing to look at."""
    return error(
        "server.unreachable",
        failure.for_operator(),
        "see that the server runs and that DATABASE_URL has its host, port, database, role and password",
    )


async def suitable(patient: Patient) -> list[Finding]:
    """Whether the server is new enough, and takes writes."""
    [server] = await patient.fetch("server")
    if server["version"] < LOWEST_SERVER:
        what = f"PostgreSQL {server['version_text']} is too old; fencepost needs 14 or newer"
        return [error("server.version", what, "upgrade the server")]
    if server["in_recovery"]:
        return [
            error(
                "server.recovery",
                "this server is a standby (in recovery): it takes no writes, so no job can be stored or run here",
                "point DATABASE_URL at the primary; with several hosts in it, the one that takes writes is found",
            )
        ]
    if server["read_only"] == "on":
        return [
            error(
                "server.read_only",
                f"transactions of role {server['role']} are read-only by default (default_transaction_read_only = on)",
                await overrides.mending(patient, overrides.READ_ONLY, "off"),
            )
        ]
    return await overrides.of_others(patient, overrides.READ_ONLY, ours_is_well=True)


async def durability(patient: Patient) -> list[Finding]:
    """Whether what is committed survives a crash."""
    [server] = await patient.fetch("server")
    is_durable = server["synchronous_commit"] != "off"
    found = []
    if server["fsync"] != "on":
        found.append(
            error(
                "durability.fsync",
                "fsync is off: a crash of the machine can lose jobs and destroy the database",
                overrides.of_server("fsync", "on"),
            )
        )
    if server["full_page_writes"] != "on":
        found.append(
            warning(
                "durability.full_page_writes",
                "full_page_writes is off: unless the file system never tears a page, a crash can destroy the database",
                overrides.of_server("full_page_writes", "on"),
            )
        )
    if not is_durable:
        found.append(
            error(
                "durability.synchronous_commit",
                "synchronous_commit is off for this role: a crash of the server can lose jobs that applications stored "
                "in transactions of their own (fencepost's own connections turn it on)",
                await overrides.mending(patient, "synchronous_commit", "on"),
            )
        )
    found += await overrides.of_others(patient, "synchronous_commit", ours_is_well=is_durable)
    found += await _standbys(patient, server)
    unlogged = [row["name"] for row in await patient.fetch("tables", schema=patient.schema) if row["unlogged"]]
    if unlogged:
        found.append(
            error(
                "durability.unlogged",
                f"unlogged: {named(unlogged)}. A crash of the server empties them",
                f"alter table {quote_schema(patient.schema)}.{unlogged[0]} set logged; and so on",
            )
        )
    return found


async def _standbys(patient: Patient, server: Row) -> list[Finding]:
    if not server["synchronous_standby_names"] or not server["sees_all"]:
        return []
    [standbys] = await patient.fetch("synchronous_standbys")
    if standbys["connected"] or server["synchronous_commit"] in ("off", "local"):
        return []
    return [
        error(
            "durability.no_standby",
            f"every commit waits for a synchronous standby ({server['synchronous_standby_names']}), and none is there",
            f"start the standby; or {overrides.of_server('synchronous_standby_names', repr(''))}",
        )
    ]


async def clock(patient: Patient) -> list[Finding]:
    """Whether this machine and the database agree on the time, as far as the round trip lets one see."""
    lowest, highest = float("-inf"), float("inf")
    for _ in range(CLOCK_ROUNDS):
        before = time.time()
        [server] = await patient.fetch("clock")
        after = time.time()
        lowest, highest = max(lowest, server["now"] - after), min(highest, server["now"] - before)
    ahead, behind = lowest, -highest
    skew = max(ahead, behind)
    if skew <= patient.limits.skew_seconds:
        return []
    direction = "behind" if ahead > 0 else "ahead of"
    return [
        warning(
            "clock.skew",
            f"this machine's clock is at least {duration(skew)} {direction} the database's. Jobs are due by the "
            "database's clock; ids made here, and times in logs, are by this one",
            "synchronise both machines with NTP",
        )
    ]


async def connections(patient: Patient) -> list[Finding]:
    """Whether there are as many connections as are wanted."""
    [server] = await patient.fetch("server")
    allowed = server["max_connections"] - server["reserved_connections"]
    caps = [limit for limit in (server["database_limit"], server["role_limit"]) if limit is not None and limit >= 0]
    most = min([allowed, *caps])
    settings = patient.settings
    wanted = settings.database_connections + CONNECTIONS_OF_A_WORKER * max(1, settings.processes)
    if wanted > most:
        return [
            error(
                "connections.too_few",
                f"this configuration may open {wanted} connections in one service (DATABASE_CONNECTIONS "
                f"{settings.database_connections}, PROCESSES {settings.processes}), and the server, database or role "
                f"allows {most}",
                "raise max_connections (or the connection limit of the role or database), lower the settings, or put a "
                "pooler between: docs/how-to/poolers.md",
            )
        ]
    if server["connected"] >= allowed * patient.limits.used_connections:
        return [
            warning(
                "connections.nearly_full",
                f"{server['connected']} of {allowed} connections are in use; the next ones will be refused",
                "select usename, application_name, count(*) from pg_stat_activity group by 1, 2 order by 3 desc;",
            )
        ]
    return []


async def notifications(patient: Patient) -> list[Finding]:
    """Whether the server's queue of notifications fills up: once it is full, no commit that notifies succeeds."""
    [server] = await patient.fetch("server")
    used = server["notification_queue"]
    if used <= patient.limits.full_queue:
        return []
    return [
        error(
            "notifications.filling",
            f"the server's queue of notifications is {used:.1%} full: a session that listens has kept a transaction "
            "open. When it is full, every enqueue fails",
            "end the session that transactions.idle or transactions.long names, as it says there",
        )
    ]


async def vacuum(patient: Patient) -> list[Finding]:
    """Whether dead rows are removed, and old transaction numbers with them."""
    [server] = await patient.fetch("server")
    found = []
    for name in ("autovacuum", "track_counts"):
        if server[name] != "on":
            found.append(
                error(
                    "vacuum.off",
                    f"{name} is off: every job leaves dead rows, and nothing removes them",
                    overrides.of_server(name, "on"),
                )
            )
    tables = [row["name"] for row in await patient.fetch("tables", schema=patient.schema) if row["unvacuumed"]]
    if tables:
        found.append(
            warning(
                "vacuum.table_off",
                f"autovacuum is off for {named(tables)}",
                " ".join(
                    f"alter table {quote_schema(patient.schema)}.{name} reset (autovacuum_enabled);"
                    for name in tables[:3]
                ),
            )
        )
    return found


async def wraparound(patient: Patient) -> list[Finding]:
    """How far the database is from running out of transaction numbers."""
    [server] = await patient.fetch("server")
    age = server["age"]
    if age < patient.limits.old_transactions:
        return []
    make = error if age >= patient.limits.ancient_transactions else warning
    return [
        make(
            "wraparound.old",
            f"the oldest rows of database {server['database']} are {age:,} transactions old; PostgreSQL refuses "
            "writes near 2,147,000,000",
            "end what keeps vacuum away (transactions.*), then, as a superuser, in this database: vacuum (freeze);",
        )
    ]


async def visibility(patient: Patient) -> list[Finding]:
    """Whether this role sees what others' sessions do."""
    [server] = await patient.fetch("server")
    if server["sees_all"]:
        return []
    return [
        warning(
            "visibility.limited",
            f"role {server['role']} doesn't see what other roles' sessions do: the checks for open transactions, "
            "standbys and synchronous commits looked at its own alone",
            f"as a superuser: grant pg_read_all_stats to {quote_role(server['role'])};",
        )
    ]
