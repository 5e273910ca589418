"""What a check finds, and from where on it says so."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec


class Severity(enum.StrEnum):
    """How bad it is."""

    OK = "ok"
    """As it should be."""
    WARNING = "warning"
    """Will hurt, or may hurt already; or couldn't be looked at."""
    ERROR = "error"
    """Jobs are lost, stuck, or could be lost."""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that was found."""

    code: str
    """For machines: the check's name, and what it is about it when all isn't well. docs/how-to/doctor.md has all."""
    severity: Severity
    what: str
    """A sentence."""
    remedy: str | None = None
    """What to do: a command, SQL, or a sentence."""


def ok(code: str, what: str) -> Finding:
    """All is well with *code*."""
    return Finding(code, Severity.OK, what)


def warning(code: str, what: str, remedy: str) -> Finding:
    """Something to look after soon."""
    return Finding(code, Severity.WARNING, what, remedy)


def error(code: str, what: str, remedy: str) -> Finding:
    """Something to look after now."""
    return Finding(code, Severity.ERROR, what, remedy)


def worst(findings: Iterable[Finding]) -> Severity:
    """The worst of *findings*; OK when there are none."""
    found = {finding.severity for finding in findings}
    return next((one for one in (Severity.ERROR, Severity.WARNING) if one in found), Severity.OK)


def signalling(function: str, pid: int, *, role: str, of_superuser: bool) -> str:
    """The statement that cancels or ends a session of *role*, and who may run it."""
    others = "" if of_superuser or not role else f"{role}, a member of pg_signal_backend or "
    return f"as {others}a superuser: select {function}({pid});"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """From where on something is a finding."""

    skew_seconds: float = 2.0
    """Between this machine's clock and the database's, beyond what the round trip leaves open."""
    idle_seconds: float = 60.0
    """Of a transaction that waits for its client."""
    busy_seconds: float = 600.0
    """Of a transaction that works."""
    prepared_seconds: float = 60.0
    blocked_seconds: float = 3.0
    """Of a lock on a table of ours that somebody waits for, or that lets nobody in."""
    pinned_transactions: int = 1_000_000
    """How many transactions old the oldest rows are that a slot or a standby keeps."""
    old_transactions: int = 500_000_000
    ancient_transactions: int = 1_500_000_000
    """Age of the database's oldest row. PostgreSQL stops at two thousand million."""
    full_queue: float = 0.25
    """Share of the notification queue that is used."""
    used_connections: float = 0.9
    """Share of the connections that are allowed."""
    silent_seconds: float = 60.0
    """Without a heartbeat: such a worker counts as gone."""
    overdue_lease_seconds: float = 30.0
    """On top of RECOVERY_INTERVAL."""
    unserved_seconds: float = 60.0
    """How long a job may be due before somebody is missed."""
    declared_seconds: float = 300.0
    """Processes declare their job types each minute."""
    looked_at_jobs: int = 1000
    """Due jobs of a lane that are looked at for their types."""
    audit_seconds: float = 300.0
    """What the whole audit may take."""


def duration(seconds: float) -> str:
    """A length of time for people, to two places: `3d 4h`, `5m 20s`, `800ms`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    left, words = round(seconds), []
    for unit, name in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        count, left = divmod(left, unit)
        if count:
            words.append(f"{count}{name}")
    return " ".join(words[:2])


def named(names: Iterable[object], *, most: int = 5) -> str:
    """Some names in a row, and that there are more."""
    texts = [str(name) for name in names]
    return ", ".join(texts[:most]) + (", …" if len(texts) > most else "")
