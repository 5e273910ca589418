"""A settlement and a claim in one statement: what each does alone, both or neither."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending
from fencepost.store.jobs import Jobs
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore
from tests.store.support import claim, ended, job, with_token

HOW: dict[str, Any] = {"cursors": {}, "lease_seconds": 60.0, "aging_seconds": 60.0}


async def test_both_are_applied(jobs: Jobs, queues: Queues, worker_store: WorkerStore) -> None:
    await jobs.enqueue([job() for _ in range(5)])
    queue_id = await queues.id_of("default")
    first, second = await claim(worker_store, queue_id, slots=2)
    outcomes = [
        ended(first, Ending.SUCCEEDED, Status.COMPLETED, result=b'{"a":1}'),
        ended(second, Ending.FAILED, Status.PENDING),
    ]
    statuses, claimed = await worker_store.turn(queue_id, outcomes, slots=10, **HOW)
    assert statuses == [Status.COMPLETED, Status.PENDING]
    assert len(claimed.leases) == 3, "what goes back is there for the next claim, not for this one"
    assert second.id not in {lease.id for lease in claimed.leases}
    assert claimed.lanes
    assert claimed.snapshot is not None
    assert bytes((await jobs.get(first.id)).result or b"") == b'{"a": 1}'
    assert (await jobs.get(second.id)).status is Status.PENDING


async def test_a_lost_lease_is_told_and_the_rest_goes_on(jobs: Jobs, queues: Queues, worker_store: WorkerStore) -> None:
    await jobs.enqueue([job() for _ in range(3)])
    queue_id = await queues.id_of("default")
    held, lost = await claim(worker_store, queue_id, slots=2)
    stale = with_token(ended(lost, Ending.SUCCEEDED, Status.COMPLETED), lost.token + 1)
    statuses, claimed = await worker_store.turn(
        queue_id, [stale, ended(held, Ending.SUCCEEDED, Status.COMPLETED)], slots=1, **HOW
    )
    assert statuses == [None, Status.COMPLETED]
    assert len(claimed.leases) == 1
    assert (await jobs.get(lost.id)).status is Status.PROCESSING


async def test_refused_values_undo_both(jobs: Jobs, queues: Queues, worker_store: WorkerStore) -> None:
    await jobs.enqueue([job() for _ in range(3)])
    queue_id = await queues.id_of("default")
    [lease] = await claim(worker_store, queue_id, slots=1)
    bad = ended(lease, Ending.SUCCEEDED, Status.COMPLETED, result=b'"\\u0000"')
    with pytest.raises(asyncpg.DataError):
        await worker_store.turn(queue_id, [bad], slots=10, **HOW)
    counts = await jobs.audit()
    assert (counts["pending"], counts["leases"], counts["finished"]) == (2, 1, 0)


async def test_a_paused_queue_is_settled_and_gives_nothing(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore
) -> None:
    await jobs.enqueue([job() for _ in range(2)])
    queue_id = await queues.id_of("default")
    [lease] = await claim(worker_store, queue_id, slots=1)
    await queues.pause("default")
    statuses, claimed = await worker_store.turn(
        queue_id, [ended(lease, Ending.SUCCEEDED, Status.COMPLETED)], slots=10, **HOW
    )
    assert statuses == [Status.COMPLETED]
    assert (claimed.leases, claimed.lanes) == ([], [])
