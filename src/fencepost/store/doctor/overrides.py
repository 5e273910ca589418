"""Where a session's settings come from, and the statements that set one right in that place."""

from __future__ import annotations

from urllib.parse import urlsplit

from fencepost.store.doctor.findings import Finding, warning
from fencepost.store.doctor.patient import Patient
from fencepost.store.grants import quote_role

_APART = "each statement by itself (psql takes several -c)"
"""`alter system` can't be in a transaction, and statements that are sent together are in one."""
READ_ONLY = "default_transaction_read_only"


def of_server(name: str, value: str) -> str:
    """How the server is given a setting."""
    return f"as a superuser, {_APART}: {_server(name, value)}"


def _server(name: str, value: str) -> str:
    return f"alter system set {name} = {value}; select pg_reload_conf();"


def _resetting(name: str, role: str | None, database: str | None) -> str:
    if role is None and database is not None:
        return f"alter database {quote_role(database)} reset {name};"
    within = "" if database is None else f" in database {quote_role(database)}"
    return f"alter role {'all' if role is None else quote_role(role)}{within} reset {name};"


def _who(role: str | None, database: str | None) -> str:
    if role is not None:
        return f"as {role} or a superuser"
    return "as a superuser" if database is None else "as the owner of the database or a superuser"


async def mending(patient: Patient, name: str, value: str) -> str:
    """How *name* becomes *value* for this role, in the place that gives it another one."""
    if name in urlsplit(patient.dsn).query:
        return f"leave {name} out of DATABASE_URL"
    rows = await patient.fetch("setting_source", name=name)
    role, database = (rows[0]["role"], rows[0]["database"]) if rows else (None, None)
    # Whoever mends it may be given the same.
    first = f"set {READ_ONLY} = off; " if name == READ_ONLY else ""
    if not rows:
        return f"as a superuser, {_APART}: {first}{_server(name, value)}"
    how = f", {_APART}" if first else ""
    return f"{_who(role, database)}{how}: {first}{_resetting(name, role, database)}"


async def of_others(patient: Patient, name: str, *, ours_is_well: bool) -> list[Finding]:
    """What others' sessions are given: the doctor's own may be another role's. What concerns ours is told already."""
    [server] = await patient.fetch("server")
    found = []
    for row in await patient.fetch("setting_overrides", schema=patient.schema):
        role, database = row["role"], row["database"]
        if row["name"] != name or role == server["role"] or (role is None and not ours_is_well):
            continue
        whose = f"role {role}" if role is not None else "all roles"
        where = whose + (f" in database {database}" if database is not None else "")
        remedy = f"{_who(role, database)}: {_resetting(name, role, database)}"
        if name != READ_ONLY:
            what = f"{name} is {row['value']} for {where}: what that commits can be lost in a crash of the server"
            found.append(warning("durability.role_setting", what, remedy))
        elif row["writes"]:
            what = f"transactions of {where} are read-only by default ({name}), so nothing can be enqueued there"
            found.append(warning("server.role_read_only", what, remedy))
    return found
