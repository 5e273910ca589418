"""A run of the pruner: what goes, what stays, and that it is in nobody's way."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from fencepost.domain.ids import new_id
from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending
from fencepost.errors import DatabaseUnavailable, JobNotFound, WrongStatus
from fencepost.store import retention as steps
from fencepost.store.database import HOT_SESSION, Database
from fencepost.store.jobs import Jobs
from fencepost.store.retention import Keep, Retention, Span, Survey
from fencepost.store.workers import WorkerStore
from fencepost.telemetry.events import Events
from fencepost.telemetry.pulses import unwatched
from fencepost.worker import pruner
from fencepost.worker.pruner import Pace, Pruner, Report
from tests.patience import limit
from tests.store.history import History, old_job
from tests.store.support import claim, completed, ended

from .support import Bench, fields_of, records, wait_until, within

pytestmark = pytest.mark.anyio

DAY = 86400.0
KEEP = Keep(
    by_status={"completed": 7 * DAY, "failed": 30 * DAY, "dead_letter": 30 * DAY, "cancelled": 30 * DAY},
)


class Pruned(Events):
    """Counts what is reported as removed."""

    def __init__(self) -> None:
        self.count = 0

    def pruned(self, count: int) -> None:
        self.count += count


@pytest.fixture
async def sql(database_url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
async def history(sql: Any) -> AsyncIterator[History]:
    history = History(sql)
    await history.begin()
    yield history
    await history.whole()


def make(database: Database, keep: Keep = KEEP, *, events: Events | None = None, everything: bool = False) -> Pruner:
    return Pruner(Retention(database, keep), events=events or Events(), everything=everything, rest=0)


async def test_a_run_removes_what_is_past_its_time_wherever_it_is(
    database: Database, history: History, sql: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(steps, "MOVED_JOBS", 5)
    monkeypatch.setattr(pruner, "MOVED_JOBS", 5)
    caplog.set_level(logging.INFO)
    first, second = await history.range(days=20), await history.range(days=17)
    gone = [
        *await history.ended(days=19, count=300, key="range"),
        *await history.ended(days=16, count=40, key="batch"),
        *await history.ended(days=400, count=3, key="default"),
        *await history.ended(days=-400, ended=8, count=3, key="future"),
    ]
    moved = await history.ended("failed", days=18, count=5, key="moved", attempts=1)
    kept = [
        *await history.ended("failed", days=16.1, count=6, key="kept"),
        *await history.ended(days=-401, ended=1),
        *await history.ended(days=0.01, count=10),
    ]
    events = Pruned()
    report = await make(database, events=events).run()
    assert report == Report(jobs=346, keys=346, ranges=1, moved=5)
    assert events.count == 346
    assert await history.left([*gone, *moved, *kept]) == {*moved, *kept}
    assert first not in await history.ranges()
    assert second in await history.ranges()
    keys = await sql.fetch("select key from fencepost.idempotency_keys")
    assert {row["key"].rstrip("0123456789") for row in keys} == {"moved", "kept"}
    [line] = records(caplog, "old jobs removed")
    said = fields_of(line)
    assert said.pop("duration_ms") >= 0
    assert said == {"jobs": 346, "keys": 346, "unique_keys": 0, "ranges_dropped": 1, "ranges_left": 0, "jobs_moved": 5}
    [line] = records(caplog, "old partitions dropped")
    assert fields_of(line) == {"starts_at": first.isoformat(), "jobs": 300, "jobs_moved": 5}
    assert await make(database, everything=True).run() == Report(), "nothing is left to do"


async def test_what_was_kept_goes_when_its_own_time_comes(
    database: Database, history: History, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range that had too much to move is dropped later, and what was moved is deleted where it then is."""
    monkeypatch.setattr(steps, "MOVED_JOBS", 5)
    monkeypatch.setattr(pruner, "MOVED_JOBS", 5)
    await history.range(days=20)
    many = await history.ended("failed", days=19, count=8)
    assert await make(database).run() == Report()
    assert await make(database).run() == Report(), "it isn't due"
    await sql.execute(
        "update fencepost.finished set finished_at = now() - interval '31 days' where id = any($1)", many[:7]
    )
    await sql.execute(
        "update fencepost.partitions set pruned_at = now() - interval '1 day' where pruned_at is not null"
    )
    assert await make(database).run() == Report(jobs=7, ranges=1, moved=1)
    await sql.execute("update fencepost.finished set finished_at = now() - interval '31 days'")
    assert await make(database).run() == Report(jobs=1)
    assert await history.left(many) == set()


