"""Lists of jobs: newest first, a page at a time, never more work than a page is worth."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from fencepost.domain.fields import check_queue, check_tags
from fencepost.domain.ids import first_id_at
from fencepost.domain.job import Job, Status
from fencepost.errors import InvalidJob, QueueNotFound
from fencepost.store.database import Database, Querier
from fencepost.store.jobs import job_of_row
from fencepost.store.querying import Row
from fencepost.store.queues import Queues

SCAN_ROWS = 5_000
"""How many jobs one page may look at."""
PAGE_BYTES = 4 << 20
"""How large the payloads, results and metadata of one page may be; a little more is read, some jobs at a time."""
READ_JOBS = 8
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
    tag: str | None = None
    """A job that has this tag, among others perhaps."""
    since: datetime | None = None
    until: datetime | None = None


class Page(msgspec.Struct, frozen=True):
    """Some jobs, and where to go on: None when there are no more."""

    jobs: list[Job]
    next_before: UUID | None


class Places(msgspec.Struct, frozen=True):
    """The ids of some jobs with their queues', and where to go on: None when there are no more."""

    found: list[tuple[UUID, int]]
    next_before: UUID | None


class Listing:
    """Reads lists of the jobs of one schema."""

    def __init__(self, database: Database, queues: Queues) -> None:
        self._database = database
        self._queues = queues

    async def page(self, which: Filter, *, limit: int, before: UUID | None = None, payloads: bool = True) -> Page:
        """
        Read up to *limit* jobs older than *before*, with what may be large of them (payload, result, metadata) or not.

        A page that isn't full may still have a next one: no more than `SCAN_ROWS` jobs are
        looked at for it, and with *payloads* it ends where these add up to `PAGE_BYTES` or a little
        more. The jobs of a page are read in one snapshot.

        Raises InvalidJob for a condition that no job could ever meet.
        """
        check(which)
        try:
            queue_id = None if which.queue is None else await self._queues.id_of(which.queue)
        except QueueNotFound:
            return Page([], None)
        name = statement_for(which.status)
        async with self._database.transaction(snapshot=True) as session:
            places = await find(session, name, which, queue_id=queue_id, limit=limit, before=before)
            ids = [job_id for job_id, _ in places.found]
            if payloads or not ids:
                rows, ids_read = await _read_some(session, ids)
            else:
                rows, ids_read = await session.fetch("read_jobs", ids=ids, payloads=False), len(ids)
        return Page(
            [job_of_row(row) for row in rows], places.next_before if ids_read == len(ids) else ids[ids_read - 1]
        )

    async def named(self, which: Filter, ids: Sequence[UUID], *, payloads: bool = True) -> list[Job]:
        """
        Read those of these jobs that match, newest first, with what may be large of them or not.

        Raises InvalidJob as `page` does.
        """
        check(which)
        found: list[Job] = []
        for start in range(0, len(ids), SCAN_ROWS):
            rows = await self._database.fetch("read_jobs", ids=list(ids[start : start + SCAN_ROWS]), payloads=payloads)
            found += [job_of_row(row) for row in rows]
        return [job for job in found if _matches(job, which)]


async def _read_some(session: Querier, ids: Sequence[UUID]) -> tuple[list[Row], int]:
    """The first of these jobs with their payloads, until those are enough for a page; and how many ids that were."""
    found: list[Row] = []
    size = reached = 0
    while reached < len(ids) and size < PAGE_BYTES:
        rows = await session.fetch("read_jobs", ids=list(ids[reached : reached + READ_JOBS]), payloads=True)
        size += sum(len(row[name] or b"") for row in rows for name in ("payload", "result", "metadata"))
        found += rows
        reached = min(reached + READ_JOBS, len(ids))
    return found, reached


def check(which: Filter) -> None:
    """Raise InvalidJob, naming the condition, for one that no job could ever meet."""
    for name, value in (("type", which.type), ("queue", which.queue)):
        if value is not None:
            try:
                check_queue(value)
            except InvalidJob as error:
                raise InvalidJob(error.message, field=name) from None
    if which.tag is not None:
        try:
            check_tags([which.tag])
        except InvalidJob as error:
            raise InvalidJob(error.message, field="tag") from None
    for name, moment in (("since", which.since), ("until", which.until)):
        if moment is not None and moment.tzinfo is None:
            raise InvalidJob(f"has no time zone: {moment.isoformat()}", field=name)


def _matches(job: Job, which: Filter) -> bool:
    return (
        which.status in (None, job.status)
        and which.type in (None, job.type)
        and which.queue in (None, job.queue)
        and (which.tag is None or which.tag in job.tags)
        and (which.since is None or job.id >= first_id_at(which.since))
        and (which.until is None or job.id < first_id_at(which.until))
    )


def statement_for(status: Status | None) -> str:
    """The statement that lists the jobs in one status, or in any."""
    return _STATEMENTS.get(status, "list_unsuccessful")


async def find(
    session: Querier,
    statement: str,
    which: Filter,
    *,
    queue_id: int | None,
    limit: int,
    before: UUID | None,
    ids: Sequence[UUID] | None = None,
) -> Places:
    """Find up to *limit* jobs that match and are older than *before*, by a statement that looks where they are."""
    values: dict[str, object] = {
        "before": min(before or _LAST_ID, first_id_at(which.until) if which.until is not None else _LAST_ID),
        "not_before": first_id_at(which.since) if which.since is not None else UUID(int=0),
        "type": which.type,
        "queue_id": queue_id,
        "tag": which.tag,
    }
    if ids is not None:
        values["ids"] = ids
    else:
        values |= {"scan_rows": SCAN_ROWS, "page_rows": limit + 1}
    if statement == "list_unsuccessful":
        values["status"] = which.status
    rows = await session.fetch(statement, **values)
    found = [(row["id"], row["queue_id"]) for row in rows if row["matched"]]
    looked_until = next((row["id"] for row in rows if not row["matched"]), None)
    return Places(found[:limit], found[limit - 1][0] if len(found) > limit else looked_until)
