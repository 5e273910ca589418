"""What the tests of the store share: making jobs, claiming them, and looking at the tables as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from fencepost.domain.ids import new_id
from fencepost.domain.job import Lease, NewJob, Status
from fencepost.domain.outcome import Ending, Outcome
from fencepost.store.claims import Position
from fencepost.store.workers import WorkerStore
from tests.patience import limit

TABLES = ("jobs", "pending", "leases", "finished", "attempts", "idempotency_keys", "unique_keys")
"""Everything that an operation on a job may touch."""

Connection = Any
"""An asyncpg connection of the test's own, with PostgreSQL's default settings."""


def job(**fields: Any) -> NewJob:
    """A job to enqueue; due now, three attempts, unless *fields* say otherwise."""
    return NewJob(**{"id": new_id(), "type": "work", "max_attempts": 3, **fields})


async def claim(
    store: WorkerStore,
    queue_id: int,
    *,
    slots: int = 1,
    cursors: dict[int, Position] | None = None,
    lease_seconds: float = 60.0,
    aging_seconds: float = 60.0,
    contended: bool = False,
) -> list[Lease]:
    """Claim, and return only the leases."""
    claimed = await store.claim(
        queue_id,
        slots=slots,
        cursors=cursors or {},
        lease_seconds=lease_seconds,
        aging_seconds=aging_seconds,
        contended=contended,
    )
    return claimed.leases


def ended(lease: Lease, ending: Ending, status: Status, **fields: Any) -> Outcome:
    """An outcome for *lease*, as the worker would write it."""
    if ending is not Ending.SUCCEEDED:
        fields.setdefault("error_type", "Boom")
        fields.setdefault("error", "it broke")
    return Outcome(id=lease.id, queue_id=lease.queue_id, token=lease.token, ending=ending, status=status, **fields)


def completed(lease: Lease, result: bytes | None = None) -> Outcome:
    """The outcome of a handler that returned."""
    return ended(lease, Ending.SUCCEEDED, Status.COMPLETED, result=result)


def with_token(outcome: Outcome, token: int) -> Outcome:
    """The same outcome, from an attempt with another token."""
    return msgspec.structs.replace(outcome, token=token)


async def expire(sql: Connection, job_id: UUID) -> None:
    """Let the lease of a job run out: it began an hour ago and ended a second ago."""
    await sql.execute(
        "update fencepost.leases set started_at = now() - interval '1 hour', "
        "locked_until = now() - interval '1 second' where id = $1",
        job_id,
    )


async def contents(sql: Connection) -> dict[str, list[str]]:
    """Every row of every table that operations on jobs may touch."""
    return {
        table: [row[0] for row in await sql.fetch(f"select t::text from fencepost.{table} t order by 1")]
        for table in TABLES
    }


async def until(condition: Callable[[], Awaitable[bool]], *, seconds: float = 10.0) -> None:
    """Ask again and again until *condition* holds. Raises TimeoutError when it never does."""
    async with asyncio.timeout(limit(seconds)):
        while not await condition():  # noqa: ASYNC110 - what is waited for happens in the server
            await asyncio.sleep(0.002)


async def waits_for_a_lock(sql: Connection, *, count: int = 1) -> None:
    """Return once *count* of this database's sessions wait for a lock: the signal that an interleaving stands."""

    async def waiting() -> bool:
        # Inside a transaction the view would stay as it was at the first look.
        await sql.execute("select pg_stat_clear_snapshot()")
        found = await sql.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )
        return bool(found >= count)

    await until(waiting)


async def connect(url: str, **settings: str) -> Connection:
    """A plain connection; close it yourself."""
    return await asyncpg.connect(url, server_settings=settings)