@pytest.mark.parametrize(
    ("keep_days", "began", "width", "goes"),
    [(5.5, 6, 7, True), (0.01, 6, 7, True), (7.5, 6, 7, False), (7, 8, 3, False)],
)
async def test_a_time_shorter_than_a_range_is_not_waited_out(
    database: Database, history: History, keep_days: float, began: float, width: float, goes: bool
) -> None:
    """In a range that isn't over, what is kept for less than its width is deleted; for the rest it is waited for."""
    await history.without_ranges()
    await history.range(days=began, width=width)
    [made] = await history.ended(days=began - 0.1, ended=8)
    [young] = await history.ended(days=began - 0.2, ended=0.001)
    report = await make(database, Keep(by_status={"completed": keep_days * DAY})).run()
    assert report.jobs == int(goes)
    assert await history.left([made, young]) == ({young} if goes else {made, young})
    assert len(await history.ranges()) == 1


async def test_a_range_whose_table_is_locked_is_left_and_the_rest_done(
    database: Database, history: History, sql: Any, database_url: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(pruner, "TRIES", 2)
    await history.range(days=20)
    await history.ended(days=19, count=5)
    await history.ended(days=300)
    reader = await asyncpg.connect(database_url)
    transaction = reader.transaction()
    await transaction.start()
    await reader.fetchval("select count(*) from fencepost.attempts")
    assert await make(database).run() == Report(jobs=1, left=1)
    assert records(caplog, "old partitions can't be dropped yet: another transaction keeps a table locked")
    await transaction.rollback()
    await reader.close()
    assert await make(database).run() == Report(jobs=5, ranges=1)


REFUSING = """
create function refuse() returns trigger language plpgsql as $$
begin
    if old.id = '{job_id}' then
        raise 'needed elsewhere';
    end if;
    return old;
end
$$;
create trigger refuse before delete on fencepost.jobs for each row execute function refuse()
"""


async def test_what_can_not_be_removed_keeps_nothing_else_from_going(
    database: Database, history: History, sql: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Jobs in the default partitions, before a range that is dropped, a range that is gone through, and keys."""
    monkeypatch.setattr(steps, "MOVED_JOBS", 5)
    monkeypatch.setattr(pruner, "MOVED_JOBS", 5)
    await history.range(days=20)
    await history.range(days=17)
    [stays] = await history.ended(days=300)
    gone = [*await history.ended(days=19, count=8), *await history.ended(days=16, count=8)]
    kept = await history.ended("failed", days=16, count=6)
    [young] = await history.ended(days=6, key="k")
    await sql.execute("insert into fencepost.unique_keys values ('work', 'u', $1, $2, 'finished')", young, 1)
    await sql.execute(REFUSING.format(job_id=stays))
    run = make(database, Keep(by_status=KEEP.by_status, key_seconds=DAY))
    with pytest.raises(asyncpg.RaiseError, match="needed elsewhere"):
        await run.run()
    assert await history.left([stays, *gone, *kept, young]) == {stays, *kept, young}
    assert await sql.fetchval("select count(*) from fencepost.idempotency_keys") == 0
    assert await sql.fetchval("select count(*) from fencepost.unique_keys") == 0
    [line] = records(caplog, "some of what is old can't be removed")
    assert fields_of(line) == {"where": "default partitions", "reason": "needed elsewhere"}
    await sql.execute("drop trigger refuse on fencepost.jobs")
    assert await run.run() == Report(jobs=1)


async def test_a_fault_of_the_pruner_is_told_although_the_rest_was_done(
    database: Database, history: History, sql: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pruner, "FIRST_AFTER_SECONDS", 0)
    [stays] = await history.ended(days=300)
    await sql.execute(REFUSING.format(job_id=stays))
    pulse = unwatched("pruner")
    keeping = asyncio.ensure_future(make(database).keep_on(pulse))
    await wait_until(lambda: bool(records(caplog, "fault in removing old jobs")), 10)
    assert pulse.error is not None
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping


@pytest.mark.parametrize("key_days", [None, 1])
async def test_a_job_whose_key_somebody_holds_stays_with_it_for_now(
    database: Database, history: History, sql: Any, database_url: str, key_days: float | None
) -> None:
    keep = Keep(by_status=KEEP.by_status, key_seconds=key_days and key_days * DAY)
    await history.ended(days=300, count=5, key="k")
    somebody = await asyncpg.connect(database_url)
    transaction = somebody.transaction()
    await transaction.start()
    held = await somebody.fetchval("select job_id from fencepost.idempotency_keys where key = 'k3' for update")
    assert await make(database, keep).run() == Report(jobs=4, keys=4)
    assert [row["id"] for row in await sql.fetch("select id from fencepost.jobs")] == [held]
    await transaction.rollback()
    await somebody.close()
    assert await make(database, keep).run() == Report(jobs=1, keys=1)
    assert await sql.fetchval("select count(*) from fencepost.idempotency_keys") == 0


async def test_a_run_that_meets_another_leaves(database: Database, history: History, database_url: str) -> None:
    await history.range(days=20)
    [made] = await history.ended(days=19)
    other = await asyncpg.connect(database_url)
    transaction = other.transaction()
    await transaction.start()
    await other.fetchval("select fencepost.retention_turn()")
    assert await make(database).run() == Report(interrupted=True)
    assert await history.left([made]) == {made}
    await transaction.rollback()
    await other.close()


async def test_a_survey_that_another_with_other_times_begins_anew_is_left_to_that_one(
    database: Database, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    While settings are being rolled out. Each would undo every step of the other, for ever.

    one with the shorter times          one with the longer ones
    surveys some
                                        begins anew
    finds that, and leaves the run
                                        surveys the rest, and decides
    """
    monkeypatch.setattr(pruner, "SURVEYED_ROWS", 10)
    await history.range(days=20)
    made = await history.ended(days=19, count=30)
    shorter, longer = ({**KEEP.by_status, "completed": days * DAY} for days in (7, 10))
    met, left = asyncio.Event(), asyncio.Event()

    class First(Retention):
        async def survey(self, span: Span, *, rows: int, begun: bool = False) -> Survey:
            if begun:
                met.set()
                await left.wait()
            return await super().survey(span, rows=rows, begun=begun)

    class Second(Retention):
        async def survey(self, span: Span, *, rows: int, begun: bool = False) -> Survey:
            if begun:
                left.set()
                await first
            return await super().survey(span, rows=rows, begun=begun)

    def run(retention: Retention) -> asyncio.Task[Report]:
        return asyncio.get_running_loop().create_task(Pruner(retention, events=Events(), rest=0).run())

    first = run(First(database, Keep(by_status=shorter)))
    async with asyncio.timeout(20):
        await met.wait()
        assert await run(Second(database, Keep(by_status=longer))) == Report(jobs=30, ranges=1)
    assert await first == Report(interrupted=True)
    assert await history.left(made) == set()


async def test_nothing_set_nothing_done(database: Database, history: History) -> None:
    await history.range(days=2000)
    await history.ended(days=1999, key="k")
    assert await make(database, Keep(by_status={}), everything=True).run() == Report()


async def test_several_at_once_remove_each_job_once(
    database_url: str, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three processes that prune again and again, under a time-out of the role: no deadlock, and all of it goes."""
    monkeypatch.setattr(steps, "MOVED_JOBS", 50)
    monkeypatch.setattr(pruner, "MOVED_JOBS", 50)
    for days in (40, 37, 34):
        await history.range(days=days)
    gone = [
        one for days in (39, 36, 33) for one in await history.ended(days=days, count=1500, attempts=1, key=f"{days}-")
    ]
    kept = [
        *await history.ended("dead_letter", days=39, ended=1, count=40),
        *await history.ended("dead_letter", days=36, ended=1, count=200),
    ]
    databases = [Database(database_url, connections=1, session={"statement_timeout": "5s"}) for _ in range(3)]
    for database in databases:
        await database.open()

    async def prune(database: Database) -> tuple[int, int, int]:
        runs = [await make(database, everything=True).run() for _ in range(12)]
        return sum(one.jobs for one in runs), sum(one.ranges for one in runs), sum(one.keys for one in runs)

    counted = await asyncio.gather(*(prune(database) for database in databases))
    last = await make(databases[0], everything=True).run()
    for database in databases:
        await database.close()
    jobs, ranges, keys = (sum(column) for column in zip(*counted, (last.jobs, last.ranges, last.keys), strict=True))
    assert (ranges, keys) == (2, 4500)
    # A range that two of them survey in turn may be counted by the one and emptied by the other.
    assert jobs >= 4500
    assert await history.left([*gone, *kept]) == set(kept)


RANGES = (41, 38, 35, 32, 29, 26, 23, 20)
"""When the ranges of the traffic test began, in days before now."""


class Traffic:
    """Producers, workers, retries and cancellations on jobs of an old range, until told to stop."""

    def __init__(self, jobs: Jobs, store: WorkerStore, queue_id: int) -> None:
        self._jobs = jobs
        self._store = store
        self._queue_id = queue_id
        self.made: list[UUID] = []
        self.slowest = 0.0
        """The longest that a claim or a settlement took."""
        self.letters: list[UUID] = []
        self._random = random.Random(7)
        self.stopped = False

    async def produce(self) -> None:
        while not self.stopped:
            made = [old_job(self._random.uniform(RANGES[-1] - 3, RANGES[0])) for _ in range(3)]
            with suppress(DatabaseUnavailable):
                await self._jobs.enqueue(made)
                self.made += [one.id for one in made]
            await asyncio.sleep(0.01)

    async def work(self) -> None:
        while not self.stopped:
            began = time.monotonic()
            leases = await claim(self._store, self._queue_id, slots=5)
            endings = [
                completed(lease) if number % 2 else ended(lease, Ending.FAILED, Status.DEAD_LETTER)
                for number, lease in enumerate(leases)
            ]
            assert len(await self._store.settle(self._queue_id, endings)) == len(endings)
            self.slowest = max(self.slowest, time.monotonic() - began)
            await asyncio.sleep(0.001)

    async def interfere(self) -> None:
        while not self.stopped:
            await asyncio.sleep(0.001)
            if self.made:
                with suppress(WrongStatus, DatabaseUnavailable):
                    await self._jobs.cancel(self._random.choice(self.made[-10:]))
            if self.letters:
                letter = self.letters.pop()
                # Past its time: it is gone, or it is put back and stays.
                with suppress(JobNotFound, WrongStatus, DatabaseUnavailable):
                    await self._jobs.retry(letter)
                    self.made.append(letter)


@pytest.mark.slow
async def test_nothing_is_lost_beside_traffic_on_the_old_ranges(
    database: Database, database_url: str, jobs: Jobs, history: History, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Late jobs of old ranges come, end and are put back while their ranges are surveyed, emptied and dropped.

    In every snapshot each job is in exactly one place; in the end each that had to stay is there.
    """
    monkeypatch.setattr(steps, "MOVED_JOBS", 400)
    monkeypatch.setattr(pruner, "MOVED_JOBS", 400)
    monkeypatch.setattr(pruner, "SURVEYED_ROWS", 20)
    hot = Database(database_url, session=HOT_SESSION, connections=4)
    pruning = Database(database_url, session=HOT_SESSION, connections=1)
    await hot.open()
    await pruning.open()
    traffic = Traffic(jobs, WorkerStore(hot, new_id()), history.queue_id)
    tasks: list[asyncio.Task[None]] = []
    old: list[UUID] = []
    runs: list[Report] = []
    try:
        for days in RANGES:
            await history.range(days=days)
            old += await history.ended(days=days - 1, count=700, attempts=1)
            letters = await history.ended("dead_letter", days=days - 2, ended=43, count=60)
            old += letters
            traffic.letters += letters[::2]
        random.Random(3).shuffle(traffic.letters)
        tasks = [asyncio.ensure_future(work()) for work in (traffic.produce, traffic.work, traffic.interfere)]
        while len(runs) < 4 or (len(traffic.made) < 150 and len(runs) < 1000):
            runs.append(await make(pruning, everything=True).run())
            counts = await jobs.audit()
            assert counts.pop("jobs") == sum(counts.values())
            assert not any(task.done() for task in tasks)
    finally:
        traffic.stopped = True
        await asyncio.gather(*tasks)
        await hot.close()
        await pruning.close()
    assert sum(run.ranges for run in runs) >= 4
    assert sum(run.moved for run in runs) > 20
    stay = set(traffic.made)
    assert await history.left(traffic.made) == stay
    assert await history.left(old) <= stay
    assert traffic.slowest < limit(1.5)


@pytest.mark.slow
async def test_claims_beside_a_long_run_take_as_long_as_ever(
    database: Database, database_url: str, jobs: Jobs, history: History
) -> None:
    """Claims of jobs of today, while a range is emptied in batches and another one dropped."""
    await history.range(days=20)
    await history.range(days=17)
    await history.ended(days=19, count=20_000)
    await history.ended("failed", days=16, count=1500)
    await history.ended(days=16, count=10_000, attempts=1)
    store = WorkerStore(Database(database_url, session=HOT_SESSION, connections=2), new_id())
    await store.database.open()
    pruning = asyncio.ensure_future(Pruner(Retention(database, KEEP), events=Events()).run())
    seconds: list[float] = []
    while not pruning.done():
        await jobs.enqueue([old_job(0)])
        began = time.monotonic()
        leases = await claim(store, history.queue_id)
        await store.settle(history.queue_id, [completed(lease) for lease in leases])
        seconds.append(time.monotonic() - began)
    await store.database.close()
    report = await pruning
    assert (report.jobs, report.ranges) == (30_000, 1)
    seconds.sort()
    assert len(seconds) > 50
    # What a drop may hold up: 100 ms for its locks, and its own work.
    assert seconds[-1] < limit(0.6)
    assert seconds[len(seconds) // 2] < limit(0.1)


async def test_a_worker_prunes_by_itself(bench: Bench, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruner, "FIRST_AFTER_SECONDS", 0.0)
    await history.range(days=20)
    gone = await history.ended(days=19, count=30)
    kept = await history.ended(days=18, ended=0.9, count=2)
    events = Pruned()
    await bench.start(events=events, retain_completed_seconds=DAY)

    async def done() -> bool:
        return await history.left(gone) == set()

    await wait_until(done, 5, "the worker to prune")
    await wait_until(lambda: events.count == 30, 2)
    assert await history.left(kept) == set(kept)


async def test_a_worker_that_stops_ends_its_pruning_in_the_middle(
    bench: Bench, history: History, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was done is whole, and another goes on with the rest."""
    monkeypatch.setattr(pruner, "FIRST_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(pruner, "DELETED_ROWS", 100)
    gone = await history.ended(days=400, count=5000, attempts=1, key="k")
    events = Pruned()
    worker = await bench.start(events=events)
    await wait_until(lambda: events.count > 0, 5)
    await within(5, worker.drain(1))
    await history.whole()
    assert 0 < len(await history.left(gone)) < 5000

    async def rest_is_gone() -> bool:
        await make(database).run()
        return await history.left(gone) == set()

    # Whose turn it is, is the server's to say: it may still be ending what was cut off.
    await wait_until(rest_is_gone, 5)


async def test_steps_become_smaller_when_they_are_cut_off_and_larger_when_they_are_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rested: list[float] = []

    async def rest(seconds: float) -> None:
        rested.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", rest)
    pace = Pace(1000)
    asked: list[int] = []

    async def cut_off_above_50(rows: int) -> int:
        asked.append(rows)
        if rows > 50:
            raise DatabaseUnavailable("canceling statement due to statement timeout")
        return rows

    assert [await pace.take(cut_off_above_50) for _ in range(2)] == [50, 25]
    assert asked == [200, 50, 100, 25]

    async def never(rows: int) -> int:
        raise DatabaseUnavailable("the database is not available")

    with pytest.raises(DatabaseUnavailable):
        await pace.take(never)
    assert pace.rows == pruner.FEWEST_ROWS

    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    async def takes(seconds: float) -> None:
        nonlocal now
        now += seconds

    for seconds, rows in ((0.01, 20), (0.1, 20), (0.3, 10), (5, 10)):
        await pace.take(lambda _, seconds=seconds: takes(seconds))  # type: ignore[misc]
        assert pace.rows == rows
        assert rested[-1] == pytest.approx(min(2 * seconds, 2.0))
    for _ in range(20):
        await pace.take(lambda _: takes(0))
    assert pace.rows == 1000
