"""
Old ranges are dropped, old jobs deleted, and nothing else is lost, whatever happens in between.

The stories in the heads of drop_range and of prune_jobs.sql, in each order.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending
from fencepost.errors import DatabaseUnavailable, JobNotFound, WrongStatus
from fencepost.settings import Settings
from fencepost.store import retention as steps
from fencepost.store import statements
from fencepost.store.database import HOT_SESSION, Database
from fencepost.store.jobs import Jobs
from fencepost.store.migrate import prepare
from fencepost.store.retention import FIRST_ID, LAST_ID, Keep, NotOurTurn, Retention, Span, Survey
from fencepost.store.sessions import SESSION
from fencepost.store.workers import WorkerStore
from tests.patience import limit

from .history import History, days_ago, old_job
from .support import Connection, claim, completed, connect, ended, waits_for_a_lock

pytestmark = pytest.mark.anyio

DAY_SECONDS = 86400.0
KEEP = Keep(
    by_status={
        "completed": 7 * DAY_SECONDS,
        "failed": 30 * DAY_SECONDS,
        "dead_letter": 30 * DAY_SECONDS,
        "cancelled": 30 * DAY_SECONDS,
    }
)


class Ground(NamedTuple):
    """An old range, made twenty days ago and three days wide, and what works on it."""

    jobs: Jobs
    store: WorkerStore
    sql: Connection
    history: History
    retention: Retention
    url: str

    async def span(self) -> Span:
        """The old range, as it is now."""
        spans, _ = await self.retention.spans()
        return next(span for span in spans if span.starts_at is not None)

    async def watch(self) -> None:
        await self.retention.watch(await self.span())

    async def survey(self, *, rows: int = 1000) -> int:
        """Survey the old range to its end; returns how many survivors it has."""
        while True:
            survey = await self.retention.survey(await self.span(), rows=rows)
            if survey.complete:
                return survey.survivors

    async def drop(self) -> tuple[int, int] | None:
        return await self.retention.drop(await self.span())

    async def claim(self, *, slots: int = 10) -> Any:
        return await claim(self.store, self.history.queue_id, slots=slots)

    async def settle(self, *outcomes: Any) -> None:
        assert len(await self.store.settle(self.history.queue_id, list(outcomes))) == len(outcomes)


@pytest.fixture
async def history(sql: Connection) -> History:
    history = History(sql)
    await history.begin()
    await history.range(days=20)
    return history


@pytest.fixture
async def ground(
    jobs: Jobs, worker_store: WorkerStore, sql: Connection, history: History, database: Database, database_url: str
) -> AsyncIterator[Ground]:
    ground = Ground(jobs, worker_store, sql, history, Retention(database, KEEP), database_url)
    yield ground
    await history.whole()


async def test_a_range_whose_jobs_are_past_their_time_is_dropped_whole(ground: Ground) -> None:
    gone = await ground.history.ended(days=19, count=2500, attempts=2)
    before = await ground.history.ranges()
    await ground.watch()
    assert await ground.survey() == 0
    assert await ground.drop() == (2500, 0)
    assert await ground.history.left(gone) == set()
    assert await ground.history.ranges() == before[1:]
    assert (
        await ground.sql.fetchval("select count(*) from pg_class where relname like '%' || $1", f"{before[0]:%d t}")
        == 0
    )
    assert await ground.sql.fetchval("select count(*) from fencepost.attempts") == 0
    await ground.store.ensure_partitions(partition_days=3)
    assert await ground.history.ranges() == before[1:], "and it isn't made again"
    with pytest.raises(JobNotFound, match="its retention has passed"):
        await ground.jobs.get(gone[0])


async def test_what_must_stay_is_moved_and_works_as_before(ground: Ground) -> None:
    history = ground.history
    gone = [*await history.ended(days=19, count=50), *await history.ended("dead_letter", days=19.5, ended=31)]
    late = await history.ended(days=19, ended=1, attempts=2)
    letters = await history.ended("dead_letter", days=18, attempts=3, count=2)
    waiting, stopped, running = (old_job(days=18.5, payload=b'{"n": %d}' % number) for number in range(3))
    await ground.jobs.enqueue([running])
    [lease] = await ground.claim()
    await ground.jobs.enqueue([waiting, stopped])
    kept = [*late, *letters, waiting.id, stopped.id, running.id]
    before = {one: (await ground.jobs.get(one), await ground.jobs.attempts(one)) for one in kept}
    await ground.watch()
    assert await ground.survey(rows=7) == 3
    assert await ground.drop() == (51, 6)
    assert await history.left([*gone, *kept]) == set(kept)
    assert {one: (await ground.jobs.get(one), await ground.jobs.attempts(one)) for one in kept} == before
    assert {await history.where("jobs", one) for one in kept} == {"jobs_default"}

    await ground.jobs.retry(letters[0])
    assert await ground.jobs.cancel(stopped.id) is Status.CANCELLED
    claimed = await ground.claim()
    assert {one.id: json.loads(one.payload) for one in claimed} == {letters[0]: {}, waiting.id: {"n": 0}}
    await ground.settle(completed(lease), *(ended(one, Ending.FAILED, Status.PENDING) for one in claimed))
    assert (await ground.jobs.get(running.id)).status is Status.COMPLETED
    assert await history.where("finished", running.id) == "finished_default"
    assert await history.where("attempts", waiting.id) == "attempts_default"


class Late(NamedTuple):
    """Something that happens between the survey of a range and its drop."""

    before: Callable[[Ground], Awaitable[UUID]]
    meanwhile: Callable[[Ground, UUID], Awaitable[None]]


async def _enqueue(ground: Ground) -> UUID:
    made = old_job(days=18)
    await ground.jobs.enqueue([made])
    return made.id


async def _dead_letter(ground: Ground) -> UUID:
    """Past its time: the survey finds that it may go."""
    [letter] = await ground.history.ended("dead_letter", days=19, ended=31)
    return letter


async def _complete(ground: Ground, job_id: UUID) -> None:
    [lease] = await ground.claim()
    await ground.settle(completed(lease))


async def _retry(ground: Ground, job_id: UUID) -> None:
    await ground.jobs.retry(job_id)


async def _retry_and_complete(ground: Ground, job_id: UUID) -> None:
    await ground.jobs.retry(job_id)
    await _complete(ground, job_id)


async def _nothing(ground: Ground) -> UUID:
    return FIRST_ID


async def _come_and_complete(ground: Ground, job_id: UUID) -> None:
    await _enqueue(ground)
    await _complete(ground, job_id)


async def _cancel(ground: Ground, job_id: UUID) -> None:
    await ground.jobs.cancel(job_id)


LATE = {
    "a pending job completes": Late(_enqueue, _complete),
    "a pending job is cancelled": Late(_enqueue, _cancel),
    "an expired dead letter is put back": Late(_dead_letter, _retry),
    "an expired dead letter is put back and completes": Late(_dead_letter, _retry_and_complete),
    "a client with a slow clock comes, and its job completes": Late(_nothing, _come_and_complete),
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["half way", "at the end"])
@pytest.mark.parametrize("late", LATE)
async def test_what_ends_while_the_survey_is_under_way_survives(ground: Ground, late: str, moment: str) -> None:
    gone = await ground.history.ended(days=19.9, count=20)
    later = await ground.history.ended(days=17.5, count=20)
    job_id = await LATE[late].before(ground)
    await ground.watch()
    if moment == "half way":
        # Past the job's place, and not at the end.
        await ground.retention.survey(await ground.span(), rows=25)
    else:
        await ground.survey()
    known = set(await ground.sql.fetchval("select array(select id from fencepost.jobs)"))
    await LATE[late].meanwhile(ground, job_id)
    come = set(await ground.sql.fetchval("select array(select id from fencepost.jobs)")) - known
    await ground.survey()
    dropped = await ground.drop()
    assert dropped is not None
    assert dropped[1] == 1
    [survivor] = come or {job_id}
    assert await ground.history.left([*gone, *later, survivor]) == {survivor}
    assert (await ground.jobs.get(survivor)).id == survivor


async def test_a_survey_waits_for_nobody_that_ends_a_job_in_its_range(ground: Ground) -> None:
    """The watch can't be put while such a transaction is open: what it writes would be in neither."""
    await ground.jobs.enqueue([old_job(days=18)])
    [lease] = await ground.claim()
    other = Database(ground.url, session=HOT_SESSION, connections=1)
    await other.open()
    async with other.transaction() as session:
        store = WorkerStore(session, uuid.uuid4())  # type: ignore[arg-type]
        await store.settle(ground.history.queue_id, [completed(lease)])
        began = time.monotonic()
        with pytest.raises(DatabaseUnavailable):
            await ground.watch()
        assert time.monotonic() - began < limit(1)
        assert (await ground.span()).surveyed_to is None
    await other.close()
    await ground.watch()
    assert await ground.survey() == 1


