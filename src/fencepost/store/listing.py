"""Lists of jobs: newest first, a page at a time, never more work than a page is worth."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from fencepost.domain.ids import first_id_at
from fencepost.domain.job import Job, Status
from fencepost.errors import QueueNotFound
from fencepost.store.database import Database
from fencepost.store.jobs import job_of_row
from fencepost.store.queues import Queues

SCAN_ROWS = 5_000
"""How many jobs one page may look at."""
_LAST_ID = UUID(int=(1 << 128) - 1)

_STATEMENTS = {
    None: "list_all",
    Status.PENDING: "list_pending",
    Status.PROCESSING: "list_processing",
    Status.COMPLETED: "list_completed",
}


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs a list shows. Times bound the creation of a job, from `since` up to but not including `until`."""

    status: Status | None = None
    type: str | None = None
    queue: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class Page(msgspec.Struct, frozen=True):
    """Some jobs, and where to go on: None when there are no more."""

    jobs: list[Job]
    next_before: UUID | None


class Listing:
    """Reads lists of the jobs of one schema."""

    def __init__(self, database: Database, queues: Queues) -> None:
        self._database = database
        self._queues = queues

    async def page(self, which: Filter, *, limit: int, before: UUID | None = None) -> Page:
        """
        Read up to *limit* jobs older than *before*.

        A page that isn't full may still have a next one: no more than `SCAN_ROWS` jobs are
        looked at for it. The jobs of a page are read in one snapshot.
        """
        try:
            queue_id = None if which.queue is None else await self._queues.id_of(which.queue)
        except QueueNotFound:
            return Page([], None)
        values: dict[str, object] = {
            "before": min(before or _LAST_ID, first_id_at(which.until) if which.until is not None else _LAST_ID),
            "not_before": first_id_at(which.since) if which.since is not None else UUID(int=0),
            "scan_rows": SCAN_ROWS,
            "page_rows": limit + 1,
            "type": which.type,
            "queue_id": queue_id,
        }
        name = _STATEMENTS.get(which.status, "list_unsuccessful")
        if name == "list_unsuccessful":
            values["status"] = which.status
        async with self._database.transaction(snapshot=True) as session:
            rows = await session.fetch(name, **values)
            ids = [row["id"] for row in rows if row["matched"]]
            records = await session.fetch("read_jobs", ids=ids[:limit]) if ids else []
        looked_until = next((row["id"] for row in rows if not row["matched"]), None)
        next_before = ids[limit - 1] if len(ids) > limit else looked_until
        return Page([job_of_row(row) for row in records], next_before)
