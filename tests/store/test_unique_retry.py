"""A dead letter is put back only while no other job holds its unique key, and holds it again then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from fencepost.domain.job import NewJob, Status, UniqueMode, UniqueUntil
from fencepost.errors import DuplicateJob, WrongStatus
from fencepost.store.bulk import Bulk, Result, Selection
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.queues import Queues
from fencepost.store.retention import Keep, Retention
from fencepost.store.workers import WorkerStore

from .support import Connection, claim, connect, contents, waits_for_a_lock
from .test_unique import STANDS, STATES, bring, one, store, unique

pytestmark = pytest.mark.anyio

EVERYTHING = Selection(everything=True)


@pytest.fixture
async def bulk(database: Database, queues: Queues) -> AsyncIterator[Bulk]:
    hints = Hints(database)
    yield Bulk(database, queues, hints)
    await hints.close()


async def over(sql: Connection) -> None:
    """Let all periods be over."""
    await sql.execute("update fencepost.unique_keys set expires_at = now() - interval '1 s' where until = 'period'")


async def second_holder(state: str, until: UniqueUntil, jobs: Jobs, worker_store: WorkerStore, sql: Connection) -> Any:
    """A dead letter, and another job in *state* that has taken its key."""
    first = await bring("dead_letter", jobs, worker_store, unique=unique(until))
    await over(sql)
    return first, await bring(state, jobs, worker_store, unique=unique(until))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("until", UniqueUntil)
async def test_it_is_refused_while_another_job_stands_in_the_way(
    jobs: Jobs, worker_store: WorkerStore, sql: Connection, until: UniqueUntil, state: str
) -> None:
    first, second = await second_holder(state, until, jobs, worker_store, sql)
    before = await contents(sql)
    if state in STANDS[until]:
        with pytest.raises(DuplicateJob, match=f"job {second.id} holds the unique key of job {first.id}"):
            await jobs.retry(first.id)
        assert await contents(sql) == before
    else:
        await jobs.retry(first.id)
        assert (await jobs.get(first.id)).status is Status.PENDING
        [answer] = await jobs.enqueue([one(unique=unique(until))])
        # A period counts from the creation of the job that began it, which another's retry doesn't repeat.
        assert answer.effect == ("skipped" if until is not UniqueUntil.PERIOD else "created")
        assert until is UniqueUntil.PERIOD or answer.id == first.id


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("until", UniqueUntil)
async def test_many_at_a_time_get_the_same_verdict(
    jobs: Jobs, bulk: Bulk, worker_store: WorkerStore, sql: Connection, until: UniqueUntil, state: str
) -> None:
    first, second = await second_holder(state, until, jobs, worker_store, sql)
    before = await contents(sql)
    result = await bulk.retry(Selection(ids=(first.id,)))
    if state in STANDS[until]:
        assert result == Result(matched=1, skipped=1)
        assert await contents(sql) == before
    else:
        assert result == Result(matched=1, changed=1)
        held_by = await sql.fetchval("select job_id from fencepost.unique_keys")
        assert held_by == first.id != second.id


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
@pytest.mark.parametrize("pruned", [False, True], ids=["", "without a row"])
@pytest.mark.parametrize("until", UniqueUntil)
async def test_it_holds_its_own_key_again(
    jobs: Jobs, bulk: Bulk, worker_store: WorkerStore, sql: Connection, until: UniqueUntil, pruned: bool, many: bool
) -> None:
    first = await bring("dead_letter", jobs, worker_store, unique=unique(until))
    if pruned:
        await sql.execute("delete from fencepost.unique_keys")
    if many:
        assert await bulk.retry(EVERYTHING) == Result(matched=1, changed=1)
    else:
        await jobs.retry(first.id)
    [answer] = await jobs.enqueue([one(unique=unique(until))])
    assert (answer.id, answer.effect) == (first.id, "skipped")
    await over(sql)
    [lease] = await claim(worker_store, 1)
    assert lease.id == first.id
    [answer] = await jobs.enqueue([one(unique=unique(until))])
    assert answer.effect == ("skipped" if pruned or until is UniqueUntil.FINISHED else "created")


async def test_keys_of_other_types_and_jobs_without_one_do_not_matter(
    jobs: Jobs, bulk: Bulk, worker_store: WorkerStore
) -> None:
    first = await bring("dead_letter", jobs, worker_store)
    plain = await bring("dead_letter", jobs, worker_store, unique=None)
    await jobs.enqueue([one(type="other"), one(unique=unique(key="k2"))])
    assert await bulk.retry(EVERYTHING) == Result(matched=2, changed=2)
    assert {(await jobs.get(job.id)).status for job in (first, plain)} == {Status.PENDING}


@pytest.mark.parametrize("until", UniqueUntil)
@pytest.mark.parametrize("pruned", [False, True], ids=["", "without rows"])
async def test_of_several_with_one_key_one_is_put_back(
    jobs: Jobs, bulk: Bulk, worker_store: WorkerStore, sql: Connection, until: UniqueUntil, pruned: bool
) -> None:
    dead = []
    for key in ("a", "b", "a", "b", "b"):
        await over(sql)
        dead.append(await bring("dead_letter", jobs, worker_store, unique=unique(until, key=key)))
    await over(sql)
    if pruned:
        await sql.execute("delete from fencepost.unique_keys")
    result = await bulk.retry(EVERYTHING)
    back = [place for place, job in enumerate(dead) if (await jobs.get(job.id)).status is Status.PENDING]
    if until is UniqueUntil.PERIOD and not pruned:
        assert (result, back) == (Result(matched=5, changed=5), [0, 1, 2, 3, 4]), "a period that is over is over"
    else:
        assert (result, back) == (Result(matched=5, changed=2, skipped=3), [2, 4]), "the newest, which hold the keys"
        assert await bulk.retry(EVERYTHING) == Result(matched=3, skipped=3)
    counts = await jobs.audit()
    assert counts["jobs"] == counts["pending"] + counts["leases"] + counts["finished"] == 5


async def test_the_holder_of_the_key_goes_before_newer_ones(
    jobs: Jobs, bulk: Bulk, worker_store: WorkerStore, sql: Connection
) -> None:
    first = await bring("dead_letter", jobs, worker_store)
    await bring("dead_letter", jobs, worker_store)
    await sql.execute("update fencepost.unique_keys set job_id = $1", first.id)
    assert await bulk.retry(EVERYTHING) == Result(matched=2, changed=1, skipped=1)
    assert (await jobs.get(first.id)).status is Status.PENDING


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("pruned", [False, True], ids=["", "without a row"])
async def test_a_retry_waits_for_an_enqueue_with_its_key(
    jobs: Jobs, worker_store: WorkerStore, sql: Connection, database_url: str, pruned: bool, commit: bool
) -> None:
    """
        retry of A                          enqueue of B
                                            takes the key
        waits for the key's row
                                            commits
        sees that the row is another one,
        looks again: B holds the key
    """  # fmt: skip
    first = await bring("dead_letter", jobs, worker_store)
    if pruned:
        await sql.execute("delete from fencepost.unique_keys")
    other = await connect(database_url)
    transaction = other.transaction()
    await transaction.start()
    [answer] = await store(other, one())
    assert answer.effect == "created"
    waiting = asyncio.ensure_future(jobs.retry(first.id))
    await waits_for_a_lock(sql)
    if commit:
        await transaction.commit()
        with pytest.raises(DuplicateJob, match=str(answer.id)):
            await waiting
    else:
        await transaction.rollback()
        await waiting
    assert (await jobs.get(first.id)).status is (Status.DEAD_LETTER if commit else Status.PENDING)
    holder = answer.id if commit else first.id
    assert await sql.fetchval("select job_id from fencepost.unique_keys") == holder
    await other.close()


@pytest.mark.parametrize("commit", [True, False])
async def test_a_retry_of_many_passes_over_a_key_in_other_hands(
    jobs: Jobs, bulk: Bulk, worker_store: WorkerStore, database_url: str, commit: bool
) -> None:
    first = await bring("dead_letter", jobs, worker_store)
    other = await connect(database_url)
    transaction = other.transaction()
    await transaction.start()
    await store(other, one())

    async def progress(result: Result) -> None:
        """The first batch is through; what was locked is looked at again later."""
        if other.is_in_transaction():
            assert (result.matched, result.changed, result.skipped) == (1, 0, 0)
            await (transaction.commit() if commit else transaction.rollback())

    result = await bulk.retry(EVERYTHING, progress=progress)
    assert result == (Result(matched=1, skipped=1) if commit else Result(matched=1, changed=1))
    assert (await jobs.get(first.id)).status is (Status.DEAD_LETTER if commit else Status.PENDING)
    await other.close()


async def test_a_retry_of_many_leaves_a_key_that_was_taken_while_it_ran(
    jobs: Jobs, bulk: Bulk, worker_store: WorkerStore, sql: Connection, database_url: str
) -> None:
    """
        retry of A and B                    enqueues
                                            one makes the row of A's key, which was removed
        sees B's key free; waits for A's
                                            another takes B's key, commits
                                            the first rolls back
        B's row is another one: passes it
        over; looks again: held
    """  # fmt: skip
    first = await bring("dead_letter", jobs, worker_store, unique=unique(key="a"))
    second = await bring("dead_letter", jobs, worker_store, unique=unique(key="b"))
    await sql.execute("delete from fencepost.unique_keys where key = 'a'")
    other = await connect(database_url)
    transaction = other.transaction()
    await transaction.start()
    await store(other, one(unique=unique(key="a")))
    waiting = asyncio.ensure_future(bulk.retry(EVERYTHING))
    await waits_for_a_lock(sql)
    [answer] = await jobs.enqueue([one(unique=unique(key="b"))])
    assert answer.effect == "created"
    await transaction.rollback()
    assert await waiting == Result(matched=2, changed=1, skipped=1)
    assert [(await jobs.get(job.id)).status for job in (first, second)] == [Status.PENDING, Status.DEAD_LETTER]
    await other.close()


@pytest.mark.parametrize("mode", UniqueMode)
async def test_an_enqueue_waits_for_a_retry_and_meets_its_job(
    jobs: Jobs, worker_store: WorkerStore, database: Database, sql: Connection, mode: UniqueMode
) -> None:
    first = await bring("dead_letter", jobs, worker_store)
    second = one(unique=unique(mode=mode), delay_seconds=60.0)
    async with database.transaction() as session:
        rows = await session.fetch("retry", id=first.id, queue_id=1, channel="c", hint="due 1")
        assert [row["effect"] for row in rows] == ["retried"]
        waiting = asyncio.ensure_future(jobs.enqueue([second]))
        await waits_for_a_lock(sql)
    [answer] = await waiting
    effects = {
        UniqueMode.SKIP: (first.id, "skipped"), UniqueMode.REPLACE: (second.id, "replaced"),
        UniqueMode.EARLIEST: (first.id, "skipped"), UniqueMode.LATEST: (first.id, "rescheduled"),
    }  # fmt: skip
    assert (answer.id, answer.effect) == effects[mode]


async def test_two_dead_letters_of_one_key_are_not_both_put_back(
    jobs: Jobs, worker_store: WorkerStore, database: Database, sql: Connection
) -> None:
    """The key's row names the same job before and after; that it was written in between tells."""
    first = await bring("dead_letter", jobs, worker_store)
    second = await bring("dead_letter", jobs, worker_store)
    async with database.transaction() as session:
        await session.fetch("retry", id=second.id, queue_id=1, channel="c", hint="due 1")
        waiting = asyncio.ensure_future(jobs.retry(first.id))
        await waits_for_a_lock(sql)
    with pytest.raises(DuplicateJob, match=str(second.id)):
        await waiting
    assert (await jobs.get(first.id)).status is Status.DEAD_LETTER


