"""What a worker does about the hints it hears: claims, stops a handler, keeps a job in mind."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from uuid import UUID

from fencepost.domain.job import Lease
from fencepost.domain.outcome import Ending
from fencepost.errors import DatabaseUnavailable
from fencepost.logger import get_logger
from fencepost.store.workers import WorkerStore
from fencepost.worker.dispatcher import Dispatcher
from fencepost.worker.executor import Executor
from fencepost.worker.watching import Watching

log = get_logger("fencepost.worker")

_LARGEST_ID = (1 << 31) - 1


class Hearing:
    """Hands hints on to those whom they concern."""

    def __init__(self, store: WorkerStore, dispatcher: Dispatcher, executor: Executor, watching: Watching) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._executor = executor
        self._watching = watching
        self._errands: set[asyncio.Task[None]] = set()
        self._cancel_hints: set[UUID] = set()
        """Cancellations heard of while a claim was under way: of jobs that it may bring."""

    def heard(self, hint: str) -> None:
        """Take in a hint (store/hints.py). Raises ValueError for one that can't be read."""
        kind, _, rest = hint.partition(" ")
        if kind == "due":
            self._dispatcher.wake(list(map(_queue_id, rest.split(","))))
        elif kind == "watch":
            self._watching.watch(UUID(rest.partition(" ")[2]))
        elif kind == "cancel":
            queue_id, _, job_id = rest.partition(" ")
            self._cancelled(_queue_id(queue_id), UUID(job_id))

    def begun(self, leases: Collection[Lease]) -> None:
        """A claim brought these, and they are started."""
        if not self._cancel_hints:
            return
        for lease in leases:
            if lease.id in self._cancel_hints:
                self._look_at_cancellation(lease.queue_id, lease.id)
        # Those that are left were for other workers.
        self._cancel_hints.clear()

    def stop(self) -> set[asyncio.Task[None]]:
        """What is still being looked at, for the caller to end."""
        return set(self._errands)

    def _cancelled(self, queue_id: int, job_id: UUID) -> None:
        if any(attempt.lease.id == job_id for attempt in self._executor.running):
            self._look_at_cancellation(queue_id, job_id)
        elif self._dispatcher.is_claiming:
            # The hint may have overtaken the claim's answer, on its other connection.
            self._cancel_hints.add(job_id)

    def _look_at_cancellation(self, queue_id: int, job_id: UUID) -> None:
        errand = asyncio.get_running_loop().create_task(self._cancel(queue_id, job_id), name="fencepost-cancel")
        self._errands.add(errand)
        errand.add_done_callback(self._errands.discard)

    async def _cancel(self, queue_id: int, job_id: UUID) -> None:
        """A hint says that somebody wants a job of ours to stop: ask the database, and do it."""
        try:
            requested = await self._store.cancel_requests(queue_id, [job_id])
        except DatabaseUnavailable:
            # The next renewal of its lease tells the same.
            return
        except Exception:
            log.exception("fault while looking at a cancellation", extra={"job_id": str(job_id)})
            return
        for attempt in [attempt for attempt in self._executor.running if attempt.key in requested]:
            self._executor.interrupt(attempt, Ending.CANCELLED)


def _queue_id(text: str) -> int:
    """Read a queue's id: anybody can send a hint. Raises ValueError for one that no queue can have."""
    queue_id = int(text)
    if not 0 < queue_id <= _LARGEST_ID:
        raise ValueError("no queue has such an id")
    return queue_id
