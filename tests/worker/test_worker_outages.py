"""The database goes away and comes back: everything ends, and once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from fencepost.domain.context import Context
from fencepost.domain.job import Status
from fencepost.errors import DatabaseUnavailable
from fencepost.worker import apart
from tests.patience import limit

from .proxy import Proxy
from .support import Bench, Tally, records, wait_until

pytestmark = pytest.mark.anyio


@pytest.mark.slow
async def test_terminated_backends_under_load_cost_no_job(bench: Bench) -> None:
    completions: Counter[Any] = Counter()

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        await asyncio.sleep(0.004)
        completions[context.id] += 1

    ids = await bench.enqueue_many("work", [None] * 900, max_attempts=20)
    tally = Tally()
    # A claim whose answer was lost leaves leases that nobody holds: they have to run out first.
    worker = await bench.start(workers=8, lease_seconds=1.5, recovery_interval_seconds=0.2, events=tally)
    killed = 0
    for number in range(6):
        await wait_until(lambda: len(completions) >= 100 * (number + 1), 10)  # noqa: B023
        killed += await bench.kill_backends()
    assert killed >= 12
    jobs = await bench.finished(*ids, seconds=15)
    assert {job.status for job in jobs} == {Status.COMPLETED}
    await wait_until(lambda: worker.running == 0, 2)
    await bench.audit()
    # The listener is back: the poll interval is 30 s.
    await wait_until(lambda: worker._listener.is_connected, 8)
    began = time.monotonic()
    await bench.ended(await bench.enqueue("work"))
    assert time.monotonic() - began < limit(0.5)


async def test_running_jobs_outlive_a_killed_connection(bench: Bench) -> None:
    release = asyncio.Event()

    @bench.job("work")
    async def work(context: Context, payload: Any) -> str:
        await release.wait()
        return "undisturbed"

    ids = await bench.enqueue_many("work", [None] * 4)
    worker = await bench.start()
    await wait_until(lambda: worker.running == 4, 3)
    for _ in range(3):
        await bench.kill_backends()
        await asyncio.sleep(0.05)
    release.set()
    for job in await bench.finished(*ids):
        assert (job.status, job.attempts, bytes(job.result or b"")) == (Status.COMPLETED, 1, b'"undisturbed"')


@pytest.mark.slow
async def test_an_outage_during_settlement_is_waited_out(bench: Bench, proxy: Proxy) -> None:
    release = asyncio.Event()
    runs: Counter[Any] = Counter()

    @bench.job("work")
    async def work(context: Context, payload: Any) -> str:
        runs[context.id] += 1
        await release.wait()
        return "kept"

    tally = Tally()
    ids = await bench.enqueue_many("work", [None] * 20)
    worker = await bench.start(dsn=proxy.url, workers=20, events=tally)
    await wait_until(lambda: worker.running == 20, 3)
    proxy.cut()
    release.set()
    await wait_until(lambda: worker.running == 0, 3)
    await asyncio.sleep(0.5)
    assert await bench.statuses(ids) == {"processing": 20}
    proxy.restore()
    restored_at = time.monotonic()
    for job in await bench.finished(*ids):
        assert (job.status, job.attempts, bytes(job.result or b"")) == (Status.COMPLETED, 1, b'"kept"')
    assert time.monotonic() - restored_at < limit(2.5)
    assert set(runs.values()) == {1}
    # And it claims again, from polling at the reconnect and from hints.
    await bench.ended(await bench.enqueue("work"), seconds=6)


async def test_an_answer_that_was_lost_does_not_write_twice(bench: Bench) -> None:
    """The settlement was committed and its answer never came: the second try finds nothing to do."""
    runs = 0

    @bench.job("work")
    async def work(context: Context, payload: Any) -> str:
        nonlocal runs
        runs += 1
        return "once"

    worker = await bench.start()
    lost = 0

    def losing(write: Callable[..., Any]) -> Callable[..., Any]:
        async def lose(*arguments: Any, **rest: Any) -> Any:
            nonlocal lost
            answer = await write(*arguments, **rest)
            if lost < 1:
                lost += 1
                raise DatabaseUnavailable("the connection broke just then")
            return answer

        return lose

    # An outcome may travel along with a claim as well.
    for way in ("settle", "turn"):
        setattr(worker._store, way, losing(getattr(worker._store, way)))
    job_id = await bench.enqueue("work")
    job = await bench.ended(job_id)
    await wait_until(lambda: not worker._keeper._held, 3)
    assert (job.status, runs, lost) == (Status.COMPLETED, 1, 1)


async def test_a_worker_notices_new_jobs_right_after_an_outage(bench: Bench, proxy: Proxy) -> None:
    """Hints were missed meanwhile, so everything is looked at once it listens again."""

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        pass

    worker = await bench.start(dsn=proxy.url)
    await bench.ended(await bench.enqueue("work"))
    await wait_until(lambda: worker._listener.is_connected, 3)
    proxy.cut()
    await wait_until(lambda: not worker._listener.is_connected, 3)
    ids = await bench.enqueue_many("work", [None] * 3)
    proxy.restore()
    restored_at = time.monotonic()
    await bench.finished(*ids)
    assert time.monotonic() - restored_at < limit(3)


@pytest.mark.slow
async def test_a_silent_listener_is_found_out_and_replaced(bench: Bench, proxy: Proxy) -> None:
    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        pass

    worker = await bench.start(dsn=proxy.url)
    worker._listener._probe_seconds = 0.2
    await wait_until(lambda: worker._listener.is_connected, 3)
    # The first probe is still the old interval away; make it listen anew.
    await bench.kill_backends()
    await wait_until(lambda: not worker._listener.is_connected, 3)
    await wait_until(lambda: worker._listener.is_connected, 5)
    proxy.swallow()
    # A probe is given three seconds.
    await wait_until(lambda: not worker._listener.is_connected, 5)
    proxy.restore()
    job_id = await bench.enqueue("work")
    await bench.ended(job_id, seconds=10)


@pytest.mark.slow
async def test_a_job_that_can_not_be_settled_is_left_to_its_lease(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL goes on refusing it: its lease runs out, it is tried again, and the others are not held up."""
    monkeypatch.setattr(apart, "REFUSED_SECONDS", 1.0)

    @bench.job("work", payload=int)
    async def work(context: Context, payload: int) -> int:
        return payload

    await bench.sql(
        "create function public.refuse() returns trigger language plpgsql as $$ begin "
        "if new.id = (select id from fencepost.jobs where payload = '7'::jsonb) and new.attempts < 2 then "
        "raise exception 'cursed'; end if; return new; end $$"
    )
    await bench.sql(
        "create trigger refuse before insert on fencepost.finished for each row execute function public.refuse()"
    )
    ids = await bench.enqueue_many("work", list(range(50)))
    # Long enough for the others to be written within it.
    await bench.start(workers=50, lease_seconds=2.0, recovery_interval_seconds=0.1)
    jobs = await bench.finished(*ids)
    assert {job.status for job in jobs} == {Status.COMPLETED}
    assert [job.attempts for job in jobs] == [2 if number == 7 else 1 for number in range(50)]
    assert records(caplog, "an outcome can't be written; its lease will expire")
