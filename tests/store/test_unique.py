"""No second live job with a unique key: where the first one is tells whether it stands in the way."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from fencepost.domain.job import NewJob, Status, Unique, UniqueMode, UniqueUntil
from fencepost.domain.outcome import Ending
from fencepost.errors import KeyConflict
from fencepost.store.database import Database
from fencepost.store.enqueueing import Enqueued, encode_jobs, enqueue_sql, read_answer
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.queues import Queues
from fencepost.store.retention import Keep, Retention
from fencepost.store.workers import WorkerStore

from .support import Connection, claim, completed, connect, contents, ended, job, waits_for_a_lock

pytestmark = pytest.mark.anyio

STATES = ["waiting", "running", "released", "retrying", "completed", "failed", "dead_letter", "cancelled"]
STANDS = {
    UniqueUntil.STARTED: {"waiting", "released"},
    UniqueUntil.FINISHED: {"waiting", "running", "released", "retrying"},
    UniqueUntil.PERIOD: set(STATES),
}
UNSTARTED = {"waiting", "released"}


def unique(until: UniqueUntil = UniqueUntil.FINISHED, mode: UniqueMode = UniqueMode.SKIP, key: str = "k") -> Unique:
    return Unique(key=key, until=until, period_seconds=60.0 if until is UniqueUntil.PERIOD else None, mode=mode)


def one(**fields: Any) -> NewJob:
    return job(**{"unique": unique(), **fields})


async def store(connection: Connection, *jobs: NewJob) -> list[Enqueued]:
    """Enqueue as a foreign connection does, in whatever transaction it is in."""
    sql = enqueue_sql("fencepost").replace(":jobs", "$1")
    return read_answer(await connection.fetchval(sql, encode_jobs(jobs)), jobs)


async def bring(state: str, jobs: Jobs, worker_store: WorkerStore, **fields: Any) -> NewJob:
    """A job with the unique key, brought to *state*."""
    made = one(**fields)
    [stored] = await jobs.enqueue([made])
    assert stored.effect == "created"
    if state == "waiting":
        return made
    if state == "cancelled":
        await jobs.cancel(made.id)
        return made
    [lease] = await claim(worker_store, 1)
    assert lease.id == made.id
    how = {
        "released": (Ending.RELEASED, Status.PENDING),
        "retrying": (Ending.FAILED, Status.PENDING),
        "failed": (Ending.PERMANENT, Status.FAILED),
        "dead_letter": (Ending.FAILED, Status.DEAD_LETTER),
    }
    if state == "completed":
        await worker_store.settle(1, [completed(lease)])
    elif state in how:
        ending, status = how[state]
        await worker_store.settle(1, [ended(lease, ending, status, delay_seconds=60.0)])
    return made


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("until", UniqueUntil)
async def test_where_the_first_one_is_tells_whether_it_stands(
    jobs: Jobs, worker_store: WorkerStore, until: UniqueUntil, state: str
) -> None:
    first = await bring(state, jobs, worker_store, unique=unique(until))
    second = one(unique=unique(until))
    [answer] = await jobs.enqueue([second])
    if state in STANDS[until]:
        assert (answer.id, answer.effect, answer.is_new) == (first.id, "skipped", False)
    else:
        assert (answer.id, answer.effect, answer.is_new) == (second.id, "created", True)
    assert (await jobs.audit())["jobs"] == 1 + answer.is_new
    [third] = await jobs.enqueue([one(unique=unique(until))])
    assert (third.id, third.effect) == (answer.id, "skipped"), "whoever holds the key now stands in the way"


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("until", UniqueUntil)
@pytest.mark.parametrize("mode", [UniqueMode.REPLACE, UniqueMode.EARLIEST, UniqueMode.LATEST])
async def test_only_a_job_that_waits_for_its_first_start_is_touched(
    jobs: Jobs, worker_store: WorkerStore, sql: Connection, until: UniqueUntil, state: str, mode: UniqueMode
) -> None:
    first = await bring(state, jobs, worker_store, unique=unique(until))
    before = await contents(sql)
    second = one(unique=unique(until, mode), delay_seconds=600.0)
    [answer] = await jobs.enqueue([second])
    if state not in STANDS[until]:
        assert (answer.id, answer.effect) == (second.id, "created")
    elif state in UNSTARTED and mode is UniqueMode.REPLACE:
        assert (answer.id, answer.effect) == (second.id, "replaced")
    elif state in UNSTARTED and mode is UniqueMode.LATEST:
        assert (answer.id, answer.effect) == (first.id, "rescheduled")
    else:
        assert (answer.id, answer.effect) == (first.id, "skipped")
        assert await contents(sql) == before


@pytest.mark.parametrize("state", ["waiting", "released"])
async def test_a_replaced_job_ends_cancelled_and_says_by_which(
    jobs: Jobs, worker_store: WorkerStore, state: str
) -> None:
    first = await bring(state, jobs, worker_store)
    second = one(unique=unique(mode=UniqueMode.REPLACE), payload=b'{"n": 2}')
    [answer] = await jobs.enqueue([second])
    assert (answer.id, answer.effect, answer.created_at) == (second.id, "replaced", answer.run_at)
    gone = await jobs.get(first.id)
    assert gone.status is Status.CANCELLED
    assert gone.last_error == f"job {second.id} has the same unique key and took its place before it started"
    assert (gone.started_at is None) == (state == "waiting")
    history = await jobs.attempts(first.id)
    assert (history[0].outcome, history[0].error_type, history[0].token) == ("cancelled", "Replaced", gone.lease_token)
    assert len(history) == (1 if state == "waiting" else 2), "its earlier attempt is still told"
    [lease] = await claim(worker_store, 1, slots=5)
    assert lease.id == second.id
    assert await jobs.audit() == {"jobs": 2, "pending": 0, "leases": 1, "finished": 1}


@pytest.mark.parametrize("mode", [UniqueMode.EARLIEST, UniqueMode.LATEST])
@pytest.mark.parametrize("seconds", [None, 60.0, 600.0, 6000.0])
async def test_a_waiting_job_is_moved_one_way_only(jobs: Jobs, mode: UniqueMode, seconds: float | None) -> None:
    first = one(delay_seconds=600.0)
    [stored] = await jobs.enqueue([first])
    [answer] = await jobs.enqueue([one(unique=unique(mode=mode), delay_seconds=seconds)])
    now = await jobs.get(first.id)
    moved = now.run_at - stored.run_at if now.run_at else None
    # The second one's 600 s begin a little later.
    expected = {UniqueMode.EARLIEST: (None, 60.0), UniqueMode.LATEST: (600.0, 6000.0)}[mode]
    assert answer.effect == ("rescheduled" if seconds in expected else "skipped")
    assert answer.id == first.id
    assert moved is not None
    assert abs(moved - timedelta(seconds=((seconds or 0) - 600) if seconds in expected else 0)) < timedelta(seconds=5)


async def test_a_flood_waits_until_it_has_ebbed(jobs: Jobs, worker_store: WorkerStore) -> None:
    for _ in range(5):
        [last] = await jobs.enqueue([one(unique=unique(UniqueUntil.STARTED, UniqueMode.LATEST), delay_seconds=0.2)])
        assert await claim(worker_store, 1) == []
    await asyncio.sleep(0.25)
    [lease] = await claim(worker_store, 1)
    assert lease.id == last.id
    assert (await jobs.audit())["jobs"] == 1


async def test_a_type_has_keys_of_its_own(jobs: Jobs) -> None:
    effects = [(await jobs.enqueue([one(type=name)]))[0].effect for name in ("work", "other", "work")]
    assert effects == ["created", "created", "skipped"]


async def test_the_holder_says_for_how_long(jobs: Jobs, worker_store: WorkerStore) -> None:
    """The first one holds the key while it runs; that the second would hold it only until its start is no matter."""
    first = await bring("running", jobs, worker_store)
    [answer] = await jobs.enqueue([one(unique=unique(UniqueUntil.STARTED))])
    assert (answer.id, answer.effect) == (first.id, "skipped")


async def test_a_period_ends_by_the_databases_clock(jobs: Jobs, sql: Connection) -> None:
    short = Unique(key="k", until=UniqueUntil.PERIOD, period_seconds=0.3)
    effects = [(await jobs.enqueue([one(unique=short)]))[0].effect for _ in range(2)]
    await sql.execute("select pg_sleep(0.35)")
    effects.append((await jobs.enqueue([one(unique=short)]))[0].effect)
    assert effects == ["created", "skipped", "created"]


async def test_the_second_of_one_call_sees_the_first(jobs: Jobs, worker_store: WorkerStore) -> None:
    made = [one(), one(), job(), one(unique=unique(mode=UniqueMode.REPLACE)), one(unique=unique(key="other")), one()]
    answers = await jobs.enqueue(made)
    assert [answer.effect for answer in answers] == ["created", "skipped", "created", "replaced", "created", "skipped"]
    assert [answer.id for answer in answers] == [made[place].id for place in (0, 0, 2, 3, 4, 3)]
    taken = {lease.id for lease in await claim(worker_store, 1, slots=10)}
    assert taken == {made[place].id for place in (2, 3, 4)}
    await worker_store.settle(1, [])
    again = [one(), one()]
    answers = await jobs.enqueue(again)
    assert {answer.effect for answer in answers} == {"skipped"}


async def test_a_key_that_is_free_again_is_taken_once_by_a_call(jobs: Jobs, worker_store: WorkerStore) -> None:
    """The key is there already, held by nobody: the first takes it over and the second meets the first."""
    await bring("completed", jobs, worker_store)
    made = [one(), one()]
    answers = await jobs.enqueue(made)
    assert [(answer.id, answer.effect) for answer in answers] == [(made[0].id, "created"), (made[0].id, "skipped")]


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("mode", UniqueMode)
async def test_duplicates_from_twenty_connections_leave_one_job(
    database_url: str, jobs: Jobs, worker_store: WorkerStore, mode: UniqueMode, earlier: bool
) -> None:
    """Whether the key is new or one that nobody holds any more."""
    if earlier:
        await bring("completed", jobs, worker_store)
    await jobs.enqueue([job(queue="other")])
    connections = [await connect(database_url) for _ in range(20)]
    try:
        made = [one(unique=unique(mode=mode)) for _ in connections]
        answers = await asyncio.gather(*(store(c, j) for c, j in zip(connections, made, strict=True)))
    finally:
        for connection in connections:
            await connection.close()
    effects = [answer.effect for [answer] in answers]
    assert effects.count("created") == 1
    audit = await jobs.audit()
    assert audit["pending"] == 2
    if mode is UniqueMode.REPLACE:
        assert effects.count("replaced") == 19
    else:
        assert len({answer.id for [answer] in answers}) == 1
        assert audit["jobs"] == 2 + earlier


async def test_callers_who_share_a_statement_share_a_job(jobs: Jobs) -> None:
    answers = await asyncio.gather(
        *(jobs.enqueue([one()]) for _ in range(50)), *(jobs.enqueue([job()]) for _ in range(9))
    )
    assert sorted(answer.effect for [answer] in answers) == ["created"] * 10 + ["skipped"] * 49
    assert (await jobs.audit())["jobs"] == 10


async def test_a_job_that_must_see_what_is_being_changed_does_not_start_before(
    jobs: Jobs, worker_store: WorkerStore, sql: Connection
) -> None:
    """
    this transaction                    claim
    changes a row of its own
    asks for a job, until = started;
    one waits: skipped
                                        skips the waiting job: it is locked
    commits
                                        takes it, and it sees the change
    """
    first = await bring("waiting", jobs, worker_store, unique=unique(UniqueUntil.STARTED))
    async with sql.transaction():
        [answer] = await store(sql, one(unique=unique(UniqueUntil.STARTED)))
        assert (answer.id, answer.effect) == (first.id, "skipped")
        assert await claim(worker_store, 1) == []
    [lease] = await claim(worker_store, 1)
    assert lease.id == first.id


async def test_one_that_may_run_at_any_time_is_not_held_back(
    jobs: Jobs, worker_store: WorkerStore, sql: Connection
) -> None:
    """Until finished promises nothing about what the job sees: it may have begun before."""
    first = await bring("waiting", jobs, worker_store)
    async with sql.transaction():
        assert (await store(sql, one()))[0].effect == "skipped"
        assert [lease.id for lease in await claim(worker_store, 1)] == [first.id]


@pytest.mark.parametrize("mode", UniqueMode)
async def test_a_job_that_is_just_being_claimed_is_looked_at_again(
    jobs: Jobs, database_url: str, sql: Connection, mode: UniqueMode
) -> None:
    """
    claim                               enqueue, until = started
    takes the job; not committed
                                        sees it waiting; waits for its row
    commits
                                        finds it gone: looks again, it runs: stores a new one
    """
    await jobs.enqueue([one(unique=unique(UniqueUntil.STARTED))])
    other = await connect(database_url)
    try:
        transaction = sql.transaction()
        await transaction.start()
        await sql.execute(
            "with gone as (delete from fencepost.pending returning *) insert into fencepost.leases "
            "select id, queue_id, priority, 1, 1, gen_random_uuid(), now(), now() + interval '1 minute' from gone"
        )
        second = one(unique=unique(UniqueUntil.STARTED, mode))
        waiting = asyncio.ensure_future(store(other, second))
        await waits_for_a_lock(sql)
        await transaction.commit()
        [answer] = await waiting
        assert (answer.id, answer.effect) == (second.id, "created")
        assert await jobs.audit() == {"jobs": 2, "pending": 1, "leases": 1, "finished": 0}
    finally:
        await other.close()


async def test_in_one_snapshot_a_job_that_moved_is_a_failure_to_serialise(
    jobs: Jobs, worker_store: WorkerStore, sql: Connection
) -> None:
    await bring("waiting", jobs, worker_store, unique=unique(UniqueUntil.STARTED))
    transaction = sql.transaction(isolation="repeatable_read")
    await transaction.start()
    await sql.execute("select 1 from fencepost.jobs")
    assert len(await claim(worker_store, 1)) == 1
    with pytest.raises(asyncpg.SerializationError):
        await store(sql, one(unique=unique(UniqueUntil.STARTED)))
    await transaction.rollback()


async def test_what_is_rolled_back_never_was(jobs: Jobs, sql: Connection, worker_store: WorkerStore) -> None:
    first = await bring("waiting", jobs, worker_store)
    before = await contents(sql)
    for mode in UniqueMode:
        transaction = sql.transaction()
        await transaction.start()
        await store(sql, one(unique=unique(mode=mode), delay_seconds=5.0), one(unique=unique(key="new")))
        await transaction.rollback()
        assert await contents(sql) == before
    assert (await jobs.enqueue([one()]))[0].id == first.id


async def test_keys_in_any_order_never_deadlock(database_url: str, jobs: Jobs) -> None:
    await jobs.enqueue([job()])
    connections = [await connect(database_url) for _ in range(4)]
    modes = itertools.cycle([UniqueMode.REPLACE, UniqueMode.LATEST, UniqueMode.SKIP])

    async def batches(connection: Connection, *, descending: bool) -> None:
        for _ in range(15):
            keys = sorted((f"{number:02}" for number in range(40)), reverse=descending)
            mode = next(modes)
            await store(connection, *(one(unique=unique(UniqueUntil.STARTED, mode, key)) for key in keys))

    try:
        await asyncio.gather(*(batches(c, descending=bool(n % 2)) for n, c in enumerate(connections)))
    finally:
        for connection in connections:
            await connection.close()
    assert (await jobs.audit())["pending"] == 41


async def test_a_key_that_is_removed_in_between_makes_no_deadlock(
    jobs: Jobs, sql: Connection, database_url: str
) -> None:
    """
    Two calls with the same keys: the first finds one of them taken, and the row is removed before it comes to it again.

        holder              first                   remover             second
        takes c
                            finds a taken, locks it
                            waits for c
                                                    waits for a
                                                                        waits for a
        rolls back
                            takes c, and a
                            commits
                                                                        finds both taken
    """
    await jobs.enqueue([one(unique=unique(key="a"))])
    holder, first, remover, second = [await connect(database_url) for _ in range(4)]
    wanted = [one(unique=unique(key="a")), one(unique=unique(key="c"))]
    again = [one(unique=unique(key="c")), one(unique=unique(key="a"))]
    try:
        transaction = holder.transaction()
        await transaction.start()
        await store(holder, one(unique=unique(key="c")))
        stored = asyncio.create_task(store(first, *wanted))
        await waits_for_a_lock(sql)
        removing = asyncio.create_task(remover.execute("delete from fencepost.unique_keys where key = 'a'"))
        # Where nobody has it locked it is gone at once.
        await asyncio.wait([removing], timeout=0.3)
        stored_again = asyncio.create_task(store(second, *again))
        await waits_for_a_lock(sql, count=2)
        await asyncio.wait([stored_again], timeout=0.3)
        await transaction.rollback()
        [answer, _] = await asyncio.wait_for(asyncio.gather(stored, stored_again), 10)
        await removing
        assert [entry.effect for entry in answer] == ["skipped", "created"]
    finally:
        for connection in (holder, first, remover, second):
            await connection.close()


@pytest.mark.slow
async def test_a_deadlock_with_somebody_elses_transaction_is_tried_again(
    jobs: Jobs, sql: Connection, database_url: str
) -> None:
    """Nobody else has to take keys in order, call by call. Whoever PostgreSQL undoes, ours is stored in the end."""
    await jobs.enqueue([job()])
    other = await connect(database_url, deadlock_timeout="60s")
    transaction = other.transaction()
    await transaction.start()
    await store(other, one(unique=unique(key="b")))
    ours = asyncio.create_task(jobs.enqueue([one(unique=unique(key=key)) for key in "ab"]))
    await waits_for_a_lock(sql)
    # It waits for us and never looks why, so that it is ours that finds the circle and is undone.
    theirs = asyncio.create_task(store(other, one(unique=unique(key="a"))))
    assert [entry.effect for entry in await asyncio.wait_for(theirs, 10)] == ["created"]
    await transaction.rollback()
    assert [entry.effect for entry in await asyncio.wait_for(ours, 10)] == ["created", "created"]
    # More than once only when ours comes back before theirs has woken up.
    assert await sql.fetchval("select deadlocks from pg_stat_database where datname = current_database()") <= 3
    await other.close()


async def test_a_skipped_request_leaves_its_idempotency_key_free(jobs: Jobs, worker_store: WorkerStore) -> None:
    first = await bring("running", jobs, worker_store)
    again = [one(idempotency_key="a"), one(idempotency_key="a"), job(idempotency_key="b")]
    answers = await jobs.enqueue(again)
    assert [(answer.id, answer.effect) for answer in answers] == [
        (first.id, "skipped"),
        (first.id, "skipped"),
        (again[2].id, "created"),
    ]
    [alone] = await jobs.enqueue([one(idempotency_key="a")])
    assert (alone.id, alone.effect) == (first.id, "skipped")
    await jobs.cancel(first.id)
    await worker_store.settle(1, [])
    assert (await jobs.enqueue([job(idempotency_key="a")]))[0].effect == "created"


async def test_a_replay_does_nothing_to_unique_keys(jobs: Jobs, worker_store: WorkerStore, sql: Connection) -> None:
    asked = {"idempotency_key": "a", "unique": unique(mode=UniqueMode.REPLACE)}
    [first] = await jobs.enqueue([job(**asked)])
    before = await contents(sql)
    [again] = await jobs.enqueue([job(**asked)])
    assert (again.id, again.effect) == (first.id, "replayed")
    assert await contents(sql) == before


async def test_a_conflict_undoes_what_the_call_did_to_others(
    jobs: Jobs, sql: Connection, worker_store: WorkerStore
) -> None:
    await bring("waiting", jobs, worker_store)
    await jobs.enqueue([job(idempotency_key="a")])
    before = await contents(sql)
    async with sql.transaction():
        with pytest.raises(KeyConflict):
            await store(sql, one(unique=unique(mode=UniqueMode.REPLACE)), job(idempotency_key="a", priority=5))
        assert await contents(sql) == before
        [stored] = await store(sql, job())
        assert stored.effect == "created", "the caller's transaction goes on"
    assert (await jobs.audit())["jobs"] == 3


async def test_a_moved_job_is_due_by_the_clock_of_its_move(
    jobs: Jobs, database_url: str, worker_store: WorkerStore, sql: Connection
) -> None:
    """However long the transaction has been open: cursors rest on that (worker/cursors.py)."""
    [first] = await jobs.enqueue([one(delay_seconds=600.0)])
    other = await connect(database_url)
    try:
        async with other.transaction():
            await other.execute("select pg_current_xact_id()")
            await asyncio.sleep(0.05)
            before = await sql.fetchval("select clock_timestamp()")
            [moved, new] = await store(other, one(unique=unique(mode=UniqueMode.EARLIEST)), job())
            assert moved.effect == "rescheduled"
        rows = await sql.fetch("select id, run_at from fencepost.pending")
        assert {row["id"] for row in rows} == {first.id, new.id}
        assert all(row["run_at"] >= before for row in rows)
    finally:
        await other.close()


async def test_keys_that_hold_nothing_are_removed(
    database: Database, jobs: Jobs, worker_store: WorkerStore, sql: Connection
) -> None:
    kept = []
    for number, state in enumerate(STATES):
        for until in UniqueUntil:
            key = f"{number} {until}"
            await bring(state, jobs, worker_store, unique=unique(until, key=key))
            if until is UniqueUntil.PERIOD or state not in ("completed", "failed", "cancelled"):
                kept.append(key)
        await sql.execute("update fencepost.pending set run_at = now() + interval '1 hour'")
    retention = Retention(database, Keep(by_status={}))
    removed, after, looked = 0, ("", ""), 0
    while True:
        gone, last = await retention.remove_unique_keys(after=after, rows=5)
        removed += gone
        if last is None:
            break
        after, looked = last, looked + 1
    assert (removed, looked) == (6, 5)
    assert sorted(row["key"] for row in await sql.fetch("select key from fencepost.unique_keys")) == sorted(kept)
    await sql.execute("update fencepost.unique_keys set expires_at = now() - interval '1 s' where until = 'period'")
    assert (await retention.remove_unique_keys(after=("", ""), rows=100))[0] == len(STATES)


async def test_a_key_that_an_enqueue_holds_is_not_waited_for(
    database: Database, jobs: Jobs, worker_store: WorkerStore, sql: Connection
) -> None:
    await bring("completed", jobs, worker_store)
    retention = Retention(database, Keep(by_status={}))
    async with sql.transaction():
        [stored] = await store(sql, one())
        assert stored.effect == "created"
        async with asyncio.timeout(5):
            assert (await retention.remove_unique_keys(after=("", ""), rows=100))[0] == 0
    assert (await jobs.enqueue([one()]))[0].id == stored.id


async def test_an_enqueue_takes_a_key_that_is_being_removed(
    jobs: Jobs, sql: Connection, worker_store: WorkerStore
) -> None:
    await bring("completed", jobs, worker_store)
    transaction = sql.transaction()
    await transaction.start()
    await sql.execute("delete from fencepost.unique_keys")
    second = one()
    waiting = asyncio.ensure_future(jobs.enqueue([second]))
    await waits_for_a_lock(sql)
    await transaction.commit()
    [answer] = await waiting
    assert (answer.id, answer.effect) == (second.id, "created")
    assert await sql.fetchval("select job_id from fencepost.unique_keys") == second.id


async def test_a_dead_letter_that_is_put_back_holds_its_key_again(
    jobs: Jobs, worker_store: WorkerStore, database: Database
) -> None:
    first = await bring("dead_letter", jobs, worker_store)
    await Retention(database, Keep(by_status={})).remove_unique_keys(after=("", ""), rows=100)
    await jobs.retry(first.id)
    [answer] = await jobs.enqueue([one()])
    assert (answer.id, answer.effect) == (first.id, "skipped")


async def test_who_is_woken(database_url: str, jobs: Jobs, queues: Queues, sql: Connection) -> None:
    """In this process, only queues in which something is due soon, because of this call."""
    woken: list[set[int]] = []
    database = Database(database_url, connections=3)
    await database.open()
    hints = Hints(database, local=lambda ids: woken.append(set(ids)))
    jobs = Jobs(database, Queues(database, hints), hints)
    try:
        await jobs.enqueue([job(queue="now"), job(queue="later", delay_seconds=3600.0)])
        await jobs.enqueue([job(queue="later", delay_seconds=3600.0)])
        await jobs.enqueue([job(queue="soon", delay_seconds=5.0)])
        await jobs.enqueue([one(queue="later", delay_seconds=3600.0)])
        await jobs.enqueue([one(queue="soon")])
        await jobs.enqueue([one(queue="now", unique=unique(mode=UniqueMode.EARLIEST))])
        ids = {name: await queues.id_of(name) for name in ("now", "later", "soon")}
        names = {id_: name for name, id_ in ids.items()}
        assert [sorted(names[one_] for one_ in ids_) for ids_ in woken] == [
            ["now"],
            [],
            ["soon"],
            [],
            [],
            ["later"],
        ], "the job that was moved waits in another queue than the request named"
    finally:
        await hints.close()
        await database.close()


async def test_no_claim_and_no_settlement_ever_touches_the_keys(
    jobs: Jobs, worker_store: WorkerStore, sql: Connection
) -> None:
    await jobs.enqueue([one(unique=unique(key=str(number))) for number in range(10)])
    async with sql.transaction():
        await sql.execute("lock table fencepost.unique_keys in access exclusive mode")
        leases = await claim(worker_store, 1, slots=10)
        assert len(leases) == 10
        await worker_store.settle(1, [completed(lease) for lease in leases])


@pytest.mark.parametrize("until", [UniqueUntil.STARTED, UniqueUntil.FINISHED])
@pytest.mark.parametrize("mode", UniqueMode)
async def test_a_job_that_can_start_no_more_stands_in_nobodys_way(
    jobs: Jobs, sql: Connection, until: UniqueUntil, mode: UniqueMode
) -> None:
    """It waits for a worker, and its time is over; a new request must not be answered with it."""
    past = datetime.now(UTC) - timedelta(seconds=1)
    late, fresh = (one(unique=unique(until, mode), expires_at=at) for at in (past, None))
    await jobs.enqueue([late])
    [answer] = await jobs.enqueue([fresh])
    assert (answer.id, answer.effect) == (fresh.id, "created")
    ended = await jobs.get(late.id)
    assert (ended.status, ended.last_error) == (Status.CANCELLED, "its time was over before this attempt started")
    [attempt] = await jobs.attempts(late.id)
    assert attempt.error_type == "Expired"
    assert (await jobs.get(fresh.id)).status is Status.PENDING
    assert await sql.fetchval("select job_id from fencepost.unique_keys") == fresh.id


async def test_requests_that_keep_moving_a_job_do_not_move_it_beyond_its_time(jobs: Jobs) -> None:
    def request(seconds: float) -> NewJob:
        latest = unique(UniqueUntil.STARTED, UniqueMode.LATEST)
        return one(unique=latest, delay_seconds=seconds, expires_seconds=100.0)

    first, moved, late = request(10), request(90), request(110)
    answers = [(await jobs.enqueue([made]))[0] for made in (first, moved, late)]
    assert [(answer.id, answer.effect) for answer in answers] == [
        (first.id, "created"),
        (first.id, "rescheduled"),
        (late.id, "replaced"),
    ]
    assert (await jobs.get(first.id)).status is Status.CANCELLED
    assert (await jobs.get(late.id)).status is Status.PENDING


async def test_a_claim_that_began_in_time_wins_over_a_request_that_finds_it_late(jobs: Jobs, sql: Connection) -> None:
    """
    claim                           enqueue with the same key, until = finished
    takes the job in time
                                    sees it waiting still, and its time over; waits for its row
    commits
                                    finds it running: skipped
    """
    made = one(expires_at=datetime.now(UTC) - timedelta(seconds=1))
    await jobs.enqueue([made])
    await sql.execute("begin")
    await sql.execute(
        "with gone as (delete from fencepost.pending returning *) "
        "insert into fencepost.leases (id, queue_id, priority, attempt, token, worker_id, started_at, locked_until) "
        "select id, queue_id, priority, 1, 1, id, now(), now() + interval '1 hour' from gone"
    )
    asked = asyncio.create_task(jobs.enqueue([one()]))
    await waits_for_a_lock(sql)
    await sql.execute("commit")
    [answer] = await asked
    assert (answer.id, answer.effect) == (made.id, "skipped")
    assert await sql.fetchval("select count(*) from fencepost.jobs") == 1
