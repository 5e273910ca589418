"""What an enqueue gives back: a way to ask after the job, wait for it, and stop it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from uuid import UUID

import msgspec

from fencepost.errors import InvalidJob, JobFailed, JobNotFound

if TYPE_CHECKING:
    from fencepost.client.producer import Producer
    from fencepost.domain.job import Job as JobRecord
    from fencepost.domain.job import Status

R_co = TypeVar("R_co", covariant=True)


class Handle(Generic[R_co]):
    """
    One job. Its coroutines may be awaited in any event loop; `Fencepost.wait` runs them for sync code.

    In a caller's transaction the job is there for others, and for this handle, when that commits.
    """

    __slots__ = ("_decoder", "_may_appear", "_producer", "effect", "id")

    def __init__(
        self,
        producer: Producer,
        job_id: UUID,
        *,
        effect: str = "created",
        decoder: Any = None,
        may_appear: bool = False,
    ) -> None:
        self._producer = producer
        self._decoder = decoder
        self._may_appear = may_appear
        self.id = job_id
        self.effect = effect
        """
        What the enqueue did: `created`; `replayed` (its idempotency key had made this job before); and
        by its unique key `skipped` (this job was there), `replaced` (it took another's place) or `rescheduled`
        (this job was there, and was given the new due time).
        """

    def __repr__(self) -> str:
        return f"Handle({str(self.id)!r}, effect={self.effect!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    async def get(self) -> JobRecord:
        """The job as it is now. Raises JobNotFound."""
        client = await self._producer.client()
        try:
            return await client.jobs.get(self.id)
        except JobNotFound as error:
            if self._may_appear:
                raise JobNotFound(
                    f"there is no job {self.id}; it was enqueued in a transaction of yours, so either that isn't "
                    "committed yet, or it was rolled back"
                ) from error
            raise

    async def status(self) -> Status:
        """Where the job stands now. Raises JobNotFound."""
        return (await self.get()).status

    async def result(self, timeout: float | None = None) -> R_co:
        """
        Wait until the job has ended, at most *timeout* seconds, and return what its function returned.

        As the function's annotated type, if the result fits it; else as plain JSON values. None when the result
        couldn't be stored.

        With None there is no limit, and with 0 it looks once. Raises JobFailed when it ended in any other way,
        ResultTimeout (the job goes on), JobNotFound (also when it is removed meanwhile), InvalidJob for another
        *timeout*, and DatabaseUnavailable: errors of the database are waited out, within the limit or for a minute.
        """
        _check_timeout(timeout)
        client = await self._producer.client()
        job = await client.watcher.ended(self.id, timeout, may_appear=self._may_appear)
        if job.status != "completed":
            why = job.last_error or "no reason was recorded"
            raise JobFailed(f"job {self.id} ({job.type}) ended {job.status}: {why}", status=job.status)
        if job.result is None:
            return cast(R_co, None)
        return cast(R_co, self._read(bytes(job.result)))

    def _read(self, raw: bytes) -> Any:
        if self._decoder is not None:
            # A handler may have returned something else than it says, or complete_in been given it.
            with suppress(msgspec.ValidationError):
                return self._decoder.decode(raw)
        return msgspec.json.decode(raw)

    async def cancel(self) -> Status:
        """
        Stop the job: `cancelled` when it was pending, `processing` when its worker was asked to stop.

        Raises JobNotFound, and WrongStatus when it has ended already.
        """
        client = await self._producer.client()
        return await client.jobs.cancel(self.id)

    async def retry(self) -> None:
        """Put the job back to pending if it is `dead_letter`. Raises JobNotFound, WrongStatus and DuplicateJob."""
        client = await self._producer.client()
        await client.jobs.retry(self.id)


def _check_timeout(timeout: object) -> None:
    """Raise InvalidJob for what is no time to wait."""
    if timeout is None:
        return
    # Not a number: compares with nothing, so it is refused here as well.
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidJob(
            f"must be seconds, from 0 (look once) up, or None to wait without a limit, not {timeout!r}", field="timeout"
        )
