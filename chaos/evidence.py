"""All that the checks look at: what the ledger says, what the database says, and what was seen on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncpg
import msgspec

from chaos.ledger import AttemptRecord, Submission, read_attempts, read_submissions

_JOBS = """
select cast(j.id as text) as id, j.idempotency_key as key, j.unique_key, j.type, j.max_attempts,
       cast(extract(epoch from j.created_at) as float8) as created_at,
       (p.id is not null)::int + (l.id is not null)::int + (f.id is not null)::int as places,
       coalesce(f.status,
                case when l.id is not null then 'processing' when p.id is not null then 'pending' end) as status,
       coalesce(f.attempts, l.attempt, p.attempts) as attempts,
       coalesce(f.token, l.token, p.token) as token,
       cast(extract(epoch from f.started_at) as float8) as started_at,
       cast(extract(epoch from f.finished_at) as float8) as finished_at,
       cast(f.result ->> 'token' as bigint) as result_token,
       cast(j.payload ->> 'script' as text) as script,
       cast(j.payload ->> 'key' as text) as payload_key
  from fencepost.jobs j
  left join fencepost.pending p on p.id = j.id
  left join fencepost.leases l on l.id = j.id
  left join fencepost.finished f on f.id = j.id
"""
_ATTEMPTS = """
select cast(id as text) as id, token, attempt, outcome, cast(extract(epoch from started_at) as float8) as started_at,
       cast(extract(epoch from ended_at) as float8) as ended_at, coalesce(error_type, '') as error_type,
       left(coalesce(error, ''), 200) as error
  from fencepost.attempts
"""
_ORPHANS = """
select cast(id as text)
  from (select id from fencepost.pending union all select id from fencepost.leases
        union all select id from fencepost.finished) place
 where not exists (select from fencepost.jobs j where j.id = place.id)
"""


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job, from the tables of the database."""

    id: str
    key: str | None
    unique_key: str | None = None
    type: str = "play"
    max_attempts: int = 100
    created_at: float = 0.0
    places: int = 1
    """In how many of pending, leases and finished it is."""
    status: str | None = "completed"
    attempts: int | None = 1
    token: int | None = 1
    started_at: float | None = None
    finished_at: float | None = None
    result_token: int | None = None
    script: str | None = None
    payload_key: str | None = None


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that did not succeed, from the database."""

    id: str
    token: int
    attempt: int
    outcome: str
    started_at: float = 0.0
    ended_at: float = 0.0
    error_type: str = ""
    error: str = ""


class Probe(msgspec.Struct, frozen=True):
    """Something that was tried at the end, and what was wrong with it."""

    name: str
    said: str
    """What has to hold, in words."""
    looked_at: int
    offenders: tuple[str, ...] = ()


class Evidence(msgspec.Struct, kw_only=True):
    """The whole of it."""

    submissions: list[Submission]
    attempts: list[AttemptRecord]
    jobs: list[JobRow]
    attempt_rows: list[AttemptRow]
    orphans: list[str] = []
    effects: list[tuple[str, int]] = []
    """Job and token of each."""
    orders: list[str] = []
    lease_seconds: float = 2.0
    wall_offset: float = 0.0
    """What to add to monotonic time to get the database's."""
    audits: int = 0
    unbalanced: list[str] = []
    """Snapshots in which jobs weren't pending + leases + finished, or in which two jobs held one unique key."""
    probes: list[Probe] = []


async def read_database(connection: asyncpg.Connection[Any]) -> dict[str, Any]:
    """The database's part, in one snapshot."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        return {
            "jobs": [JobRow(**dict(row)) for row in await connection.fetch(_JOBS, timeout=120)],
            "attempt_rows": [AttemptRow(**dict(row)) for row in await connection.fetch(_ATTEMPTS, timeout=120)],
            "orphans": [row[0] for row in await connection.fetch(_ORPHANS, timeout=120)],
            "effects": [
                (str(row["job"]), row["token"]) for row in await connection.fetch("select * from chaos.effects")
            ],
            "orders": [row["key"] for row in await connection.fetch("select key from chaos.orders")],
        }


async def gather(folder: Path, connection: asyncpg.Connection[Any], **seen: Any) -> Evidence:
    """Put it together."""
    return Evidence(
        submissions=read_submissions(folder),
        attempts=read_attempts(folder),
        **await read_database(connection),
        **seen,
    )
