"""Leases: kept while their job runs, whatever its handler does, and fenced once they are lost."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from fencepost.domain import outcome as outcomes
from fencepost.domain.context import Context
from fencepost.domain.ids import new_id
from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending
from fencepost.store.workers import WorkerStore
from tests.patience import LONGEST_SECONDS, limit

from .proxy import Proxy
from .support import Bench, Tally, records, wait_until, within

pytestmark = pytest.mark.anyio

LEASE = 1.5
SHORT: dict[str, Any] = {"lease_seconds": LEASE, "lease_extension": True, "recovery_interval_seconds": 0.2}


class InThread:
    """Runs a bench's worker in a thread and a loop of its own, so that a handler may block it."""

    def __init__(self, bench: Bench, **settings: Any) -> None:
        self.worker = bench.make(**settings)
        bench.workers.remove(self.worker)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    async def call(self, work: Any) -> Any:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def __aenter__(self) -> InThread:
        self._thread.start()
        await self.call(self.worker.start())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.call(self.worker.drain(0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        await wait_until(lambda: not self._thread.is_alive(), 5)
        self._loop.close()


def burn(seconds: float) -> None:
    """Keep the interpreter busy in pure Python."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(2000))


async def sleeps(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def blocks(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - the fault that is tested


async def burns(seconds: float) -> None:
    burn(seconds)


def sleeps_in_thread(seconds: float) -> None:
    time.sleep(seconds)


@pytest.mark.slow
async def test_long_jobs_of_every_kind_keep_their_leases_and_run_once(bench: Bench) -> None:
    """Three leases long: waiting, blocking its event loop, burning CPU, and in a thread. A second worker watches."""
    kinds: dict[str, Callable[[float], Any]] = {
        "sleeps": sleeps,
        "blocks": blocks,
        "burns": burns,
        "thread": sleeps_in_thread,
    }
    starts: Counter[str] = Counter()

    def register(name: str, body: Callable[[float], Any]) -> None:
        async def in_loop(context: Context, payload: Any) -> str:
            starts[name] += 1
            await body(3 * LEASE)
            return name

        def in_thread(context: Context, payload: Any) -> str:
            starts[name] += 1
            body(3 * LEASE)
            return name

        bench.app.register(name, in_thread if name == "thread" else in_loop)

    for name, body in kinds.items():
        register(name, body)
    tally = Tally()
    seen: dict[Any, set[datetime]] = {}
    # A loop for each, or the one that blocks would hold up those that only wait.
    async with InThread(bench, **SHORT) as first, InThread(bench, **SHORT) as second, InThread(bench, **SHORT) as third:
        ids = []
        for name, keeper in zip(kinds, (first, second, third, first), strict=True):
            job_id = await bench.enqueue(name, queue=name)
            keeper.worker.wake([await bench.queue_id(name)])
            await bench.reached(job_id, Status.PROCESSING)
            ids.append(job_id)
        # The watcher is idle and sweeps all the time; whatever loses its lease it would run again.
        watcher = bench.make(events=tally, **SHORT)
        await watcher.start()

        async def finished() -> bool:
            for row in await bench.sql("select id, locked_until from fencepost.leases"):
                seen.setdefault(row["id"], set()).add(row["locked_until"])
            return await bench._count_finished(ids, len(ids))

        await wait_until(finished, 12)
    for name, job_id in zip(kinds, ids, strict=True):
        job = await bench.get(job_id)
        assert (job.status, job.attempts, job.lease_token) == (Status.COMPLETED, 1, 1), name
        assert await bench.history(job_id) == [], name
        assert len(seen[job_id]) >= 4, f"{name}: renewed {len(seen[job_id]) - 1} times in three leases"
    assert starts == dict.fromkeys(kinds, 1)
    assert tally.recoveries == 0


async def test_a_short_job_is_not_renewed(bench: Bench) -> None:
    @bench.job("short")
    async def short(context: Context, payload: Any) -> None:
        await asyncio.sleep(0.1)

    worker = bench.make(lease_seconds=30.0)
    open_store = worker._keeper._open_store
    stores: list[WorkerStore] = []

    def remember() -> WorkerStore:
        stores.append(open_store())
        return stores[0]

    worker._keeper._open_store = remember
    await worker.start()
    assert (await bench.ended(await bench.enqueue("short"))).status is Status.COMPLETED
    # In a thread of its own.
    await wait_until(lambda: stores, 2)
    assert [store.database.is_open for store in stores] == [False]


async def test_a_worker_that_lost_its_lease_stops_and_can_not_write(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The first handler is told within a renewal; what it does then changes nothing; the second's outcome stands."""
    lease = 2.4
    told = asyncio.Event()
    told_at = 0.0
    again, release = asyncio.Event(), asyncio.Event()

    @bench.job("work")
    async def work(context: Context, payload: Any) -> str:
        nonlocal told_at
        if context.token == 1:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                told_at = time.monotonic()
                told.set()
                return "of the first"
        again.set()
        await release.wait()
        return f"of token {context.token}"

    tally = Tally()
    job_id = await bench.enqueue("work", max_attempts=3)
    await bench.start(events=tally, lease_seconds=lease, recovery_interval_seconds=30.0)
    await bench.reached(job_id, Status.PROCESSING)
    await bench.expire(job_id)
    expired_at = time.monotonic()
    await wait_until(told.is_set, 3)
    assert told_at - expired_at < 2 * lease / 3, "more than one renewal"
    await wait_until(lambda: tally.endings == {(Ending.LOST, None): 1}, 2)
    assert records(caplog, "lease lost; the job may be someone else's by now")
    # Or the first one has it again: a worker that has just started looks more than once.
    await bench.start(events=tally, lease_seconds=lease, recovery_interval_seconds=30.0)
    await within(3, again.wait())
    release.set()
    job = await bench.ended(job_id)
    assert (job.status, job.attempts, job.lease_token) == (Status.COMPLETED, 2, 2)
    assert bytes(job.result or b"") == b'"of token 2"'
    assert [(past.outcome, past.token) for past in await bench.history(job_id)] == [("lost", 1)]
    await bench.audit()


async def test_a_late_outcome_is_refused_and_reported_as_lost(bench: Bench) -> None:
    """Here the worker doesn't learn of the loss before it settles: its lease is long, so no renewal is due."""
    first, second = asyncio.Event(), asyncio.Event()

    @bench.job("work")
    async def work(context: Context, payload: Any) -> str:
        await (first if context.token == 1 else second).wait()
        return f"of token {context.token}"

    tally = Tally()
    job_id = await bench.enqueue("work")
    # One slot, which is taken: the next attempt is the other worker's.
    await bench.start(events=tally, workers=1)
    await bench.reached(job_id, Status.PROCESSING)
    await bench.expire(job_id)
    other = await bench.start()
    await wait_until(lambda: other.running == 1, 3)
    first.set()
    await wait_until(lambda: tally.endings == {(Ending.LOST, None): 1}, 3)
    assert (await bench.get(job_id)).status is Status.PROCESSING
    second.set()
    job = await bench.ended(job_id)
    assert (job.status, bytes(job.result or b"")) == (Status.COMPLETED, b'"of token 2"')


async def test_a_stale_worker_can_not_settle_after_a_retry_by_hand(bench: Bench) -> None:
    """Attempts start again at 1 after a retry; the token doesn't, and it is the token that counts."""
    stale, current = asyncio.Event(), asyncio.Event()

    @bench.job("work")
    async def work(context: Context, payload: Any) -> str:
        await (stale if context.token == 1 else current).wait()
        if context.token == 1:
            raise OSError("of the stale one")
        return f"attempt {context.attempt}, token {context.token}"

    tally = Tally()
    job_id = await bench.enqueue("work", max_attempts=1)
    await bench.start(events=tally)
    await bench.reached(job_id, Status.PROCESSING)
    await bench.expire(job_id)
    assert (await bench.get(job_id)).status is Status.DEAD_LETTER
    await bench.jobs.retry(job_id)
    job = await bench.reached(job_id, Status.PROCESSING)
    assert (job.attempts, job.lease_token) == (1, 2)
    stale.set()
    await wait_until(lambda: tally.endings == {(Ending.LOST, None): 1}, 3)
    job = await bench.get(job_id)
    assert (job.status, job.attempts, job.lease_token) == (Status.PROCESSING, 1, 2)
    current.set()
    job = await bench.ended(job_id)
    assert bytes(job.result or b"") == b'"attempt 1, token 2"'
    assert [(past.outcome, past.token) for past in await bench.history(job_id)] == [("lost", 1)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["refused", "silent"])
async def test_a_worker_cut_off_for_longer_than_its_lease_stops_its_handlers(
    bench: Bench, proxy: Proxy, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    stopped: dict[int, float] = {}

    @bench.job("work")
    async def work(context: Context, payload: Any) -> str:
        if context.token > 1:
            return "by the second"
        try:
            await asyncio.sleep(30)
        finally:
            stopped[context.token] = time.monotonic()
        return "by the first"

    tally = Tally()
    job_id = await bench.enqueue("work")
    worker = await bench.start(dsn=proxy.url, events=tally, **SHORT)
    # The database has it in work a moment before the worker hears of that, or never does.
    await wait_until(lambda: worker.running == 1, 3)
    cut_at = time.monotonic()
    if how == "refused":
        proxy.cut()
    else:
        proxy.swallow()
    await bench.start(**SHORT)
    job = await bench.ended(job_id)
    assert (job.status, job.attempts, bytes(job.result or b"")) == (Status.COMPLETED, 2, b'"by the second"')
    await wait_until(lambda: 1 in stopped, 3)
    assert stopped[1] - cut_at < LEASE + 0.5, "it ran on beside the second"
    await wait_until(lambda: tally.endings == {(Ending.LOST, None): 1}, 2)
    assert records(caplog, "lease could not be renewed in time; the handler is stopped")
    proxy.restore()


@pytest.mark.slow
async def test_a_short_outage_costs_no_lease(bench: Bench, proxy: Proxy) -> None:
    """The lease is long beside the outage, so that a busy machine's pauses don't decide, and short beside the job."""
    lease_seconds = 3.0

    @bench.job("work")
    async def work(context: Context, payload: Any) -> str:
        await asyncio.sleep(1.5 * lease_seconds)
        return "undisturbed"

    job_id = await bench.enqueue("work")
    worker = await bench.start(dsn=proxy.url, **{**SHORT, "lease_seconds": lease_seconds})
    await wait_until(lambda: worker.running == 1, 3)
    proxy.cut()
    await asyncio.sleep(0.5)
    proxy.restore()
    job = await bench.ended(job_id)
    assert (job.status, job.attempts) == (Status.COMPLETED, 1)


async def test_a_lease_that_ran_out_but_that_nobody_took_is_kept(bench: Bench) -> None:
    release = asyncio.Event()

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        await release.wait()

    await bench.start_swept(lease_seconds=LEASE, recovery_interval_seconds=30.0)
    job_id = await bench.enqueue("work")
    await bench.reached(job_id, Status.PROCESSING)
    await bench.sql("update fencepost.leases set locked_until = started_at + interval '1us'")

    async def renewed() -> bool:
        return bool(await bench.value("select locked_until > clock_timestamp() from fencepost.leases"))

    await wait_until(renewed, 2)
    release.set()
    assert (await bench.ended(job_id)).attempts == 1


@pytest.mark.slow
async def test_a_lease_is_renewed_in_time_when_its_claim_was_answered_to_a_blocked_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    database                    worker                              another
    the lease begins
                                its loop is blocked by a handler
                                starts the job, renews at once
                                                                    sweeps: not expired
    """
    lease = 5.0
    claim = WorkerStore.claim

    async def answered_late(self: WorkerStore, *arguments: Any, **named: Any) -> Any:
        answer = await claim(self, *arguments, **named)
        if answer.leases:
            time.sleep(lease * 0.8)  # noqa: ASYNC251 - as a handler does that blocks
        return answer

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        await asyncio.sleep(lease * 0.5)

    await bench.start(workers=1, queues=("other",), lease_seconds=lease, recovery_interval_seconds=0.1)
    monkeypatch.setattr(WorkerStore, "claim", answered_late)
    async with InThread(bench, workers=1, lease_seconds=lease, recovery_interval_seconds=30.0):
        job = await bench.ended(await bench.enqueue("work"), seconds=4 * lease)
    assert (job.status, job.attempts, job.lease_token) == (Status.COMPLETED, 1, 1)


@pytest.mark.slow
async def test_a_handler_that_blocks_its_loop_past_its_timeout_loses_its_lease(bench: Bench) -> None:
    """Its timeout can't fire, so the lease has to end it: the job goes on elsewhere and the late result is refused."""
    tokens: list[int] = []
    elsewhere = threading.Event()

    @bench.job("blocks")
    async def blocks(context: Context, payload: Any) -> str:
        tokens.append(context.token)
        if context.token == 1:
            # The fault that is tested, until the job has been done by another.
            elsewhere.wait(LONGEST_SECONDS)
        return f"token {context.token}"

    job_id = await bench.enqueue("blocks", timeout_seconds=0.2)
    async with InThread(bench, lease_seconds=0.5, recovery_interval_seconds=30.0) as first:
        # The grace that belongs to the limit, too.
        first.worker._keeper.hold = _limited(first.worker._keeper.hold, 0.7)  # type: ignore[method-assign]
        await bench.reached(job_id, Status.PROCESSING)
        await bench.start(recovery_interval_seconds=0.1)
        try:
            await bench.ended(job_id)
        finally:
            elsewhere.set()
        # And the first one has been heard.
        await wait_until(lambda: first.worker.running == 0, 5)
        job = await bench.get(job_id)
    assert (job.status, job.attempts, bytes(job.result or b"")) == (Status.COMPLETED, 2, b'"token 2"')
    assert tokens == [1, 2]
    assert [past.outcome for past in await bench.history(job_id)] == ["lost"]


def _limited(hold: Callable[..., None], seconds: float) -> Callable[..., None]:
    def limited(attempt: Any, *, claimed_at: float, limit_seconds: float) -> None:
        hold(attempt, claimed_at=claimed_at, limit_seconds=seconds)

    return limited


async def test_orphans_are_recovered_at_the_start(bench: Bench) -> None:
    @bench.job("orphan")
    async def orphan(context: Context, payload: Any) -> int:
        return context.attempt

    retryable = [await bench.orphan(3, queue=f"q{number}") for number in range(3)]
    last = await bench.orphan(1, queue="last")
    wanted_stopped = await bench.orphan(3, queue="stop")
    await bench.jobs.cancel(wanted_stopped)
    tally = Tally()
    await bench.start(events=tally)
    for job in await bench.finished(*retryable):
        assert (job.status, job.attempts, bytes(job.result or b"")) == (Status.COMPLETED, 2, b"2")
        (past,) = await bench.history(job.id)
        assert (past.outcome, past.error_type) == ("lost", "LeaseExpired")
    job = await bench.ended(last)
    assert (job.status, job.attempts) == (Status.DEAD_LETTER, 1)
    assert "lease expired" in (job.last_error or "")
    assert (await bench.ended(wanted_stopped)).status is Status.CANCELLED
    await wait_until(lambda: tally.recoveries == 5, 2)


async def test_orphans_are_recovered_at_each_interval(bench: Bench) -> None:
    @bench.job("orphan")
    async def orphan(context: Context, payload: Any) -> int:
        return context.attempt

    await bench.start(recovery_interval_seconds=0.2)
    for _ in range(3):
        # Paused, so that this worker's own claims don't get in before the one that dies.
        await bench.queues.ensure("default", 0)
        await bench.queues.pause("default")
        job_id = await bench.enqueue("orphan", max_attempts=2)
        token = await bench.value("delete from fencepost.pending where id = $1 returning token", job_id)
        await bench.sql(
            "insert into fencepost.leases "
            "(id, queue_id, priority, attempt, token, worker_id, started_at, locked_until) "
            "values ($1, $2, 0, 1, $3 + 1, gen_random_uuid(), clock_timestamp(), clock_timestamp() + interval '50ms')",
            job_id,
            await bench.queue_id(),
            token,
        )
        await bench.queues.resume("default")
        began = time.monotonic()
        job = await bench.ended(job_id)
        assert (job.status, job.attempts) == (Status.COMPLETED, 2)
        assert time.monotonic() - began < limit(0.05 + 0.2 + 0.3)


CRASHING = """
import asyncio, os, sys
from fencepost.app import Fencepost
from fencepost.settings import Settings
from fencepost.telemetry.events import Events
from fencepost.worker.worker import Worker

app = Fencepost()

async def crash(context, payload):
    print("crashing", flush=True)
    os._exit(3)

async def fine(context, payload):
    return "fine"

app.register("crash", crash)
app.register("fine", fine)

async def main():
    # Long: a process that stands still on a busy machine is not to lose a lease before it has crashed.
    settings = Settings(workers=2, lease_seconds=30.0, recovery_interval_seconds=0.1, poll_interval_seconds=0.1)
    await Worker(sys.argv[1], app.types, settings, Events()).start()
    await asyncio.sleep(30)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_job_that_kills_its_process_runs_out_of_attempts(bench: Bench) -> None:
    crashing = await bench.enqueue("crash", max_attempts=3)
    # Those that run beside it when the process dies lose that attempt too.
    fine = await bench.enqueue_many("fine", [None] * 5, max_attempts=10)
    over = "update fencepost.leases set locked_until = started_at + interval '1us'"
    crashes = 0
    for _ in range(6):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CRASHING, bench.dsn, stdout=asyncio.subprocess.PIPE
        )
        waiting = asyncio.create_task(process.wait())
        ended = asyncio.create_task(wait_until(lambda: bench._count_finished([crashing], 1), 10))
        await asyncio.wait([waiting, ended], return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            if process.returncode is None:
                process.kill()
            await waiting
            break
        ended.cancel()
        await asyncio.wait([ended])
        assert process.returncode == 3
        crashes += 1
        await bench.sql(over)
    await bench.sql(over)
    job = await bench.get(crashing)
    assert (crashes, job.status, job.attempts) == (3, Status.DEAD_LETTER, 3)
    assert [past.outcome for past in await bench.history(crashing)] == ["lost"] * 3

    @bench.job("fine")
    async def fine_here(context: Context, payload: Any) -> None:
        pass

    await bench.start(recovery_interval_seconds=0.2)
    assert {one.status for one in await bench.finished(*fine)} == {Status.COMPLETED}
    await bench.audit()


async def test_recovery_and_settlement_racing_end_each_job_once(bench: Bench) -> None:
    """A worker stalls until its lease is over, and settles just as others sweep: one of the two is told."""
    ids = await bench.enqueue_many("work", [None] * 100, max_attempts=1)
    queue_id = await bench.queue_id()
    holder = WorkerStore(bench.database, new_id())
    claim = await holder.claim(queue_id, slots=100, cursors={}, lease_seconds=0.02, aging_seconds=0)
    assert len(claim.leases) == 100
    await asyncio.sleep(0.02)
    results = [outcomes.succeeded(lease, b'"done"') for lease in claim.leases]

    async def settle_some(at: int) -> set[Any]:
        batch = results[at : at + 10]
        statuses = await holder.settle(queue_id, batch)
        return {one.id for one, status in zip(batch, statuses, strict=True) if status is not None}

    async def sweep() -> set[Any]:
        return {job_id for job_id, _, _ in (await holder.recover(queue_id, after=None, max_rows=7)).jobs}

    work = [call for at in range(0, 100, 10) for call in (settle_some(at), sweep(), sweep())]
    gathered = await asyncio.gather(*work)
    settled = set().union(*gathered[0::3])
    recovered = set().union(*gathered[1::3], *gathered[2::3])
    assert settled.isdisjoint(recovered)
    for job_id in ids:
        status = (await bench.get(job_id)).status
        history = await bench.history(job_id)
        if job_id in settled:
            assert (status, history) == (Status.COMPLETED, [])
        elif job_id in recovered:
            assert (status, len(history)) == (Status.DEAD_LETTER, 1)
    await bench.audit()
