"""Every loop of a worker, against every kind of error: it tries again, not too often, and goes on once that is over."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fencepost.app import Fencepost
from fencepost.domain.context import Context
from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending
from fencepost.errors import DatabaseUnavailable
from fencepost.telemetry.pulses import troubles
from fencepost.worker import maintenance, pruner, settler, vitals
from fencepost.worker.worker import Worker

from .process_jobs import TYPES
from .proxy import Proxy
from .support import Bench, Tally, records, wait_until

pytestmark = pytest.mark.anyio

FAULT_SECONDS = 2.0
LEASE_SECONDS = 5.0
"""Long enough to outlast a fault, and short enough for renewals to fall into one."""
MOST_TRIES_PER_SECOND = 25
"""On any one table, by all the loops together that write to it."""
HEALED_WITHIN_SECONDS = 5.0
STATES = {
    "25006": "read only: the server was demoted",
    "53100": "disk full",
    "53200": "out of memory",
    "53300": "too many connections",
    "57014": "statement timeout",
    "55P03": "lock timeout",
    "40P01": "deadlock",
    "40001": "serialisation failure",
    "57P01": "shut down by an administrator",
    "57P02": "a crash of another backend",
    "57P03": "starting up",
    "08006": "connection failure",
    "08P01": "protocol violation: garbage",
    "42501": "a right was taken away",
    "42P01": "in the middle of a migration",
    "XX000": "internal error",
    "XX001": "data corrupted",
    "P0001": "a trigger of somebody's",
}

BLOCKS = "a handler blocks the worker's event loop: nothing else runs there, and nothing is claimed"
STRIKE = """
create table public.fault (code text, place text);
create table public.strikes (place text primary key);
create function public.strike() returns trigger language plpgsql as $$
declare
    found text;
begin
    select f.code into found from public.fault f where f.place is null or f.place = tg_table_name limit 1;
    if found is not null then
        perform nextval(('public.strikes_' || tg_table_name)::regclass);
        raise exception 'struck at %', tg_table_name using errcode = found;
    end if;
    return null;
end $$;
do $$
declare
    place text;
begin
    for place in select c.relname from pg_class c
                  where c.relnamespace = 'fencepost'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
    loop
        execute format('create sequence public.strikes_%s', place);
        insert into public.strikes values (place);
        execute format('create trigger strike before insert or update or delete on fencepost.%I '
                       'for each statement execute function public.strike()', place);
    end loop;
end $$;
"""
"""Statements that write fail while a table says so. Sequences count them: they aren't rolled back."""


class Faults:
    """Switches faults on and off."""

    def __init__(self, bench: Bench, proxy: Proxy) -> None:
        self._bench = bench
        self._proxy = proxy

    async def begin(self, kind: str, place: str | None = None) -> None:
        if kind == "cut":
            self._proxy.cut()
        elif kind == "swallow":
            self._proxy.swallow()
        elif kind == "terminate":
            await self._bench.kill_backends()
        else:
            await self._bench.sql("insert into public.fault values ($1, $2)", kind, place)

    async def end(self) -> None:
        self._proxy.restore()
        await self._bench.sql("delete from public.fault")

    async def tries(self) -> dict[str, int]:
        places = [row["place"] for row in await self._bench.sql("select place from public.strikes")]
        return {
            place: await self._bench.value(
                f"select case when is_called then last_value else 0 end from public.strikes_{place}"
            )
            for place in places
        }


