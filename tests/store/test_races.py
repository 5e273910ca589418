"""
Two operations on one job at one moment, in each order.

One of the two is held inside a transaction of its own; that the other waits for it is
read from pg_stat_activity. Then the first commits, or rolls back.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, NamedTuple, cast

import pytest

from fencepost.domain.job import Lease, Status
from fencepost.domain.outcome import Ending
from fencepost.errors import WrongStatus
from fencepost.store.database import HOT_SESSION, Database, Querier
from fencepost.store.jobs import Jobs
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore

from .support import Connection, claim, completed, ended, expire, job, waits_for_a_lock

pytestmark = pytest.mark.anyio


class Rollback(Exception):
    """Ends a held transaction without committing it."""


class Held:
    """One operation inside an open transaction, until it is told how to end."""

    def __init__(self, database: Database) -> None:
        self._transaction = database.transaction()

    async def begin(self) -> Querier:
        return await self._transaction.__aenter__()

    async def commit(self) -> None:
        await self._transaction.__aexit__(None, None, None)

    async def roll_back(self) -> None:
        with suppress(Rollback):
            await self._transaction.__aexit__(Rollback, Rollback(), None)

    async def end(self, *, commit: bool) -> None:
        await (self.commit() if commit else self.roll_back())


def as_store(session: Querier) -> WorkerStore:
    """A worker whose statements run in this transaction."""
    return WorkerStore(cast(Database, session), uuid.uuid4())


class Ground(NamedTuple):
    """What a race is run on."""

    jobs: Jobs
    store: WorkerStore
    sql: Connection
    held: Held
    queue_id: int

    async def leased(self, *, expired: bool = False, max_attempts: int = 3) -> Lease:
        await self.jobs.enqueue([job(max_attempts=max_attempts)])
        [lease] = await claim(self.store, self.queue_id)
        if expired:
            await expire(self.sql, lease.id)
        return lease

    async def status(self, lease: Lease) -> Status:
        return (await self.jobs.get(lease.id)).status

    async def consistent(self) -> None:
        counts = await self.jobs.audit()
        assert counts["jobs"] == counts["pending"] + counts["leases"] + counts["finished"]


@pytest.fixture
async def ground(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection, hot_database: Database
) -> AsyncIterator[Ground]:
    queue_id = await queues.ensure("default", 0)
    ground = Ground(jobs, worker_store, sql, Held(hot_database), queue_id)
    yield ground
    await ground.consistent()


def in_background(work: Any) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work)


async def extension(ground: Ground, lease: Lease) -> str:
    """What a renewal of this lease comes to."""
    before = (await ground.jobs.get(lease.id)).locked_until
    answer = await ground.store.extend(ground.queue_id, [(lease.id, lease.token)], lease_seconds=3_600)
    after = (await ground.jobs.get(lease.id)).locked_until
    assert (before != after) is any(not one.busy for one in answer)
    return "lost" if not answer else "busy" if answer[0].busy else "renewed"


def cancellation(ground: Ground, job_id: uuid.UUID) -> dict[str, object]:
    return {"id": job_id, "queue_id": ground.queue_id, "channel": "x", "hint": "cancel"}


@pytest.mark.parametrize("commit", [True, False])
async def test_cancel_comes_while_a_claim_is_under_way(ground: Ground, commit: bool) -> None:
    made = job()
    await ground.jobs.enqueue([made])
    leases = await claim(as_store(await ground.held.begin()), ground.queue_id)
    assert len(leases) == 1
    cancel = in_background(ground.jobs.cancel(made.id))
    await waits_for_a_lock(ground.sql)
    await ground.held.end(commit=commit)
    assert await cancel is (Status.PROCESSING if commit else Status.CANCELLED)
    now = await ground.jobs.get(made.id)
    assert now.status is (Status.PROCESSING if commit else Status.CANCELLED)
    assert (now.cancel_requested_at is not None) is commit


@pytest.mark.parametrize("commit", [True, False])
async def test_a_claim_comes_while_a_cancel_is_under_way(ground: Ground, commit: bool) -> None:
    made = job()
    await ground.jobs.enqueue([made])
    rows = await (await ground.held.begin()).fetch("cancel", **cancellation(ground, made.id))
    assert rows[0]["effect"] == "cancelled"
    assert await claim(ground.store, ground.queue_id) == [], "it doesn't wait"
    await ground.held.end(commit=commit)
    assert len(await claim(ground.store, ground.queue_id)) == (0 if commit else 1)


@pytest.mark.parametrize("commit", [True, False])
async def test_recovery_comes_while_a_late_settlement_is_under_way(ground: Ground, commit: bool) -> None:
    lease = await ground.leased(expired=True)
    session = as_store(await ground.held.begin())
    assert await session.settle(ground.queue_id, [completed(lease)]) == [Status.COMPLETED]
    recovery = await ground.store.recover(ground.queue_id, after=None, max_rows=10)
    assert recovery.jobs == []
    await ground.held.end(commit=commit)
    # The next sweep begins where this one says it got to. If the settlement came to nothing, the lease is still there.
    following = await ground.store.recover(ground.queue_id, after=recovery.seen_at, max_rows=10)
    assert following.jobs == ([] if commit else [(lease.id, 1, Status.PENDING)])
    assert await ground.status(lease) is (Status.COMPLETED if commit else Status.PENDING)


async def test_a_full_sweep_does_not_get_past_a_lease_that_somebody_holds(ground: Ground) -> None:
    leases = [await ground.leased() for _ in range(5)]
    for number, lease in enumerate(leases):
        await ground.sql.execute(
            "update fencepost.leases set started_at = now() - interval '1 hour', "
            "locked_until = now() - interval '1 minute' + $2 * interval '1 second' where id = $1",
            lease.id,
            number,
        )
    session = as_store(await ground.held.begin())
    await session.settle(ground.queue_id, [completed(leases[1])])
    recovery = await ground.store.recover(ground.queue_id, after=None, max_rows=2)
    assert [job_id for job_id, _, _ in recovery.jobs] == [leases[0].id, leases[2].id]
    await ground.held.roll_back()
    following = await ground.store.recover(ground.queue_id, after=recovery.last_locked_until, max_rows=10)
    assert {job_id for job_id, _, _ in following.jobs} == {leases[1].id, leases[3].id, leases[4].id}


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("ending", [Ending.SUCCEEDED, Ending.FAILED])
async def test_a_settlement_comes_while_recovery_is_under_way(ground: Ground, ending: Ending, commit: bool) -> None:
    lease = await ground.leased(expired=True)
    recovery = await as_store(await ground.held.begin()).recover(ground.queue_id, after=None, max_rows=10)
    assert len(recovery.jobs) == 1
    outcome = completed(lease) if ending is Ending.SUCCEEDED else ended(lease, ending, Status.DEAD_LETTER)
    settle = in_background(ground.store.settle(ground.queue_id, [outcome]))
    await waits_for_a_lock(ground.sql)
    await ground.held.end(commit=commit)
    assert await settle == [None if commit else outcome.status]
    assert await ground.status(lease) is (Status.PENDING if commit else outcome.status)


@pytest.mark.parametrize("commit", [True, False])
async def test_two_recoverers(ground: Ground, commit: bool) -> None:
    lease = await ground.leased(expired=True, max_attempts=1)
    first = await as_store(await ground.held.begin()).recover(ground.queue_id, after=None, max_rows=10)
    assert first.jobs == [(lease.id, 1, Status.DEAD_LETTER)]
    second = await ground.store.recover(ground.queue_id, after=None, max_rows=10)
    assert second.jobs == [], "it doesn't wait"
    await ground.held.end(commit=commit)
    third = await ground.store.recover(ground.queue_id, after=second.seen_at, max_rows=10)
    assert len(third.jobs) == (0 if commit else 1)
    assert await ground.status(lease) is Status.DEAD_LETTER
    assert len(await ground.jobs.attempts(lease.id)) == 1


@pytest.mark.parametrize("commit", [True, False])
async def test_an_extension_comes_while_recovery_is_under_way(ground: Ground, commit: bool) -> None:
    lease = await ground.leased(expired=True)
    await as_store(await ground.held.begin()).recover(ground.queue_id, after=None, max_rows=10)
    assert await extension(ground, lease) == "busy", "it doesn't wait"
    await ground.held.end(commit=commit)
    assert await extension(ground, lease) == ("lost" if commit else "renewed")
    assert await ground.status(lease) is (Status.PENDING if commit else Status.PROCESSING)


@pytest.mark.parametrize("commit", [True, False])
async def test_recovery_comes_while_an_extension_is_under_way(ground: Ground, commit: bool) -> None:
    lease = await ground.leased(expired=True)
    session = as_store(await ground.held.begin())
    assert await session.extend(ground.queue_id, [(lease.id, lease.token)], lease_seconds=60)
    first = await ground.store.recover(ground.queue_id, after=None, max_rows=10)
    assert first.jobs == []
    await ground.held.end(commit=commit)
    second = await ground.store.recover(ground.queue_id, after=first.seen_at, max_rows=10)
    assert len(second.jobs) == (0 if commit else 1)


@pytest.mark.parametrize("commit", [True, False])
async def test_an_extension_comes_while_a_settlement_is_under_way(ground: Ground, commit: bool) -> None:
    lease = await ground.leased()
    await as_store(await ground.held.begin()).settle(ground.queue_id, [completed(lease)])
    assert await extension(ground, lease) == "busy", "it doesn't wait"
    await ground.held.end(commit=commit)
    assert await extension(ground, lease) == ("lost" if commit else "renewed")


@pytest.mark.parametrize("commit", [True, False])
async def test_a_settlement_comes_while_an_extension_is_under_way(ground: Ground, commit: bool) -> None:
    lease = await ground.leased()
    await as_store(await ground.held.begin()).extend(ground.queue_id, [(lease.id, lease.token)], lease_seconds=600)
    settle = in_background(ground.store.settle(ground.queue_id, [completed(lease)]))
    await waits_for_a_lock(ground.sql)
    await ground.held.end(commit=commit)
    assert await settle == [Status.COMPLETED]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(
    ("ending", "to", "if_asked"),
    [
        (Ending.SUCCEEDED, Status.COMPLETED, Status.COMPLETED),
        (Ending.FAILED, Status.PENDING, Status.CANCELLED),
        (Ending.RELEASED, Status.PENDING, Status.CANCELLED),
        (Ending.FAILED, Status.DEAD_LETTER, Status.DEAD_LETTER),
        (Ending.PERMANENT, Status.FAILED, Status.FAILED),
    ],
)
async def test_a_settlement_comes_while_a_cancel_is_under_way(
    ground: Ground, ending: Ending, to: Status, if_asked: Status, commit: bool
) -> None:
    lease = await ground.leased()
    rows = await (await ground.held.begin()).fetch("cancel", **cancellation(ground, lease.id))
    assert rows[0]["effect"] == "requested"
    settle = in_background(ground.store.settle(ground.queue_id, [ended(lease, ending, to)]))
    await waits_for_a_lock(ground.sql)
    await ground.held.end(commit=commit)
    expected = if_asked if commit else to
    assert await settle == [expected]
    assert await ground.status(lease) is expected
    # Given back is given back, whichever of the two came first.
    assert (await ground.jobs.get(lease.id)).attempts == (0 if ending is Ending.RELEASED else 1)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("to", [Status.COMPLETED, Status.PENDING, Status.DEAD_LETTER])
async def test_a_cancel_comes_while_a_settlement_is_under_way(ground: Ground, to: Status, commit: bool) -> None:
    lease = await ground.leased()
    outcome = completed(lease) if to is Status.COMPLETED else ended(lease, Ending.FAILED, to)
    await as_store(await ground.held.begin()).settle(ground.queue_id, [outcome])
    cancel = in_background(ground.jobs.cancel(lease.id))
    await waits_for_a_lock(ground.sql)
    await ground.held.end(commit=commit)
    if not commit:
        assert await cancel is Status.PROCESSING
    elif to is Status.PENDING:
        assert await cancel is Status.CANCELLED
        assert await ground.status(lease) is Status.CANCELLED
    else:
        with pytest.raises(WrongStatus, match=f"is {to} already"):
            await cancel
        assert await ground.status(lease) is to


@pytest.mark.parametrize("commit", [True, False])
async def test_two_retries_by_hand(ground: Ground, commit: bool) -> None:
    lease = await ground.leased(max_attempts=1)
    await ground.store.settle(ground.queue_id, [ended(lease, Ending.FAILED, Status.DEAD_LETTER)])
    session = await ground.held.begin()
    assert await session.fetch("retry", id=lease.id, queue_id=ground.queue_id, channel="x", hint="due 1")
    second = in_background(ground.jobs.retry(lease.id))
    await waits_for_a_lock(ground.sql)
    await ground.held.end(commit=commit)
    if commit:
        with pytest.raises(WrongStatus, match="is pending; only a dead_letter job"):
            await second
    else:
        await second
    assert await ground.status(lease) is Status.PENDING


async def test_two_claims_hand_out_different_jobs(ground: Ground) -> None:
    made = [job() for _ in range(4)]
    await ground.jobs.enqueue(made)
    first = await claim(as_store(await ground.held.begin()), ground.queue_id, slots=2)
    second = await claim(ground.store, ground.queue_id, slots=4)
    assert {lease.id for lease in first} == {one.id for one in made[:2]}
    assert {lease.id for lease in second} == {one.id for one in made[2:]}
    await ground.held.roll_back()
    assert {lease.id for lease in await claim(ground.store, ground.queue_id, slots=4)} == {one.id for one in made[:2]}


async def test_what_a_claim_could_not_have_bounds_its_cursor(ground: Ground) -> None:
    made = [job() for _ in range(4)]
    await ground.jobs.enqueue(made)
    held = await claim(as_store(await ground.held.begin()), ground.queue_id, slots=2)
    claimed = await ground.store.claim(ground.queue_id, slots=5, cursors={}, lease_seconds=60, aging_seconds=60)
    assert claimed.lanes[0].rest is not None
    assert claimed.lanes[0].rest.id == held[0].id
    await ground.held.commit()
    claimed = await ground.store.claim(ground.queue_id, slots=5, cursors={}, lease_seconds=60, aging_seconds=60)
    assert claimed.lanes[0].rest is None


async def test_an_extension_renews_around_what_somebody_holds(ground: Ground, database_url: str) -> None:
    """
    The settler writes in the order attempts ended, the lease keeper renews in the order they started.

    If both waited for what the other has, they would deadlock; a renewal never waits.
    """
    await ground.jobs.enqueue([job() for _ in range(3)])
    leases = sorted(await claim(ground.store, ground.queue_id, slots=3), key=lambda lease: lease.id)
    other = Database(database_url, connections=1, session=HOT_SESSION)
    await other.open()
    keeper = WorkerStore(other, uuid.uuid4())
    holder = ground.sql.transaction()
    await holder.start()
    await ground.sql.execute("select from fencepost.leases where id = $1 for update", leases[1].id)
    settle = in_background(ground.store.settle(ground.queue_id, [completed(lease) for lease in leases[:2]]))
    await waits_for_a_lock(ground.sql)
    held = [(lease.id, lease.token) for lease in leases[::-1]]
    answer = {one.id: one.busy for one in await keeper.extend(ground.queue_id, held, lease_seconds=60)}
    assert answer == {leases[0].id: True, leases[1].id: True, leases[2].id: False}
    await holder.commit()
    assert await settle == [Status.COMPLETED] * 2
    assert [one.id for one in await keeper.extend(ground.queue_id, held, lease_seconds=60)] == [leases[2].id]
    await other.close()


async def test_cancelling_around_a_claim_and_a_completion_tells_the_truth(ground: Ground, queues: Queues) -> None:
    """Random offsets, many rounds: the answer to a cancel and where the job ends always agree."""
    seen: set[tuple[str, Status]] = set()

    async def run(queue_id: int, job_id: uuid.UUID) -> Status | None:
        await asyncio.sleep(random.uniform(0, 0.003))
        leases = await claim(ground.store, queue_id)
        if not leases:
            return None
        await asyncio.sleep(random.uniform(0, 0.003))
        outcome = random.choice([completed(leases[0]), ended(leases[0], Ending.FAILED, Status.PENDING)])
        [status] = await ground.store.settle(queue_id, [outcome])
        return status

    async def stop(job_id: uuid.UUID) -> str:
        await asyncio.sleep(random.uniform(0, 0.006))
        try:
            return str(await ground.jobs.cancel(job_id))
        except WrongStatus:
            return "refused"

    async def rounds(queue: str) -> None:
        queue_id = await queues.ensure(queue, 0)
        for _ in range(60):
            made = job(queue=queue)
            await ground.jobs.enqueue([made])
            settled, answer = await asyncio.gather(run(queue_id, made.id), stop(made.id))
            now = (await ground.jobs.get(made.id)).status
            seen.add((answer, now))
            if answer == "cancelled":
                assert now is Status.CANCELLED
                assert settled in (None, Status.PENDING)
            elif answer == "processing":
                assert now is settled
                assert now in (Status.COMPLETED, Status.CANCELLED), "it never goes back to pending"
            else:
                assert now is settled is Status.COMPLETED

    await asyncio.gather(*(rounds(f"q{number}") for number in range(4)))
    assert len(seen) >= 3, seen
