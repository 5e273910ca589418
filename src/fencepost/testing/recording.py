"""Enqueues that store nothing and are remembered: for unit tests, without a database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from fencepost.client.draft import drafted
from fencepost.client.handle import Handle
from fencepost.client.job import Job
from fencepost.client.loops import refuse_in_loop
from fencepost.domain.job import NewJob
from fencepost.testing import matching, seam
from fencepost.testing.matching import Waiting

if TYPE_CHECKING:
    from fencepost.app import Fencepost
    from fencepost.client.producer import Call


class Recording:
    """What an app has enqueued meanwhile."""

    def __init__(self, app: Fencepost) -> None:
        self._app = app
        self._producer = seam.producer_of(app)
        self.jobs: list[NewJob] = []
        """All of it, in order."""

    def enqueued(self, job: Job[..., Any] | None = None, /, *args: Any, **kwargs: Any) -> list[Waiting]:
        """
        What was enqueued, in order.

        Of *job* and with these arguments if they are given; others of its arguments don't matter.
        """
        found = [self._waiting(one) for one in self.jobs]
        if job is None:
            return found
        expected = matching.expected_arguments(job, args, kwargs)
        return [one for one in found if matching.matches(one, job, expected)]

    def assert_enqueued(self, job: Job[..., Any], /, *args: Any, count: int = 1, **kwargs: Any) -> list[Waiting]:
        """
        Raise AssertionError, saying what there is instead, unless *job* was enqueued *count* times.

        With these arguments; those that aren't given don't matter. Returns the jobs.
        """
        return matching.check(self.enqueued(), job, args, kwargs, count)

    def _waiting(self, job: NewJob) -> Waiting:
        return Waiting(
            id=job.id,
            type=job.type,
            arguments=matching.read_arguments(self._app.types.get(job.type), job.payload),
            payload=msgspec.json.decode(job.payload),
            queue=job.queue,
            priority=job.priority,
            run_at=job.run_at,
            delay_seconds=job.delay_seconds,
            tags=job.tags,
            metadata={} if job.metadata is None else msgspec.json.decode(job.metadata),
            idempotency_key=job.idempotency_key,
        )

    def _enqueue_sync(self, calls: Sequence[Call], adapter: object) -> list[Handle[Any]]:
        if adapter is None:
            refuse_in_loop()
        return self._remember(calls)

    def _remember(self, calls: Sequence[Call]) -> list[Handle[Any]]:
        with drafted(self._producer.around, [self._producer._new_job(call) for call in calls]) as jobs:
            self.jobs += jobs
        return [
            Handle(self._producer, job.id, decoder=call.result_decoder) for call, job in zip(calls, jobs, strict=True)
        ]

    async def _enqueue(self, calls: Sequence[Call], adapter: object) -> list[Handle[Any]]:
        return self._remember(calls)


@contextmanager
def recording(app: Fencepost) -> Iterator[Recording]:
    """
    Have *app* store nothing, and remember what would have been: needs no database.

    Arguments and options are checked as always, and functions around enqueues run. There are no keys:
    each enqueue is a new job. What asks a handle about its job still asks the database.
    """
    remembered = Recording(app)
    with seam.enqueueing(app, remembered._enqueue, remembered._enqueue_sync):
        yield remembered