@pytest.fixture
async def faults(bench: Bench, proxy: Proxy) -> Faults:
    await bench.database.execute(STRIKE)
    return Faults(bench, proxy)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Duties that come round every hour do so several times a second."""
    for name in ("HEARTBEAT_SECONDS", "PARTITIONS_SECONDS", "DECLARATION_SECONDS"):
        monkeypatch.setattr(maintenance, name, 0.3)
    monkeypatch.setattr(pruner, "EVERY_SECONDS", 0.3)
    monkeypatch.setattr(pruner, "FIRST_AFTER_SECONDS", 0.0)


class Holding:
    """Jobs that run until they are let go, and count their runs."""

    def __init__(self, bench: Bench) -> None:
        self.runs: Counter[Any] = Counter()
        self.inside = 0
        self.early, self.late = asyncio.Event(), asyncio.Event()

        @bench.job("hold", payload=str)
        async def hold(context: Context, payload: str) -> str:
            self.runs[context.id] += 1
            self.inside += 1
            try:
                gate = self.early if payload == "early" else self.late
                while not gate.is_set():
                    context.progress(0.5, f"at {time.monotonic()}")
                    await asyncio.sleep(0.05)
            finally:
                self.inside -= 1
            return payload


def has_turned(worker: Worker, since: float) -> list[str]:
    """The loops that have not come round since then."""
    return [pulse.name for pulse in worker.vitals._pulses if not pulse.idle and pulse.turned_at <= since]


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("kind", [*STATES, "cut", "swallow", "terminate"])
async def test_every_loop_outlives_every_error(bench: Bench, proxy: Proxy, faults: Faults, kind: str) -> None:
    at = Holding(bench)
    worker = await bench.start(
        dsn=proxy.url,
        lease_seconds=LEASE_SECONDS,
        lease_extension=True,
        recovery_interval_seconds=0.3,
        poll_interval_seconds=0.3,
    )
    worker._listener._probe_seconds = 0.3
    held = await bench.enqueue_many("hold", ["early", "early", "late"])
    await wait_until(lambda: at.inside == 3, 5)

    await faults.begin(kind)
    began = time.monotonic()
    at.early.set()
    # One slot more is free than there are jobs, and there is something to claim.
    waiting = await enqueue_somehow(bench)
    await asyncio.sleep(FAULT_SECONDS)
    tries, lasted = await faults.tries(), time.monotonic() - began
    await faults.end()
    ended_at = time.monotonic()
    too_many = {place: count for place, count in tries.items() if count > MOST_TRIES_PER_SECOND * lasted}
    assert not too_many, f"tried again too often, within {lasted:.1f} s"
    if kind in STATES:
        assert tries["leases"] >= 2, "nothing was struck"

    await wait_until(lambda: not has_turned(worker, ended_at), HEALED_WITHIN_SECONDS, "all loops to come round again")
    at.late.set()
    jobs = await bench.finished(*held, seconds=15)
    assert {job.status for job in jobs} == {Status.COMPLETED}
    assert [job.attempts for job in jobs] == [1, 1, 1]
    assert [at.runs[job_id] for job_id in held] == [1, 1, 1], "work that had ended well was done again"
    # No slot is lost: as many as there are run at once. No job either.
    at.late.clear()
    more = await bench.enqueue_many("hold", ["late"] * 4)
    await wait_until(lambda: at.inside == 4, 15, "four jobs to run at once")
    at.late.set()
    jobs = await bench.finished(*more, *waiting, seconds=20)
    assert {job.status for job in jobs} == {Status.COMPLETED}
    await bench.audit()
    assert not troubles(worker.vitals.look())
    assert not worker._settler._doubtful


async def enqueue_somehow(bench: Bench) -> list[Any]:
    """Hand in three jobs at the same time; each caller hears how it went, at once."""

    async def one() -> Any:
        try:
            return await bench.enqueue("hold", "early", max_attempts=20)
        except Exception as error:
            return error

    async with asyncio.timeout(10):
        answers = await asyncio.gather(one(), one(), one())
    return [answer for answer in answers if not isinstance(answer, Exception)]


@pytest.mark.slow
async def test_a_success_outlasts_a_fault_that_is_longer_than_its_lease(
    bench: Bench, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    """Only settling fails. The lease is renewed meanwhile, so that nobody else gets the job."""
    at, tally = Holding(bench), Tally()
    worker = await bench.start(lease_seconds=1.5, lease_extension=True, recovery_interval_seconds=0.1, events=tally)
    ids = await bench.enqueue_many("hold", ["early"] * 4)
    await wait_until(lambda: at.inside == 4, 5)
    await faults.begin("42501", "finished")
    at.early.set()
    await asyncio.sleep(3.5)
    assert await bench.statuses(ids) == {"processing": 4}
    # New work goes on being claimed in the slots that are free.
    await faults.end()
    jobs = await bench.finished(*ids, seconds=10)
    assert [(job.status, job.attempts, bytes(job.result or b"")) for job in jobs] == [
        (Status.COMPLETED, 1, b'"early"')
    ] * 4
    await wait_until(lambda: tally.endings == {(Ending.SUCCEEDED, "completed"): 4}, 3)
    assert set(at.runs.values()) == {1}
    assert not records(caplog, "an outcome can't be written; its lease will expire")
    assert worker._settler._unwritten == 0


@pytest.mark.slow
async def test_nothing_is_claimed_while_too_many_outcomes_wait(
    bench: Bench, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settler, "MOST_UNWRITTEN", 10)
    started = 0

    @bench.job("quick")
    async def quick(context: Context, payload: Any) -> None:
        nonlocal started
        started += 1

    await bench.queues.ensure("default", 0)
    await faults.begin("42501", "finished")
    ids = await bench.enqueue_many("quick", [None] * 60)
    worker = await bench.start(workers=4, poll_interval_seconds=0.1)
    await wait_until(lambda: worker._settler.is_full, 8)
    # A claim that was under way when it became full may still bring some.
    await wait_until(lambda: worker.running == 0 and not worker._dispatcher.is_claiming, 5)
    known = started
    await asyncio.sleep(0.7)
    assert started == known < 30
    await faults.end()
    jobs = await bench.finished(*ids, seconds=20)
    assert {(job.status, job.attempts) for job in jobs} == {(Status.COMPLETED, 1)}
    assert started == 60


@pytest.mark.parametrize("way", ["settle", "turn"])
async def test_an_outcome_whose_answer_was_lost_counts_as_what_it_is(bench: Bench, way: str) -> None:
    """It was committed, and nobody heard: the lease is gone, but not lost."""

    @bench.job("work", payload=str)
    async def work(context: Context, payload: str) -> str:
        if payload == "good":
            return "done"
        raise ValueError(payload)

    tally = Tally()
    worker = await bench.start(events=tally, workers=8)
    names = (way,) if way == "turn" else ("settle", "turn")
    lost: Counter[str] = Counter()
    for name in names:
        _lose_answers(worker, name, lost, most=2)
    ids = await bench.enqueue_many("work", ["good", "bad", "good", "bad"], max_attempts=1)
    more = [await bench.enqueue("work", "bad", max_attempts=2) for _ in range(3)]
    await bench.finished(*ids, *more, seconds=15)
    await wait_until(lambda: sum(tally.endings.values()) == 4 + 6, 10, f"all to be counted: {tally.endings}")
    if lost:
        assert not tally.endings.keys() & {(Ending.LOST, None)}, tally.endings
    assert tally.endings[Ending.SUCCEEDED, "completed"] == 2
    assert tally.endings[Ending.FAILED, "dead_letter"] == 5
    assert tally.endings[Ending.FAILED, "pending"] == 3
    assert way == "turn" or lost


def _lose_answers(worker: Worker, name: str, lost: Counter[str], *, most: int) -> None:
    store: Any = worker._store
    call: Callable[..., Any] = getattr(store, name)

    async def losing(*arguments: Any, **rest: Any) -> Any:
        answer = await call(*arguments, **rest)
        # Not an answer with jobs in it: those would run out of their leases first.
        if lost[name] < most and (name == "settle" or not answer[1].leases):
            lost[name] += 1
            raise DatabaseUnavailable("the connection broke just then")
        return answer

    setattr(store, name, losing)


async def test_a_lease_that_was_really_lost_still_counts_as_lost(bench: Bench) -> None:
    """Also when the first try to write its outcome failed: a recovery's word isn't taken for the worker's."""
    at, tally = Holding(bench), Tally()
    worker = await bench.start_swept(events=tally)
    job_id = await bench.enqueue("hold", "early", max_attempts=1)
    await wait_until(lambda: at.inside == 1, 5)
    store: Any = worker._store
    settle, turn, tries = store.settle, store.turn, 0

    async def failing(*arguments: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise DatabaseUnavailable("the connection broke before it was sent")
        return await settle(*arguments)

    async def no_turn(*arguments: Any, **rest: Any) -> Any:
        raise DatabaseUnavailable("not now")

    store.settle, store.turn = failing, no_turn
    await bench.sql("update fencepost.leases set locked_until = started_at + interval '1us'")
    worker._keeper._held.clear()
    recovery = await worker._store.recover(await bench.queue_id(), after=None, max_rows=10)
    assert [found for found, _, _ in recovery.jobs] == [job_id]
    at.early.set()
    await wait_until(lambda: tally.endings, 8)
    assert tally.endings == {(Ending.LOST, None): 1}
    store.settle, store.turn = settle, turn


# --- cut off for longer than a lease


@pytest.mark.slow
@pytest.mark.parametrize("how", ["refused", "silent"])
async def test_handlers_of_every_kind_stop_when_the_lease_can_not_be_renewed(
    bench: Bench, proxy: Proxy, how: str
) -> None:
    """An async one is cancelled, a thread is told, a child is killed, one that won't stop is left to itself."""
    lease = 1.5
    stopped: dict[str, float] = {}
    release = threading.Event()

    @bench.job("async")
    async def waits(context: Context, payload: Any) -> None:
        try:
            await asyncio.sleep(60 if context.attempt == 1 else 0)
        finally:
            stopped.setdefault("async", time.monotonic())

    @bench.job("thread")
    def in_thread(context: Context, payload: Any) -> None:
        while context.attempt == 1 and not context.cancelled and not release.wait(0.01):
            pass
        stopped.setdefault("thread", time.monotonic())

    @bench.job("stubborn")
    async def stubborn(context: Context, payload: Any) -> str:
        while context.attempt == 1 and not release.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                stopped.setdefault("stubborn", time.monotonic())
        return "stale" if context.attempt == 1 else "fresh"

    app_types = {**bench.app.types, "sleeps": TYPES["sleeps"]}
    bench.app = Fencepost()
    bench.app.types.update(app_types)
    tally = Tally()
    worker = await bench.start(
        dsn=proxy.url, events=tally, workers=5, lease_seconds=lease, lease_extension=True, recovery_interval_seconds=0.2
    )
    ids = [await bench.enqueue(name) for name in ("async", "thread", "stubborn")]
    child_id = await bench.enqueue("sleeps", 60.0, max_attempts=1)
    await wait_until(lambda: worker.running == 4, 8)
    await wait_until(lambda: any(one.remote is not None for one in worker._executor.running), 5)
    await asyncio.sleep(lease)
    cut_at = time.monotonic()
    (proxy.cut if how == "refused" else proxy.swallow)()
    await wait_until(lambda: len(stopped) == 3, 3 * lease + 5, "all to stop")
    await wait_until(lambda: all(one.remote is None for one in worker._executor.running), 5, "the child to be killed")
    # The last renewal was before the cut, so nothing may run longer than a lease after that, but for a moment.
    ran_on = {name: round(at - cut_at, 3) for name, at in stopped.items()}
    print(f"stopped after {ran_on}, of a lease of {lease} s")
    assert max(ran_on.values()) < lease + 0.75
    proxy.restore()
    # What is stale is not applied; the worker claims what came back, beside the one that won't stop.
    jobs = await bench.finished(*ids, seconds=20)
    assert [(job.status, job.attempts) for job in jobs] == [(Status.COMPLETED, 2)] * 3
    assert bytes(jobs[2].result or b"") == b'"fresh"'
    assert (await bench.ended(child_id)).status is Status.DEAD_LETTER
    release.set()
    await wait_until(lambda: worker.running == 0, 8)
    assert bytes((await bench.get(ids[2])).result or b"") == b'"fresh"'
    assert tally.endings[Ending.LOST, None] == 4


# --- telling what is stuck


@asynccontextmanager
async def impatient(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, margin: float = 0.8, **settings: Any
) -> AsyncIterator[tuple[Worker, Callable[[], list[str]]]]:
    """A worker whose loops count as stuck after a second or so, and how they are."""
    monkeypatch.setattr(vitals, "MARGIN_SECONDS", margin)
    worker = await bench.start(
        **{"poll_interval_seconds": 0.05, "recovery_interval_seconds": 0.1, "job_timeout_seconds": 2.0, **settings}
    )
    yield worker, lambda: troubles(worker.vitals.look())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "names"),
    [("pending", ["dispatcher"]), ("finished", ["settler"]), ("leases", ["recovery"])],
)
async def test_a_stuck_loop_is_named_and_forgotten_when_it_goes_on(
    bench: Bench,
    faults: Faults,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: str,
    names: list[str],
) -> None:
    at = Holding(bench)
    async with impatient(bench, monkeypatch, lease_seconds=6.0) as (_, troubled):
        ids = await bench.enqueue_many("hold", ["early", "late"])
        await wait_until(lambda: at.inside == 2, 5)
        assert not troubled()
        # Due when the fault has begun.
        soon = datetime.now(UTC) + timedelta(seconds=1.5)
        waiting = await bench.enqueue("hold", "late", run_at=soon)
        await faults.begin("42501", place)
        at.early.set()
        for name in names:
            expected = f"the {name} ("
            await wait_until(
                lambda: any(expected in text for text in troubled()),  # noqa: B023
                10,
                f"{name} to be told as stuck, not {troubled()}",
            )
        text = next(text for text in troubled() if f"the {names[0]} (" in text)
        assert f"(struck at {place})" in text.partition("; its last error: ")[2]
        assert " has not come round since 20" in text

        def told() -> list[Any]:
            return [record for record in records(caplog, "a loop is stuck") if vars(record)["loop"] == names[0]]

        # By whichever thread has looked first.
        await wait_until(told, 2)
        assert len(told()) == 1, "once, not at each look"
        assert vars(told()[0])["advice"]
        await faults.end()
        await wait_until(lambda: not troubled(), HEALED_WITHIN_SECONDS, "all to be well again")
        await wait_until(lambda: records(caplog, "a loop goes on again"), 2)
        at.late.set()
        jobs = await bench.finished(*ids, waiting, seconds=10)
        assert {job.status for job in jobs} == {Status.COMPLETED}


