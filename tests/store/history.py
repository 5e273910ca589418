"""A past for a test's database: old ranges with partitions, and jobs that ended in them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from fencepost.domain.ids import first_id_at, new_id
from fencepost.domain.job import NewJob

TABLES = ("jobs", "finished", "attempts")
DAY = timedelta(days=1)


def days_ago(days: float) -> datetime:
    """So long before now."""
    return datetime.now(UTC) - timedelta(days=days)


def id_at(moment: datetime) -> UUID:
    """An id as a client makes one at *moment*."""
    nanoseconds = int(moment.timestamp() * 1000) * 10**6
    return new_id(now_ns=lambda: nanoseconds)


def old_job(days: float, **fields: Any) -> NewJob:
    """A job that was made so many days ago, and is handed in now: due now, three attempts."""
    return NewJob(**{"id": id_at(days_ago(days)), "type": "work", "max_attempts": 3, **fields})


class History:
    """Writes the past."""

    def __init__(self, sql: Any) -> None:
        self._sql = sql
        self.queue_id = 0

    async def begin(self) -> None:
        """Make the queue that everything is in."""
        self.queue_id = await self._sql.fetchval(
            "insert into fencepost.queues (name) values ('default') on conflict (name) do update set name = 'default' "
            "returning id"
        )
        await self._sql.execute("insert into fencepost.lanes values ($1, 0) on conflict do nothing", self.queue_id)

    async def without_ranges(self) -> None:
        """Drop every range, so that a test can make one for now."""
        for start in await self.ranges():
            for table in TABLES:
                await self._sql.execute(f"drop table fencepost.{table}_{start:%Y%m%dt%H%M}")
        await self._sql.execute("delete from fencepost.partitions")

    async def range(self, *, days: float, width: float = 3) -> datetime:
        """Make the partitions of a range that began so many days ago, as ensure_partitions would have."""
        start = days_ago(days).replace(second=0, microsecond=0)
        end = start + timedelta(days=width)
        for table in TABLES:
            part = f"fencepost.{table}_{start:%Y%m%dt%H%M}"
            await self._sql.execute(
                f"create table {part} (like fencepost.{table} including defaults including constraints);"
                f"alter table fencepost.{table} attach partition {part} "
                f"for values from ('{first_id_at(start)}') to ('{first_id_at(end)}')"
            )
        await self._sql.execute("insert into fencepost.partitions (starts_at, ends_at) values ($1, $2)", start, end)
        return start

    async def ended(
        self,
        status: str = "completed",
        *,
        days: float,
        ended: float | None = None,
        count: int = 1,
        key: str | None = None,
        attempts: int = 0,
        payload: str = "{}",
    ) -> list[UUID]:
        """Jobs that were made *days* ago and ended *ended* days ago (at once, when that isn't said)."""
        made = days_ago(days)
        over = days_ago(days if ended is None else ended)
        ids = [id_at(made + timedelta(milliseconds=number)) for number in range(count)]
        async with self._sql.transaction():
            await self._sql.execute(
                "insert into fencepost.jobs "
                "select i, $2, 'work', 0, $5, 3, null, $4, null, $3 from unnest($1::uuid[]) i",
                ids, self.queue_id, made, key, payload,
            )  # fmt: skip
            await self._sql.execute(
                "insert into fencepost.finished "
                "select i, $2, $3, $5::int, $5::int, $4, $4, null from unnest($1::uuid[]) i",
                ids, self.queue_id, status, over, max(1, attempts),
            )  # fmt: skip
            await self._sql.execute(
                "insert into fencepost.attempts "
                "select i, $2, n, n, 'failed', gen_random_uuid(), $3, $3, 'E', 'e', null "
                "from unnest($1::uuid[]) i cross join generate_series(1, $4::int) n",
                ids, self.queue_id, over, attempts,
            )  # fmt: skip
            if key is not None:
                await self._sql.execute(
                    "insert into fencepost.idempotency_keys "
                    "select $2 || case when n = 1 then '' else n::text end, i, $3, 'now', $4 "
                    "from unnest($1::uuid[]) with ordinality u (i, n)",
                    ids, key, self.queue_id, made,
                )  # fmt: skip
        return ids

    async def where(self, table: str, job_id: UUID) -> str | None:
        """The partition that a row is in; None when it isn't there."""
        found = await self._sql.fetchval(
            f"select tableoid::regclass::text from fencepost.{table} where id = $1", job_id
        )
        return None if found is None else str(found).removeprefix("fencepost.")

    async def left(self, ids: list[UUID]) -> set[UUID]:
        """Which of these jobs are still there."""
        rows = await self._sql.fetch("select id from fencepost.jobs where id = any($1)", ids)
        return {row["id"] for row in rows}

    async def ranges(self) -> list[datetime]:
        """When the ranges that have partitions begin."""
        rows = await self._sql.fetch("select starts_at from fencepost.partitions order by 1")
        return [row["starts_at"] for row in rows]

    async def whole(self) -> None:
        """Every job is in exactly one place, and nothing is left of those that are gone."""
        row = await self._sql.fetchrow(
            "select (select count(*) from fencepost.jobs) as jobs, (select count(*) from fencepost.pending) + "
            "(select count(*) from fencepost.leases) + (select count(*) from fencepost.finished) as places, "
            "(select count(*) from fencepost.attempts a where not exists "
            "(select from fencepost.jobs j where j.id = a.id)) as orphans"
        )
        assert row["jobs"] == row["places"], dict(row)
        assert row["orphans"] == 0
