"""What an app offers to callers, beside its jobs: connections, and ways to look at jobs and change them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar
from uuid import UUID

from fencepost.client.dsn import Dsn
from fencepost.client.handle import Handle
from fencepost.client.options import moment
from fencepost.client.producer import Call, Producer
from fencepost.domain.fields import check_status
from fencepost.domain.ids import parse_id
from fencepost.domain.job import Job as JobRecord
from fencepost.domain.job import Status
from fencepost.errors import InvalidJob
from fencepost.settings import Settings
from fencepost.transactions import adapt

if TYPE_CHECKING:
    from typing import Self, Unpack

    from fencepost.store.bulk import Progress, Selection
    from fencepost.store.bulk import Result as BulkResult

T = TypeVar("T")
PAGE_JOBS = 100


class Access:
    """The part of an app that reads and changes jobs. Its coroutines may be awaited in any event loop."""

    _producer: Producer

    @property
    def settings(self) -> Settings:
        """What the app was given, else the environment's. Raises InvalidSettings."""
        return self._producer.settings

    def use(self, dsn: Dsn | None = None, *, settings: Settings | None = None) -> None:
        """
        Keep this app's jobs somewhere else from now on: at *dsn*, with *settings*; both as `Fencepost` takes them.

        For programs that learn late where that is, and for tests. What any loop has open is left to it: close first.
        """
        self._producer.use(dsn, settings)

    def database_url(self) -> str:
        """
        The address of the database that has the jobs.

        Without a dsn and DATABASE_URL it is the embedded PostgreSQL's, which is started if nobody runs it. Blocks.
        """
        return self._producer.address.find_sync()

    async def open(self) -> None:
        """
        Connect this event loop, and bring the schema up to date.

        Not needed before an enqueue, which connects by itself (and leaves the schema alone).
        Raises DatabaseUnavailable, InvalidSettings and SchemaMismatch.
        """
        await self._producer.clients.get(prepared=True)

    async def close(self) -> None:
        """Close what this event loop has open. The next enqueue connects again. Safe to call twice."""
        await self._producer.close_here()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """
        Run a coroutine of this app's for sync code, and return what it returns.

        It runs in a loop in a thread, which is shared by all sync callers and made when it is first needed. The
        calling thread is blocked. Raises FencepostError where an event loop runs: await there.
        """
        return self._producer.wait(work)

    async def enqueue_many(self, calls: Iterable[Call], *, within: Any = None) -> list[Handle[Any]]:
        """
        Store calls of any jobs, made by `Job.call`, in one transaction: all or none.

        With *within* in the open transaction of that connection. Raises like `Job.enqueue`.
        """
        return await self._producer.enqueue(list(calls), None if within is None else adapt(within))

    def enqueue_many_sync(self, calls: Iterable[Call], *, within: Any = None) -> list[Handle[Any]]:
        """The same for sync callers."""
        return self._producer.enqueue_sync(list(calls), None if within is None else adapt(within))

    def handle(self, job_id: UUID | str) -> Handle[Any]:
        """A handle on a job by its id. Asks nothing; its methods do. Raises InvalidJob for what is no id."""
        return Handle(self._producer, job_id if isinstance(job_id, UUID) else parse_id(str(job_id)))

    async def get(self, job_id: UUID | str) -> JobRecord:
        """The job as it is now. Raises JobNotFound."""
        return await self.handle(job_id).get()

    async def cancel(self, job_id: UUID | str) -> Status:
        """Stop a job; see `Handle.cancel`. Raises JobNotFound and WrongStatus."""
        return await self.handle(job_id).cancel()

    async def retry(self, job_id: UUID | str) -> None:
        """Put a `dead_letter` job back to pending. Raises JobNotFound, WrongStatus and DuplicateJob."""
        await self.handle(job_id).retry()

    async def jobs(
        self,
        *,
        status: Status | str | None = None,
        type: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> AsyncIterator[JobRecord]:
        """
        The jobs that meet every condition given, newest first, read page by page as they are asked for.

        Each page is one snapshot. *since* and *until* bound the creation of a job. Raises InvalidJob.
        """
        which = _selection({"status": status, "type": type, "queue": queue, "tag": tag, "since": since, "until": until})
        listing = (await self._producer.client()).listing
        page = await listing.page(which, limit=PAGE_JOBS)
        while True:
            for job in page.jobs:
                yield job
            if page.next_before is None:
                return
            page = await listing.page(which, limit=PAGE_JOBS, before=page.next_before)

    async def retry_all(
        self, *, spread_seconds: float = 0.0, progress: Progress | None = None, **conditions: Unpack[Conditions]
    ) -> BulkResult:
        """
        Put back the `dead_letter` jobs that meet the conditions, at times drawn from the next *spread_seconds*.

        *conditions* are those of a `Selection`: status, type, queue, tag, since, until, ids, and `everything=True` when
        there are none. *progress* is awaited with the result so far after each batch. Raises InvalidJob.
        """
        bulk = (await self._producer.client()).bulk
        return await bulk.retry(_selection(conditions), spread_seconds=spread_seconds, progress=progress)

    async def cancel_all(self, *, progress: Progress | None = None, **conditions: Unpack[Conditions]) -> BulkResult:
        """Cancel the jobs that meet the conditions, or ask their workers to. The rest is as for `retry_all`."""
        return await (await self._producer.client()).bulk.cancel(_selection(conditions), progress=progress)

    async def delete_all(self, *, progress: Progress | None = None, **conditions: Unpack[Conditions]) -> BulkResult:
        """Remove the ended jobs that meet the conditions, and their history. The rest is as for `retry_all`."""
        return await (await self._producer.client()).bulk.delete(_selection(conditions), progress=progress)


class Conditions(TypedDict, total=False):
    """The members of a `Selection`, as they may be written."""

    status: Status | str | None
    type: str | None
    queue: str | None
    tag: str | None
    since: datetime | None
    until: datetime | None
    ids: Iterable[UUID] | None
    everything: bool


def _selection(conditions: Mapping[str, Any]) -> Selection:
    """Raises InvalidJob for what is no condition, or none of its values."""
    from fencepost.store.bulk import Selection

    values = {name: value for name, value in conditions.items() if value is not None}
    known = Selection.__struct_fields__
    for name in values:
        if name not in known:
            raise InvalidJob(f"is no condition; there are {', '.join(known)}", field=name)
    if "status" in values:
        values["status"] = check_status(values["status"])
    for name in ("since", "until"):
        if name in values:
            values[name] = moment(values[name], name)
    if "ids" in values:
        values["ids"] = tuple(one if isinstance(one, UUID) else parse_id(str(one)) for one in values["ids"])
    return Selection(**values)