@pytest.mark.slow
async def test_idle_and_busy_workers_are_well(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to do for longer than any patience; then every slot taken for as long."""
    at = Holding(bench)
    # More than a busy machine stands still for.
    async with impatient(bench, monkeypatch, margin=1.6, workers=2, job_timeout_seconds=30.0) as (_, troubled):
        for _ in range(30):
            await asyncio.sleep(0.1)
            assert not troubled()
        ids = await bench.enqueue_many("hold", ["late"] * 3)
        await wait_until(lambda: at.inside == 2, 5)
        for _ in range(30):
            await asyncio.sleep(0.1)
            assert not troubled()
        at.late.set()
        await bench.finished(*ids)
        assert not troubled()


@pytest.mark.slow
async def test_a_handler_that_blocks_the_event_loop_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At first it is within its rights, and nothing else is blamed for standing still. Past its time it is stuck."""
    from fencepost.telemetry import pulses

    from .test_worker_leases import InThread

    monkeypatch.setattr(vitals, "MARGIN_SECONDS", 0.8)
    monkeypatch.setattr(pulses, "BLOCKED_SECONDS", 0.7)
    release = threading.Event()

    @bench.job("block")
    async def block(context: Context, payload: Any) -> None:
        release.wait(30)

    async with InThread(bench, poll_interval_seconds=0.05, job_timeout_seconds=2.5, lease_seconds=30.0) as at:
        look = at.worker.vitals.look
        job_id = await bench.enqueue("block")
        began = time.monotonic()
        await wait_until(
            lambda: records(caplog, BLOCKS),
            8,
        )
        assert not troubles(look()), "its time isn't up"
        await wait_until(lambda: troubles(look()), 10)
        assert time.monotonic() - began >= 2.5
        (text,) = troubles(look())
        assert text.startswith("the event loop (")
        release.set()
        await wait_until(lambda: not troubles(look()), 5)
        await bench.finished(job_id, seconds=10)


@pytest.mark.slow
async def test_a_lease_keeper_that_is_gone_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async with impatient(bench, monkeypatch) as (worker, troubled):
        worker.vitals.leases.patience_seconds = 1.0
        await wait_until(lambda: worker.vitals.leases.turned_at > 0, 3)
        worker._keeper.stop()
        await wait_until(lambda: any("the lease keeper (" in text for text in troubled()), 5)
