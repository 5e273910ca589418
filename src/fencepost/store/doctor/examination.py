"""All checks, one after the other, over one connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import asyncpg
import msgspec

from fencepost.errors import DatabaseUnavailable, PrivilegeMissing
from fencepost.settings import Settings
from fencepost.store.doctor import audit, holders, partitions, pooler, privileges, schema, server, work
from fencepost.store.doctor.findings import Finding, Limits, Severity, error, ok, warning
from fencepost.store.doctor.patient import Patient, admitted
from fencepost.store.failures import first_line

Advance = Callable[[str, int], None]


class Check(msgspec.Struct, frozen=True):
    """One thing to look at."""

    name: str
    look: Callable[[Patient], Awaitable[list[Finding] | tuple[list[Finding], str]]]
    fine: str
    """What is said when nothing was found."""
    needs_schema: bool = False


CHECKS = (
    Check("server", server.suitable, "the server is new enough and takes writes"),
    Check("durability", server.durability, "what is committed survives a crash"),
    Check("clock", server.clock, "this machine's clock agrees with the database's"),
    Check("pooler", pooler.as_said, "DATABASE_POOLER says what DATABASE_URL leads through"),
    Check("connections", server.connections, "there are connections enough"),
    Check("notifications", server.notifications, "the queue of notifications is next to empty"),
    Check("vacuum", server.vacuum, "autovacuum is on"),
    Check("wraparound", server.wraparound, "no transaction number is old"),
    Check("visibility", server.visibility, "this role sees what others' sessions do"),
    # Before all that may have to wait for one.
    Check("locks", holders.locks, "nobody holds a table that others wait for"),
    Check("transactions", holders.transactions, "nothing keeps vacuum from dead rows"),
    Check("schema", schema.version, "the schema is up to date"),
    Check("privileges", privileges.sufficient, "", needs_schema=True),
    Check("partitions", partitions.partitions, "every time has its partitions", needs_schema=True),
    Check("leases", work.leases, "no lease has run out unnoticed", needs_schema=True),
    Check("queues", work.queues, "no due job is kept waiting", needs_schema=True),
    Check("types", work.types, "every waiting job's type is known to some worker", needs_schema=True),
)


class Examination(msgspec.Struct, frozen=True):
    """What came of it."""

    findings: list[Finding]
    """In the order of the checks; one that found nothing says that all is well."""

    def count(self, severity: Severity) -> int:
        """How many findings are like that."""
        return sum(finding.severity is severity for finding in self.findings)


async def examine(
    dsn: str,
    settings: Settings,
    *,
    quick: bool = False,
    limits: Limits | None = None,
    advance: Advance = lambda remark, steps: None,
    begin: Callable[[int], None] = lambda steps: None,
) -> Examination:
    """
    Look at everything in one transaction that can't write; without the audit when it is to be *quick*.

    *begin* hears how many steps there will be, and *advance* of each. Raises DatabaseUnavailable, and InvalidSettings
    for an address that can't be one.
    """
    async with admitted(dsn, settings, limits or Limits()) as patient:
        usable = await _has_schema(patient)
        ranges = 0 if quick or not usable else await _audited(patient)
        begin(len(CHECKS) + ranges)
        found: list[Finding] = []
        for check in CHECKS:
            if usable or not check.needs_schema:
                found += await _ask(check, patient)
            advance(check.name, 1)
        if ranges:
            found += await _ask(Check("audit", lambda one: audit.audit(one, advance), ""), patient)
        return Examination(found)


async def _has_schema(patient: Patient) -> bool:
    rows = await patient.fetch("schema", schema=patient.schema)
    return bool(rows) and rows[0]["has_steps"] and rows[0]["may_use"] and rows[0]["may_read"]


async def _audited(patient: Patient) -> int:
    """How many steps the audit has; one where it may not look."""
    try:
        return len(await audit.spans(patient))
    except asyncpg.PostgresError:
        return 1


async def _ask(check: Check, patient: Patient) -> list[Finding]:
    """What one check finds, or that it couldn't look."""
    try:
        answer = await check.look(patient)
    except (asyncpg.InsufficientPrivilegeError, PrivilegeMissing) as refused:
        return [
            warning(
                "doctor.not_allowed",
                f"{check.name} couldn't be looked at: {first_line(refused)}",
                await privileges.to_look(patient),
            )
        ]
    except (asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError, DatabaseUnavailable, TimeoutError) as late:
        return [
            warning(
                "doctor.unfinished",
                f"{check.name} couldn't be looked at in time: {first_line(late)}",
                "run it again: locks.held names who holds a lock for long; without that the server is slow",
            )
        ]
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.UndefinedFunctionError) as missing:
        return [
            error(
                "schema.broken",
                f"{check.name} couldn't be looked at: {first_line(missing)}",
                "if the schema is behind, run `fencepost migrate`; else something of it was removed by hand: "
                "compare it with `fencepost migrate --print`",
            )
        ]
    except asyncpg.PostgresError as refused:
        # One table that can't be read, or a value that nobody expected there, must not hide what the others say.
        return [
            error(
                "doctor.failed",
                f"{check.name} couldn't be looked at: {first_line(refused)}",
                "if PostgreSQL speaks of a file or a page, look for damage (pg_amcheck); else please report it",
            )
        ]
    findings, fine = answer if isinstance(answer, tuple) else (answer, check.fine)
    return findings or [ok(check.name, fine)]
