"""A database full of jobs that nobody touches, made by the statements in `sql/`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib.resources import files

from fencepost.cli.bench.ground import PARTITION_DAYS, Ground, checkpoint
from fencepost.cli.bench.plan import Plan, Show
from fencepost.errors import FencepostError
from fencepost.settings.pooler import Pooler
from fencepost.store.statements import qualify

SCHEDULED_TIMES, FINISHED_TIMES, DUE_TIMES = 20, 20, 4
"""How many of each there are, in numbers of jobs of the plan."""
UNSERVED = "unserved"
"""The queue of those that are due: nobody claims from it."""

_CHUNK = 50_000
"""Rows a statement: well within the time that one may take."""
_GRID = datetime(2020, 1, 6, tzinfo=UTC)
"""Where the time partitions are counted from."""
_TABLES = ("jobs", "pending", "leases", "finished", "attempts")


def beginning(now: datetime) -> datetime:
    """When the time partition that *now* belongs to begins: the oldest jobs of the crowd are of then."""
    return now - (now - _GRID) % timedelta(days=PARTITION_DAYS)


async def gather(ground: Ground, plan: Plan, show: Show) -> None:
    """
    Fill the tables, as months of use would have left them: vacuumed and analysed.

    Raises FencepostError when a job is not in exactly one place afterwards.
    """
    served = await ground.queues.ensure("default", 0)
    unserved = await ground.queues.ensure(UNSERVED, 0)
    hour, month = timedelta(hours=1), timedelta(days=30)
    await _insert(ground, plan, show, "finished", "crowd_ended", served, plan.jobs * FINISHED_TIMES)
    await _insert(ground, plan, show, "scheduled", "crowd_waiting", served, plan.jobs * SCHEDULED_TIMES, hour, month)
    await _insert(ground, plan, show, "due", "crowd_waiting", unserved, plan.jobs * DUE_TIMES, -hour, hour)
    await _vacuum(ground)
    await checkpoint(ground.database)
    counts = await ground.jobs.audit()
    if counts["jobs"] != sum(count for place, count in counts.items() if place != "jobs"):
        raise FencepostError(f"the filled tables don't add up: {counts}")


async def _vacuum(ground: Ground) -> None:
    """Outside of any transaction, and for as long as it takes."""
    texts = [qualify(f"vacuum (analyze) fencepost.{table}", ground.schema) for table in _TABLES]
    if ground.database.pooler is Pooler.TRANSACTION:
        # Where no session is ours, none of our limits is set outside of a transaction.
        for text in texts:
            await ground.database.execute_alone(text)
        return
    async with ground.database.connection() as connection:
        await connection.execute("set statement_timeout = 0")
        for text in texts:
            await connection.execute(text)
        await connection.execute("reset statement_timeout")


async def _insert(
    ground: Ground, plan: Plan, show: Show, kind: str, name: str, queue_id: int, count: int, *times: timedelta
) -> None:
    source = files(__package__).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
    text = qualify(source, ground.schema)
    until = datetime.now(UTC)
    since = beginning(until)
    with show(f"{kind} jobs", count) as advance:
        async with ground.database.connection() as connection:
            for first in range(1, count + 1, _CHUNK):
                last = min(count, first + _CHUNK - 1)
                await connection.execute(text, since, until, first, last, count, queue_id, plan.payload, *times)
                advance("", last - first + 1)
