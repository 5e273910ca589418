"""A job on its way to the database, as `around_enqueue` functions may still change it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec

from fencepost.client import options
from fencepost.domain.fields import check_max_attempts, check_priority, check_queue
from fencepost.domain.job import NewJob
from fencepost.errors import InvalidJob


class Draft:
    """
    A job that is about to be stored.

    What can be set here is checked when the last function has seen it. The arguments are
    read-only: they fit the function, and should go on doing so.
    """

    def __init__(self, job: NewJob) -> None:
        self._job = job
        self.queue: str = job.queue
        self.priority: int = job.priority
        self.max_attempts: int = job.max_attempts
        self.run_at: datetime | None = job.run_at
        self.delay_seconds: float | None = job.delay_seconds
        self.timeout_seconds: float | None = job.timeout_seconds
        self.idempotency_key: str | None = job.idempotency_key
        self.tags: list[str] = list(job.tags)
        self.metadata: dict[str, Any] = {} if job.metadata is None else msgspec.json.decode(job.metadata)
        self._metadata_before = dict(self.metadata)

    @property
    def id(self) -> UUID:
        """The id that the job will have, unless its key has made it before."""
        return self._job.id

    @property
    def type(self) -> str:
        """The name of its job type."""
        return self._job.type

    @property
    def payload(self) -> Any:
        """What its function will get, as JSON has it; a new copy each time."""
        value = msgspec.json.decode(self._job.payload)
        return MappingProxyType(value) if isinstance(value, Mapping) else value

    def _finished(self) -> NewJob:
        """The job as it is to be stored. Raises InvalidJob."""
        again = options.changed(
            options.Options(), delay=self.delay_seconds, run_at=self.run_at, timeout=self.timeout_seconds,
            tags=self.tags, idempotency_key=self.idempotency_key,
        )  # fmt: skip
        metadata = self._job.metadata
        if self.metadata != self._metadata_before:
            metadata = options.check_metadata(self.metadata)
        return msgspec.structs.replace(
            self._job,
            queue=check_queue(self.queue),
            priority=check_priority(self.priority),
            max_attempts=check_max_attempts(self.max_attempts),
            run_at=again.run_at,
            delay_seconds=again.delay_seconds,
            timeout_seconds=again.timeout_seconds,
            idempotency_key=again.idempotency_key,
            tags=again.tags,
            metadata=metadata,
        )


AroundEnqueue = Callable[[list[Draft]], Iterator[None]]
"""A generator function that yields once: the jobs are stored there."""


@contextmanager
def drafted(around: Sequence[AroundEnqueue], jobs: list[NewJob]) -> Iterator[list[NewJob]]:
    """
    The jobs as the functions *around* leave them, which are entered in their order and left in the reverse.

    They are left when the jobs are stored (in a caller's transaction: not committed yet), or with what
    was raised instead. Raises InvalidJob for what they set.
    """
    if not around:
        yield jobs
        return
    drafts = [Draft(job) for job in jobs]
    with ExitStack() as stack:
        for function in around:
            stack.enter_context(contextmanager(function)(list(drafts)))
        finished = []
        for place, draft in enumerate(drafts):
            try:
                finished.append(draft._finished())
            except InvalidJob as error:
                raise error.at(place) if len(drafts) > 1 else error from None
        yield finished
