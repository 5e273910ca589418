"""Retry, cancel and delete by what jobs are: exactly those that match, only legal moves, whole or not at all."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from fencepost.domain.ids import new_id
from fencepost.domain.job import NewJob, Status
from fencepost.domain.outcome import Ending
from fencepost.errors import InvalidJob, JobNotFound
from fencepost.store import bulk as bulk_module
from fencepost.store.bulk import Action, Bulk, Result, Selection
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore
from fencepost.worker.cursors import Cursors

from .support import Connection, claim, connect, ended, job, until
from .test_listing import spread
from .test_races import Held, as_store

pytestmark = pytest.mark.anyio

ACTIONS: dict[Action, dict[Status, Status | None]] = {
    Action.RETRY: {Status.DEAD_LETTER: Status.PENDING},
    Action.CANCEL: {Status.PENDING: Status.CANCELLED, Status.PROCESSING: Status.PROCESSING},
    Action.DELETE: {
        Status.COMPLETED: None, Status.FAILED: None, Status.DEAD_LETTER: None, Status.CANCELLED: None,
    },
}  # fmt: skip
"""Which jobs each may move, and where to; None is away."""


@pytest.fixture
def bulk(database: Database, queues: Queues, hints: Hints) -> Bulk:
    return Bulk(database, queues, hints)


async def run(bulk: Bulk, action: Action, which: Selection, **options: Any) -> Result:
    result: Result = await getattr(bulk, action.value)(which, **options)
    return result


async def statuses(jobs: Jobs, ids: Iterable[UUID]) -> dict[UUID, Status | None]:
    found: dict[UUID, Status | None] = {}
    for one in ids:
        try:
            found[one] = (await jobs.get(one)).status
        except JobNotFound:
            found[one] = None
    return found


async def dead_letters(jobs: Jobs, store: WorkerStore, queue_id: int, made: list[NewJob]) -> list[UUID]:
    """Store jobs and let each use up its attempts."""
    await jobs.enqueue(made)
    leases = await claim(store, queue_id, slots=len(made))
    assert len(leases) == len(made)
    await store.settle(queue_id, [ended(lease, Ending.FAILED, Status.DEAD_LETTER) for lease in leases])
    return [one.id for one in made]


async def consistent(jobs: Jobs) -> None:
    counts = await jobs.audit()
    assert counts["jobs"] == counts["pending"] + counts["leases"] + counts["finished"]


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("status", [None, *Status])
async def test_only_legal_moves_and_exactly_those_that_match(
    bulk: Bulk, jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection, action: Action,
    status: Status | None,
) -> None:  # fmt: skip
    where = await spread(jobs, queues, worker_store, 120)
    tagged = set(random.Random(4).sample(sorted(where), 60))
    await sql.execute("update fencepost.jobs set tags = '{x,y}' where id = any($1)", list(tagged))
    which = Selection(status=status, tag="y")
    if status is not None and status not in ACTIONS[action]:
        with pytest.raises(InvalidJob, match=f"^status: only .* jobs can be .*, not {status}$"):
            await run(bulk, action, which)
        assert await statuses(jobs, where) == where
        return
    meant = {one for one in tagged if status in (None, where[one]) and where[one] in ACTIONS[action]}
    assert meant
    assert await bulk.count(action, which) == len(meant)
    assert await statuses(jobs, where) == where, "counting changes nothing"
    result = await run(bulk, action, which)
    assert result == Result(matched=len(meant), changed=len(meant), requested=result.requested)
    assert result.requested == sum(where[one] is Status.PROCESSING for one in meant if action is Action.CANCEL)
    expected = {one: ACTIONS[action][was] if one in meant else was for one, was in where.items()}
    assert await statuses(jobs, where) == expected
    for one in meant:
        if action is Action.RETRY:
            assert (await jobs.get(one)).attempts == 0
        if action is Action.CANCEL and where[one] is Status.PROCESSING:
            assert (await jobs.get(one)).cancel_requested_at is not None
    await consistent(jobs)


async def test_tags_times_and_ids_are_conditions(bulk: Bulk, jobs: Jobs) -> None:
    start = datetime(2026, 5, 1, tzinfo=UTC)

    def at(minutes: int) -> UUID:
        now = int((start + timedelta(minutes=minutes)).timestamp()) * 10**9
        return new_id(now_ns=lambda: now)

    made = [job(id=at(minutes), tags=("even", "x") if minutes % 2 == 0 else ("odd",)) for minutes in range(10)]
    await jobs.enqueue(made)
    ids = [one.id for one in made]

    async def count(**conditions: Any) -> int:
        return await bulk.count(Action.CANCEL, Selection(**conditions))

    assert await count(tag="even") == await count(tag="odd") == 5
    assert await count(tag="eve") == await count(tag="none") == 0
    assert await count(since=start + timedelta(minutes=3), until=start + timedelta(minutes=7)) == 4
    assert await count(ids=(ids[0], ids[0], ids[1], new_id())) == 2
    assert await count(ids=(ids[0], ids[1]), tag="odd") == 1
    assert await count(ids=(ids[0], ids[8]), since=start + timedelta(minutes=3)) == 1
    assert await count(ids=(), tag="odd") == 0
    assert await count(queue="nobody") == 0
    result = await bulk.cancel(Selection(tag="even", ids=tuple(ids[:5])))
    assert result == Result(matched=3, changed=3)
    assert [status is Status.CANCELLED for status in (await statuses(jobs, ids)).values()] == [
        True, False, True, False, True, *[False] * 5,
    ]  # fmt: skip


@pytest.mark.parametrize("action", Action)
async def test_everything_has_to_be_said(
    bulk: Bulk, jobs: Jobs, queues: Queues, worker_store: WorkerStore, action: Action
) -> None:
    where = await spread(jobs, queues, worker_store, 60)
    with pytest.raises(InvalidJob, match="everything=True"):
        await run(bulk, action, Selection())
    with pytest.raises(InvalidJob, match="give a condition"):
        await bulk.count(action, Selection())
    assert await statuses(jobs, where) == where
    result = await run(bulk, action, Selection(everything=True))
    assert result.changed == sum(status in ACTIONS[action] for status in where.values())


@pytest.mark.parametrize(
    ("conditions", "field"),
    [
        ({"type": "a\x00b"}, "type"),
        ({"queue": ""}, "queue"),
        ({"queue": "\udcff"}, "queue"),
        ({"tag": "a\x00b"}, "tag"),
        ({"tag": "x" * 1_000}, "tag"),
        ({"since": datetime(2026, 1, 1)}, "since"),
        ({"until": datetime(2026, 1, 1)}, "until"),
    ],
)
async def test_conditions_that_no_job_could_meet_are_refused(bulk: Bulk, conditions: Any, field: str) -> None:
    for action in Action:
        with pytest.raises(InvalidJob, match=f"^{field}: "):
            await run(bulk, action, Selection(**conditions))


async def test_a_spread_that_cannot_be_meant_is_refused(bulk: Bulk) -> None:
    for seconds in (-1, float("inf"), float("nan")):
        with pytest.raises(InvalidJob, match="spread_seconds"):
            await bulk.retry(Selection(everything=True), spread_seconds=seconds)


async def test_batches_tell_how_far_they_are_and_wake_workers_once(
    bulk: Bulk, jobs: Jobs, queues: Queues, worker_store: WorkerStore, database_url: str, sql: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(bulk_module, "BATCH_JOBS", 7)
    queue_id = await queues.ensure("default", 0)
    ids = await dead_letters(jobs, worker_store, queue_id, [job(max_attempts=1) for _ in range(25)])
    await asyncio.sleep(0.05)  # what the enqueue owed its workers is paid
    heard: list[str] = []
    await sql.add_listener("fencepost:fencepost", lambda *hint: heard.append(hint[3]))
    told: list[Result] = []

    async def progress(result: Result) -> None:
        told.append(result)

    before = await transactions(sql)
    result = await bulk.retry(Selection(type="work"), progress=progress)
    assert [(one.matched, one.changed) for one in told] == [(7, 7), (14, 14), (21, 21), (25, 25), (25, 25)]
    assert result == told[-1]
    await until(lambda: said(heard, f"due {queue_id}"))
    assert heard == [f"due {queue_id}"]
    assert await transactions(sql) - before < 4 * 2 + 5, "two statements a batch"
    leases = await claim(worker_store, queue_id, slots=100)
    assert sorted(lease.id for lease in leases) == sorted(ids)
    assert {(lease.attempt, lease.token) for lease in leases} == {(1, 2)}


async def said(heard: list[str], hint: str) -> bool:
    return hint in heard


async def transactions(sql: Connection) -> int:
    await sql.execute("select pg_stat_clear_snapshot()")
    return int(await sql.fetchval("select txid_snapshot_xmax(txid_current_snapshot())"))


async def test_a_run_that_its_caller_ends_keeps_what_it_did_and_wakes_for_it(
    bulk: Bulk, jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_module, "BATCH_JOBS", 5)
    queue_id = await queues.ensure("default", 0)
    ids = await dead_letters(jobs, worker_store, queue_id, [job(max_attempts=1) for _ in range(20)])
    heard: list[str] = []
    await sql.add_listener("fencepost:fencepost", lambda *hint: heard.append(hint[3]))

    async def enough(result: Result) -> None:
        if result.changed >= 10:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        await bulk.retry(Selection(type="work"), progress=enough)
    now = await statuses(jobs, ids)
    assert sum(status is Status.PENDING for status in now.values()) == 10
    await until(lambda: said(heard, f"due {queue_id}"))


async def test_retries_are_spread_over_the_time_that_was_asked_for(
    bulk: Bulk, jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    queue_id = await queues.ensure("default", 0)
    await dead_letters(jobs, worker_store, queue_id, [job(max_attempts=1) for _ in range(1_000)])
    before = await sql.fetchval("select clock_timestamp()")
    result = await bulk.retry(Selection(type="work"), spread_seconds=600)
    assert result.changed == 1_000
    minutes = await sql.fetch(
        "select floor(extract(epoch from run_at - $1) / 60)::int as minute, count(*) from fencepost.pending "
        "group by 1 order by 1",
        before,
    )
    assert [row["minute"] for row in minutes] in ([*range(10)], [*range(11)])
    assert all(50 < row["count"] < 160 for row in minutes[:10]), minutes
    assert await sql.fetchval("select min(run_at) >= $1 from fencepost.pending", before)
    assert len(await claim(worker_store, queue_id, slots=1_000)) < 50


async def test_a_running_job_hears_that_it_is_to_stop(
    bulk: Bulk, jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    queue_id = await queues.ensure("default", 0)
    await jobs.enqueue([job() for _ in range(3)])
    leases = await claim(worker_store, queue_id, slots=2)
    heard: list[str] = []
    await sql.add_listener("fencepost:fencepost", lambda *hint: heard.append(hint[3]))
    assert await bulk.cancel(Selection(queue="default")) == Result(matched=3, changed=3, requested=2)
    await until(lambda: said(heard, f"cancel {queue_id} {leases[1].id}"))
    assert set(heard) == {f"cancel {queue_id} {lease.id}" for lease in leases}
    outcomes = [ended(lease, Ending.FAILED, Status.PENDING) for lease in leases]
    assert await worker_store.settle(queue_id, outcomes) == [Status.CANCELLED] * 2


async def test_cancelling_what_waits_leaves_what_runs_alone(
    bulk: Bulk, jobs: Jobs, queues: Queues, worker_store: WorkerStore
) -> None:
    queue_id = await queues.ensure("default", 0)
    await jobs.enqueue([job() for _ in range(3)])
    [lease] = await claim(worker_store, queue_id)
    assert await bulk.cancel(Selection(status=Status.PENDING)) == Result(matched=2, changed=2)
    assert (await jobs.get(lease.id)).cancel_requested_at is None
    assert await bulk.cancel(Selection(status=Status.PROCESSING)) == Result(matched=1, changed=1, requested=1)


async def test_a_deleted_job_leaves_nothing_and_frees_its_keys(
    bulk: Bulk, jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    queue_id = await queues.ensure("default", 0)
    made = [job(idempotency_key=f"key {number}", max_attempts=1) for number in range(4)]
    ids = await dead_letters(jobs, worker_store, queue_id, made)
    for one in ids[:2]:
        await sql.execute("update fencepost.jobs set unique_key = $2 where id = $1", one, str(one))
    await sql.executemany(
        "insert into fencepost.unique_keys (type, key, job_id, queue_id, until) "
        "values ('work', $1, $2, $3, 'finished')",
        [(str(ids[0]), ids[0], queue_id), (str(ids[1]), ids[2], queue_id)],
    )
    await sql.execute("insert into fencepost.survivors values ($1)", ids[0])
    assert await bulk.delete(Selection(ids=tuple(ids[:2]))) == Result(matched=2, changed=2)
    for table in ("jobs", "finished", "attempts"):
        left = await sql.fetch(f"select id from fencepost.{table}")
        assert sorted(row["id"] for row in left) == sorted(ids[2:]), table
    assert await sql.fetchval("select count(*) from fencepost.survivors") == 0
    keys = await sql.fetch("select key from fencepost.idempotency_keys order by 1")
    assert [row["key"] for row in keys] == ["key 2", "key 3"]
    assert [row["key"] for row in await sql.fetch("select key from fencepost.unique_keys")] == [str(ids[1])], (
        "the key that another job holds by now stays"
    )
    again = await jobs.enqueue([msgspec.structs.replace(made[0], id=new_id())])
    assert not again[0].replayed
    await consistent(jobs)


@asynccontextmanager
async def bulk_in(held: Held, action: str, **values: object) -> AsyncIterator[list[Any]]:
    """One batch inside an open transaction."""
    session = await held.begin()
    yield await session.fetch(f"bulk_{action}", **values)


def about(*ids: UUID) -> dict[str, object]:
    return {"ids": list(ids), "low": min(ids), "high": max(ids)}


@pytest.mark.parametrize("commit", [True, False])
async def test_a_claim_wins_or_loses_whole_against_a_cancellation(
    bulk: Bulk, jobs: Jobs, queues: Queues, worker_store: WorkerStore, hot_database: Database, commit: bool
) -> None:
    """The claim came first: the run passes the row over, comes back, and finds the job where the claim left it."""
    queue_id = await queues.ensure("default", 0)
    made = [job() for _ in range(3)]
    await jobs.enqueue(made)
    held = Held(hot_database)
    [lease] = await claim(as_store(await held.begin()), queue_id)
    passed = asyncio.Event()

    async def progress(result: Result) -> None:
        assert result == Result(matched=3, changed=2), "it doesn't wait"
        passed.set()

    async def watch(result: Result) -> None:
        if not passed.is_set():
            await progress(result)

    cancelling = asyncio.create_task(bulk.cancel(Selection(type="work"), progress=watch))
    await asyncio.wait_for(passed.wait(), 10)
    await held.end(commit=commit)
    assert await cancelling == Result(matched=3, changed=3, requested=1 if commit else 0)
    record = await jobs.get(lease.id)
    assert record.status is (Status.PROCESSING if commit else Status.CANCELLED)
    assert (record.cancel_requested_at is not None) is commit
    await consistent(jobs)


async def test_a_job_that_starts_meanwhile_is_not_stopped_when_only_waiting_ones_are_meant(
    bulk: Bulk, jobs: Jobs, queues: Queues, worker_store: WorkerStore, hot_database: Database
) -> None:
    queue_id = await queues.ensure("default", 0)
    await jobs.enqueue([job() for _ in range(3)])
    held = Held(hot_database)
    [lease] = await claim(as_store(await held.begin()), queue_id)
    first = asyncio.Event()

    async def progress(_: Result) -> None:
        first.set()

    cancelling = asyncio.create_task(bulk.cancel(Selection(status=Status.PENDING), progress=progress))
    await asyncio.wait_for(first.wait(), 10)
    await held.commit()
    assert await cancelling == Result(matched=3, changed=2, skipped=1)
    assert (await jobs.get(lease.id)).cancel_requested_at is None


@pytest.mark.parametrize("commit", [True, False])
async def test_a_cancellation_wins_or_loses_whole_against_a_claim(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, database: Database, commit: bool
) -> None:
    queue_id = await queues.ensure("default", 0)
    made = [job() for _ in range(2)]
    await jobs.enqueue(made)
    held = Held(database)
    values = {"pending": True, "processing": True, "hints": ["x", "x"], "channel": "x"}
    async with bulk_in(held, "cancel", ids=[one.id for one in made], **values) as rows:
        assert {row["effect"] for row in rows} == {"cancelled"}
        assert await claim(worker_store, queue_id, slots=5) == [], "it doesn't wait"
    await held.end(commit=commit)
    assert len(await claim(worker_store, queue_id, slots=5)) == (0 if commit else 2)
    await consistent(jobs)


@pytest.mark.parametrize("action", ["retry", "delete"])
@pytest.mark.parametrize("commit", [True, False])
async def test_a_dead_letter_that_another_retry_holds(
    bulk: Bulk, jobs: Jobs, queues: Queues, worker_store: WorkerStore, database: Database, action: str, commit: bool
) -> None:
    """It is passed over, and found again only if that retry comes to nothing."""
    queue_id = await queues.ensure("default", 0)
    [one, other] = await dead_letters(jobs, worker_store, queue_id, [job(max_attempts=1) for _ in range(2)])
    held = Held(database)
    async with bulk_in(held, "retry", **about(one), spread_seconds=0.0) as rows:
        assert [row["effect"] for row in rows] == ["retried"]
        first = asyncio.Event()

        async def progress(_: Result) -> None:
            first.set()

        running = asyncio.create_task(run(bulk, Action(action), Selection(queue="default"), progress=progress))
        await asyncio.wait_for(first.wait(), 10)
    await held.end(commit=commit)
    result = await running
    assert result == Result(matched=2, changed=1 if commit else 2, skipped=1 if commit else 0)
    after = Status.PENDING if action == "retry" else None
    assert await statuses(jobs, [one, other]) == {one: Status.PENDING if commit else after, other: after}
    await consistent(jobs)


@pytest.mark.parametrize("commit", [True, False])
async def test_a_retry_waits_for_a_deletion_and_then_finds_no_job(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, database: Database, commit: bool
) -> None:
    queue_id = await queues.ensure("default", 0)
    [one] = await dead_letters(jobs, worker_store, queue_id, [job(max_attempts=1)])
    held = Held(database)
    async with bulk_in(held, "delete", **about(one), status=None) as rows:
        assert [row["effect"] for row in rows] == ["deleted"]
        retry = asyncio.create_task(jobs.retry(one))
        await asyncio.sleep(0)
    await held.end(commit=commit)
    if commit:
        with pytest.raises(JobNotFound):
            await retry
    else:
        await retry
        assert (await jobs.get(one)).status is Status.PENDING
    await consistent(jobs)


async def test_claims_that_pass_the_due_time_of_a_retry_find_its_job_later(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, database: Database
) -> None:
    """
    The due time is the clock's when the retry has its transaction id, so cursors know whom to wait for.

        retry of many                       dispatcher
        stamps run_at = 12:00:01
                                            claims at 12:00:02; cursor there
        commits                             the job is behind the cursor, and is found
    """
    queue_id = await queues.ensure("default", 0)
    ids = await dead_letters(jobs, worker_store, queue_id, [job(max_attempts=1) for _ in range(3)])
    cursors = Cursors()

    async def look() -> set[UUID]:
        starts = cursors.starts()
        claimed = await worker_store.claim(queue_id, slots=5, cursors=starts, lease_seconds=60, aging_seconds=60)
        cursors.claimed(starts, claimed)
        return {lease.id for lease in claimed.leases}

    assert await look() == set()
    held = Held(database)
    async with bulk_in(held, "retry", **about(*ids), spread_seconds=0.0):
        for _ in range(4):
            assert await look() == set()
    assert cursors.starts(), "the cursors have moved on meanwhile"
    await held.commit()
    assert await look() | await look() == set(ids)


async def test_jobs_that_stay_locked_are_left_and_counted(
    bulk: Bulk, jobs: Jobs, queues: Queues, worker_store: WorkerStore, database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(bulk_module, "RETURNS", (0.001, 0.002))
    queue_id = await queues.ensure("default", 0)
    ids = await dead_letters(jobs, worker_store, queue_id, [job(max_attempts=1) for _ in range(5)])
    other = await connect(database_url)
    async with other.transaction():
        await other.fetch("select from fencepost.finished where id = any($1) for update", ids[:2])
        assert await bulk.retry(Selection(queue="default")) == Result(matched=5, changed=3, skipped=2)
        assert await bulk.delete(Selection(queue="default")) == Result(matched=2, changed=0, skipped=2)
    await other.close()
    assert await bulk.delete(Selection(queue="default")) == Result(matched=2, changed=2)


async def test_runs_beside_workers_lose_no_job_and_run_none_twice(
    bulk: Bulk, jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    """Workers claim and settle while runs retry, cancel and delete what they meet; then the books are checked."""
    queue_id = await queues.ensure("default", 0)
    await jobs.enqueue([job(max_attempts=1, type=f"t{number % 3}") for number in range(1_500)])
    stop = asyncio.Event()
    leased: dict[tuple[UUID, int], int] = {}
    settled: list[tuple[UUID, int]] = []

    async def work(seed: int) -> None:
        choose = random.Random(seed)
        while not stop.is_set():
            leases = await claim(worker_store, queue_id, slots=20)
            for lease in leases:
                leased[lease.id, lease.token] = leased.get((lease.id, lease.token), 0) + 1
            fates = [choose.choice((Status.COMPLETED, Status.DEAD_LETTER, Status.FAILED)) for _ in leases]
            endings = {Status.COMPLETED: Ending.SUCCEEDED, Status.FAILED: Ending.PERMANENT}
            outcomes = [
                ended(lease, endings.get(fate, Ending.FAILED), fate) for lease, fate in zip(leases, fates, strict=True)
            ]
            for outcome, status in zip(outcomes, await worker_store.settle(queue_id, outcomes), strict=True):
                assert status is outcome.status, "a settlement is whole: nobody else may end a leased job"
                settled.append((outcome.id, outcome.token))
            if not leases:
                await asyncio.sleep(0.002)

    workers = [asyncio.create_task(work(seed)) for seed in range(3)]
    results: list[Result] = []
    for _ in range(4):
        results += await asyncio.gather(
            bulk.retry(Selection(status=Status.DEAD_LETTER)),
            bulk.retry(Selection(type="t0")),
            bulk.cancel(Selection(type="t1")),
            bulk.delete(Selection(type="t2")),
        )
        await consistent(jobs)
    stop.set()
    await asyncio.gather(*workers)
    for result in results:
        assert result.matched == result.changed + result.skipped
    assert max(leased.values()) == 1
    assert len(settled) == len(set(settled))
    deleted = sum(result.changed for result in results[3::4])
    counts = await jobs.audit()
    assert counts["jobs"] == 1_500 - deleted
    await consistent(jobs)
    orphans = await sql.fetchval(
        "select count(*) from fencepost.attempts a where not exists (select from fencepost.jobs j where j.id = a.id)"
    )
    assert orphans == 0


@pytest.mark.slow
async def test_a_run_of_ten_thousand_is_quick_and_each_transaction_small(
    bulk: Bulk, jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    queue_id = await queues.ensure("default", 0)
    for _ in range(2):
        await dead_letters(jobs, worker_store, queue_id, [job(max_attempts=1) for _ in range(5_000)])
    loop = asyncio.get_running_loop()
    started = loop.time()
    assert (await bulk.retry(Selection(status=Status.DEAD_LETTER))).changed == 10_000
    assert (await bulk.cancel(Selection(status=Status.PENDING))).changed == 10_000
    assert (await bulk.delete(Selection(status=Status.CANCELLED))).changed == 10_000
    assert loop.time() - started < 20
    assert (await jobs.audit())["jobs"] == 0
    assert uuid.UUID(int=0) not in await statuses(jobs, [])