async def test_a_survey_is_gone_on_with_by_whoever_comes(ground: Ground, database_url: str) -> None:
    await ground.history.ended(days=19, count=30)
    await ground.watch()
    assert (await ground.retention.survey(await ground.span(), rows=20)).looked == 20
    other = Database(database_url, connections=1)
    await other.open()
    survey = await Retention(other, KEEP).survey(await ground.span(), rows=20)
    await other.close()
    assert (survey.looked, survey.complete) == (10, True)
    assert await ground.drop() == (30, 0)


async def test_half_a_survey_drops_nothing(ground: Ground) -> None:
    kept = await ground.history.ended(days=19, ended=1)
    await ground.history.ended(days=18, count=10)
    with pytest.raises(NotOurTurn):
        await ground.drop()
    await ground.watch()
    with pytest.raises(NotOurTurn):
        await ground.drop()
    await ground.retention.survey(await ground.span(), rows=5)
    assert await ground.drop() is None, "half"
    await ground.survey()
    await ground.retention.leave(await ground.span())
    assert await ground.drop() is None, "begun anew"
    await ground.watch()
    assert await ground.survey() == 1
    assert await ground.drop() == (10, 1)
    assert await ground.history.left(kept) == set(kept)


@pytest.mark.parametrize("rows", [10, 1000], ids=["half", "whole"])
async def test_a_survey_for_other_times_drops_nothing_and_begins_anew(
    ground: Ground, database: Database, rows: int
) -> None:
    """RETAIN_COMPLETED was raised between a survey and its drop: what was past its time then is not any more."""
    made = await ground.history.ended(days=19, count=30)
    await ground.watch()
    survey = await ground.retention.survey(await ground.span(), rows=rows)
    assert survey.complete is (rows == 1000)
    longer = Retention(database, Keep(by_status={**KEEP.by_status, "completed": 25 * DAY_SECONDS}))
    with pytest.raises(NotOurTurn):
        await longer.drop(await ground.span())
    assert await ground.history.left(made) == set(made)
    assert await longer.survey(await ground.span(), rows=1000) == Survey(looked=30, survivors=30, complete=True)
    assert await ground.sql.fetchval("select expired from fencepost.partitions order by starts_at limit 1") == 0
    with pytest.raises(NotOurTurn):
        await ground.drop()
    assert await longer.drop(await ground.span()) == (0, 30)
    assert await ground.history.left(made) == set(made)