async def test_whatever_happens_at_once_one_job_is_live(
    jobs: Jobs, bulk: Bulk, worker_store: WorkerStore, database: Database, sql: Connection
) -> None:
    """Retries by hand, retries of many, enqueues and retention, all at once, round after round."""
    retention = Retention(database, Keep(by_status={}))
    keys = [f"k{number}" for number in range(4)]
    dead: list[NewJob] = []
    for _ in range(3):
        for key in keys:
            dead.append(await bring("dead_letter", jobs, worker_store, unique=unique(key=key)))
    for round_ in range(15):
        if round_ % 3 == 0:
            await sql.execute("delete from fencepost.unique_keys")

        async def retry(job: NewJob) -> None:
            with suppress(DuplicateJob, WrongStatus):
                await jobs.retry(job.id)

        await asyncio.gather(
            *(retry(job) for job in dead),
            bulk.retry(EVERYTHING),
            bulk.retry(EVERYTHING),
            *(jobs.enqueue([one(unique=unique(key=key))]) for key in keys),
            jobs.enqueue([one(unique=unique(key=key)) for key in reversed(keys)]),
            retention.remove_unique_keys(after=("", ""), rows=100),
        )
        live = await sql.fetch(
            "select j.unique_key, count(*) as jobs from fencepost.pending p join fencepost.jobs j using (id, queue_id) "
            "group by 1 order by 1"
        )
        assert [(row["unique_key"], row["jobs"]) for row in live] == [(key, 1) for key in keys]
        await sql.execute(
            "with gone as (delete from fencepost.pending returning *) insert into fencepost.finished "
            "(id, queue_id, status, attempts, token, finished_at) "
            "select id, queue_id, 'dead_letter', attempts, token, now() from gone"
        )