@pytest.mark.parametrize("what", ["jobs", "bytes"])
async def test_a_range_with_too_much_to_move_stays(ground: Ground, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MOVED_JOBS", 2 if what == "jobs" else 100)
    monkeypatch.setattr(steps, "MOVED_BYTES", 500 if what == "bytes" else 1 << 20)
    await ground.history.ended("failed", days=18, count=2, payload=f'"{"x" * 400}"')
    await ground.jobs.enqueue([old_job(days=18)])
    await ground.watch()
    await ground.survey()
    assert await ground.drop() is None
    assert (await ground.span()).surveyed_to is not None, "it is still there"


async def test_a_range_that_is_not_past_is_never_dropped(ground: Ground) -> None:
    """Whatever the caller believes, and whatever it did before."""
    spans, _ = await ground.retention.spans()
    before = await ground.history.ranges()
    now_and_later = [span for span in spans if span.starts_at is not None][1:]
    assert len(now_and_later) > 1
    for span in now_and_later:
        assert not span.past
        await ground.retention.watch(span)
        while not (await ground.retention.survey(span, rows=10)).complete:
            pass
        assert await ground.retention.drop(span) is None
    assert await ground.history.ranges() == before


async def _begin_drop(ground: Ground) -> tuple[Connection, Any]:
    """Drop the old range in a transaction that stays open, with every lock in its hand."""
    await ground.watch()
    await ground.survey()
    holder = await connect(ground.url)
    transaction = holder.transaction()
    await transaction.start()
    row = await holder.fetchrow(
        "select * from fencepost.drop_range($1, 1000, 8000000)", (await ground.history.ranges())[0]
    )
    assert row["outcome"] == "dropped"
    return holder, transaction


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("operation", ["claim", "settle", "retry", "cancel", "read", "enqueue", "history"])
async def test_whoever_comes_while_a_range_is_being_dropped_misses_nothing(
    ground: Ground, operation: str, commit: bool
) -> None:
    """
    drop_range                              the operation
    has all locks; moves, drops
                                            waits for its tables
    commits, or rolls back
                                            finds the job, wherever it is now
    """
    [letter] = await ground.history.ended("dead_letter", days=18, attempts=1)
    waiting = old_job(days=18, payload=b'{"n": 7}')
    await ground.jobs.enqueue([waiting])
    lease = None
    if operation == "settle":
        [lease] = await ground.claim()
    # Each statement has been prepared, and its plan is kept: as in a process that has been running for a while.
    await ground.jobs.get(letter)
    holder, transaction = await _begin_drop(ground)
    late = old_job(days=18.2)
    work: dict[str, Callable[[], Awaitable[Any]]] = {
        "claim": ground.claim,
        "settle": lambda: ground.settle(completed(lease)) if lease else ground.claim(),
        "retry": lambda: ground.jobs.retry(letter),
        "cancel": lambda: ground.jobs.cancel(waiting.id),
        "read": lambda: ground.jobs.get(letter),
        "enqueue": lambda: ground.jobs.enqueue([late]),
        "history": lambda: ground.jobs.attempts(letter),
    }
    task: asyncio.Task[Any] = asyncio.ensure_future(work[operation]())
    await waits_for_a_lock(ground.sql)
    await (transaction.commit() if commit else transaction.rollback())
    await holder.close()
    answer = await task
    assert await ground.history.where("jobs", letter) == "jobs_default" or not commit
    if operation == "claim":
        [leased] = answer
        assert (leased.id, json.loads(leased.payload)) == (waiting.id, {"n": 7})
    elif operation == "settle":
        assert (await ground.jobs.get(waiting.id)).status is Status.COMPLETED
    elif operation == "retry":
        assert (await ground.jobs.get(letter)).status is Status.PENDING
    elif operation == "cancel":
        assert (await ground.jobs.get(waiting.id)).status is Status.CANCELLED
    elif operation == "read":
        assert (answer.id, answer.last_error) == (letter, "e")
    elif operation == "enqueue":
        assert (await ground.jobs.get(late.id)).status is Status.PENDING
    else:
        assert len(answer) == 1


@pytest.mark.parametrize("operation", ["retry", "enqueue"])
async def test_whoever_came_just_before_the_locks_is_counted(ground: Ground, operation: str) -> None:
    """
    the operation                           drop_range
    is done, not committed
                                            counts the survivors: this one is none yet
                                            waits for the tables
    commits
                                            has all locks; counts again, and moves it
    """
    [letter] = await ground.history.ended("dead_letter", days=18, ended=31)
    late = old_job(days=18.5)
    await ground.watch()
    await ground.survey()
    other = Database(ground.url, connections=1)
    await other.open()
    transaction = other.transaction()
    session = await transaction.__aenter__()
    if operation == "retry":
        await session.fetch("retry", id=letter, queue_id=ground.history.queue_id, channel="x", hint="due 1")
    else:
        record = {"id": str(late.id), "queue_id": ground.history.queue_id, "type": "work", "priority": 0}
        record |= {"queue": "default", "payload": {}, "max_attempts": 1}
        await session.fetch("enqueue_plain", jobs=json.dumps([record]).encode(), channel="x", hint=None)
    dropping = asyncio.ensure_future(ground.drop())
    await waits_for_a_lock(ground.sql)
    await transaction.__aexit__(None, None, None)
    await other.close()
    try:
        dropped = await dropping
    except DatabaseUnavailable:
        # A slow machine: the 100 ms were over first.
        dropped = await ground.drop()
    assert dropped == (1, 1)
    survivor = letter if operation == "retry" else late.id
    assert (await ground.jobs.get(survivor)).status is Status.PENDING
    assert await ground.history.left([letter]) == ({letter} if operation == "retry" else set())


@pytest.mark.parametrize("table", ["jobs", "finished", "attempts"])
async def test_a_transaction_that_reads_history_makes_it_give_up_quickly(ground: Ground, table: str) -> None:
    """
    a transaction (a dump, say)             drop_range                          claims
    has read from a table, stays open
                                            waits for the table, 100 ms         wait behind it, at most so long
                                            gives up, whole
                                                                                go on
    """
    await ground.history.ended(days=19)
    await ground.jobs.enqueue([old_job(days=18)])
    await ground.watch()
    await ground.survey()
    before = await ground.history.ranges()
    reader = await connect(ground.url)
    transaction = reader.transaction()
    await transaction.start()
    await reader.fetchval(f"select count(*) from fencepost.{table}")
    dropping = asyncio.ensure_future(ground.drop())
    await waits_for_a_lock(ground.sql)
    began = time.monotonic()
    assert len(await ground.claim()) == 1
    assert time.monotonic() - began < limit(0.5)
    with pytest.raises(DatabaseUnavailable):
        await dropping
    assert await ground.history.ranges() == before, "nothing of it was done"
    await transaction.rollback()
    await reader.close()
    assert await ground.drop() == (1, 1)


async def test_a_step_that_meets_another_process_leaves_it_to_that_one(ground: Ground) -> None:
    [gone] = await ground.history.ended(days=19, key="k")
    await ground.watch()
    await ground.survey()
    other = await connect(ground.url)
    transaction = other.transaction()
    await transaction.start()
    assert await other.fetchval("select fencepost.retention_turn()")
    span = await ground.span()
    walk: dict[str, Any] = {"after": FIRST_ID, "before": LAST_ID, "rows": 10}
    for step in (
        ground.retention.watch(span), ground.retention.survey(span, rows=10), ground.retention.drop(span),
        ground.retention.leave(span), ground.retention.remove_jobs(**walk), ground.retention.remove_keys(**walk),
    ):  # fmt: skip
        with pytest.raises(NotOurTurn):
            await step
    assert await ground.span() == span
    assert await ground.history.left([gone]) == {gone}
    await transaction.rollback()
    await other.close()
    assert (await ground.retention.remove_jobs(**walk)).jobs == 1


async def test_two_schemas_do_not_take_turns_with_each_other(ground: Ground) -> None:
    elsewhere = Database(ground.url, schema="Another", connections=1)
    await elsewhere.open()
    await prepare(elsewhere, partition_days=3)
    other = await connect(ground.url)
    transaction = other.transaction()
    await transaction.start()
    assert await other.fetchval("select fencepost.retention_turn()")
    assert (await Retention(elsewhere, KEEP).remove_jobs(after=FIRST_ID, before=LAST_ID, rows=1)).jobs == 0
    await transaction.rollback()
    await other.close()
    await elsewhere.close()


@pytest.mark.parametrize("status", ["completed", "failed", "dead_letter", "cancelled"])
async def test_each_status_has_its_own_time(ground: Ground, database: Database, status: str) -> None:
    kept = Retention(database, Keep(by_status={status: 5 * DAY_SECONDS}))
    ids = {
        (one, ended): (await ground.history.ended(one, days=18, ended=ended))[0]
        for one in ("completed", "failed", "dead_letter", "cancelled")
        for ended in (4.99, 5.01)
    }
    done = await kept.remove_jobs(after=FIRST_ID, before=LAST_ID, rows=100)
    assert (done.looked, done.jobs) == (8, 1)
    assert await ground.history.left(list(ids.values())) == set(ids.values()) - {ids[status, 5.01]}


async def test_a_job_goes_with_its_attempts_and_its_key(ground: Ground) -> None:
    await ground.history.ended(days=18, attempts=3, key="old")
    [kept] = await ground.history.ended(days=18, ended=1, attempts=3, key="young")
    await ground.jobs.enqueue([old_job(days=18, idempotency_key="pending")])
    done = await ground.retention.remove_jobs(after=FIRST_ID, before=LAST_ID, rows=100)
    assert (done.jobs, done.keys) == (1, 1)
    keys = await ground.sql.fetch("select key from fencepost.idempotency_keys order by 1")
    assert [row["key"] for row in keys] == ["pending", "young"]
    assert len(await ground.jobs.attempts(kept)) == 3


async def test_a_walk_takes_small_steps_and_comes_to_an_end(ground: Ground) -> None:
    gone = await ground.history.ended(days=19, count=45)
    kept = await ground.history.ended("failed", days=18.9, count=45)
    after, looked, jobs = FIRST_ID, [], 0
    while True:
        done = await ground.retention.remove_jobs(after=after, before=LAST_ID, rows=20)
        if done.last_id is None:
            break
        after = done.last_id
        looked.append(done.looked)
        jobs += done.jobs
    assert (looked, jobs) == ([20, 20, 20, 20, 10], 45)
    assert await ground.history.left([*gone, *kept]) == set(kept)


@pytest.mark.parametrize("commit", [True, False])
async def test_a_job_that_is_being_put_back_is_not_removed(ground: Ground, commit: bool) -> None:
    """Both ends of the story in prune_jobs.sql: first the retry holds the row."""
    [letter] = await ground.history.ended("dead_letter", days=18, ended=31, attempts=2, key="k")
    other = await connect(ground.url)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("delete from fencepost.finished where id = $1", letter)
    await other.execute(
        "insert into fencepost.pending values ($1, $2, 0, 0, 1, now())", letter, ground.history.queue_id
    )
    began = time.monotonic()
    assert (await ground.retention.remove_jobs(after=FIRST_ID, before=LAST_ID, rows=10)).jobs == 0
    assert time.monotonic() - began < limit(1), "it doesn't wait"
    await (transaction.commit() if commit else transaction.rollback())
    await other.close()
    done = await ground.retention.remove_jobs(after=FIRST_ID, before=LAST_ID, rows=10)
    assert done.jobs == (0 if commit else 1)
    assert await ground.history.left([letter]) == ({letter} if commit else set())


@pytest.mark.parametrize("commit", [True, False])
async def test_a_job_that_is_being_removed_is_not_put_back(ground: Ground, commit: bool) -> None:
    [letter] = await ground.history.ended("dead_letter", days=18, ended=31, attempts=2, key="k")
    other = Database(ground.url, connections=1)
    await other.open()
    transaction = other.transaction()
    session = await transaction.__aenter__()
    removing = Retention(session, KEEP)  # type: ignore[arg-type]
    assert (await removing.remove_jobs(after=FIRST_ID, before=LAST_ID, rows=10)).jobs == 1
    retrying = asyncio.ensure_future(ground.jobs.retry(letter))
    await waits_for_a_lock(ground.sql)
    if commit:
        await transaction.__aexit__(None, None, None)
        with pytest.raises((JobNotFound, WrongStatus)):
            await retrying
        assert await ground.history.left([letter]) == set()
    else:
        await session.execute("rollback; begin")  # type: ignore[attr-defined]
        await transaction.__aexit__(None, None, None)
        await retrying
        assert (await ground.jobs.get(letter)).status is Status.PENDING
    await other.close()


async def test_ranges_and_gaps_cover_every_id(ground: Ground, sql: Connection) -> None:
    await ground.history.range(days=30, width=2)
    spans, horizon = await ground.retention.spans()
    assert spans[0].low == FIRST_ID
    assert spans[-1].high == LAST_ID
    assert all(one.high == other.low for one, other in itertools.pairwise(spans))
    assert [span.starts_at is None for span in spans[:5]] == [True, False, True, False, True]
    assert [span.past for span in spans[:5]] == [False, True, False, True, False]
    assert horizon is not None
    assert spans[3].high < horizon < spans[4].high
    assert spans[1].seconds == 2 * DAY_SECONDS
    assert [span.starts_at for span in spans if span.starts_at] == await ground.history.ranges()


async def test_kept_for_ever_is_never_past(ground: Ground, database: Database) -> None:
    for_ever = Retention(
        database,
        Keep.of(
            Settings(
                retain_completed_seconds=0,
                retain_failed_seconds=0,
                retain_dead_letter_seconds=0,
                retain_cancelled_seconds=0,
                idempotency_retention_seconds=0,
            )
        ),
    )
    spans, horizon = await for_ever.spans()
    assert horizon is None
    assert not any(span.past for span in spans)
    assert await for_ever.key_spans() == []
    await ground.history.ended("failed", days=18, ended=18)
    assert (await for_ever.remove_jobs(after=FIRST_ID, before=LAST_ID, rows=100)).jobs == 0


async def test_a_range_that_was_gone_through_is_looked_at_again_after_a_twentieth_of_its_age(ground: Ground) -> None:
    await ground.retention.leave(await ground.span())
    assert not (await ground.span()).due
    await ground.sql.execute(
        "update fencepost.partitions set pruned_at = now() - (now() - ends_at) / 20.1 where pruned_at is not null"
    )
    assert not (await ground.span()).due
    await ground.sql.execute(
        "update fencepost.partitions set pruned_at = now() - (now() - ends_at) / 19.9 where pruned_at is not null"
    )
    assert (await ground.span()).due


async def test_times_of_a_hundred_years_reach_back_to_the_first_id(ground: Ground, database: Database) -> None:
    keep = Keep(by_status={"completed": 36500 * DAY_SECONDS}, key_seconds=36500 * DAY_SECONDS)
    _, horizon = await Retention(database, keep).spans()
    assert horizon == FIRST_ID
    assert (await Retention(database, keep).key_spans())[0].high == FIRST_ID


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


async def test_nothing_is_read_but_the_rows_asked_for(ground: Ground) -> None:
    """A step costs the same in a large history: every scan is of an index, and bounded."""
    await ground.history.ended("failed", days=19, count=20_000, attempts=1, key="k")
    await ground.sql.execute("analyze")
    span = await ground.span()
    keep = json.dumps(KEEP.by_status)
    values: dict[str, dict[str, object]] = {
        "prune_jobs": {"after": span.low, "before": span.high, "keep": keep, "key_seconds": None, "max_rows": 50},
        "prune_keys": {"after": span.low, "before": span.high, "key_seconds": 5.0, "max_rows": 50},
        "count_expired": {"after": span.low, "before": span.high, "keep": keep, "max_rows": 50},
        "survey_range": {"starts_at": span.starts_at, "keep": keep, "begun": False, "max_rows": 50, "most_jobs": 50},
    }
    await ground.watch()
    connection = await connect(ground.url, **SESSION)
    for name, given in values.items():
        statement = statements.load(name, "fencepost")
        await connection.execute(f"prepare one as {statement.text}")
        listed = ", ".join("null" if value is None else f"'{value}'" for value in statement.arguments(given))
        plan = json.loads(await connection.fetchval(f"explain (analyze, buffers, format json) execute one({listed})"))[
            0
        ]["Plan"]
        await connection.execute("deallocate one")
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 1500, name
        scanned = {node["Relation Name"] for node in _nodes(plan) if node["Node Type"] == "Seq Scan"}
        assert scanned <= {"partitions"}, name
    await connection.close()


def test_the_settings_are_what_is_kept() -> None:
    keep = Keep.of(Settings())
    assert keep == KEEP
    assert keep.shortest_seconds == 7 * DAY_SECONDS
    keep = Keep.of(Settings(retain_completed_seconds=0, retain_failed_seconds=60, idempotency_retention_seconds=90))
    assert "completed" not in keep.by_status
    assert (keep.shortest_seconds, keep.key_seconds) == (60, 90)
    assert not keep.keeps_keys_for_ever
    assert Keep.of(Settings(idempotency_retention_seconds=0)).keeps_keys_for_ever


def test_a_day_is_a_day() -> None:
    assert days_ago(1) - days_ago(2) < timedelta(days=1.01)
