"""Backoffs that overflow, that a program broke, or that bring everybody back at once; dead letters that die again."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from fencepost.domain.backoff import Constant, Exponential, Linear
from fencepost.domain.context import Context
from fencepost.domain.job import Limits, Status
from fencepost.domain.outcome import Ending, failed, timed_out
from fencepost.domain.policy import Policy
from fencepost.errors import Retry
from fencepost.handlers.webhook import LONGEST_WAIT_SECONDS, read_retry_after
from fencepost.store.bulk import Bulk, Selection
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.workers import WorkerStore
from tests.store.support import Connection, claim, ended, job
from tests.worker.support import Bench, make_lease, records

pytestmark = pytest.mark.anyio

ATTEMPTS = (1, 2, 16, 47, 99)
"""Limits.MAX_ATTEMPTS is 100: the 99th is the last that is followed by another."""


@pytest.mark.parametrize(
    "backoff",
    [
        Exponential(5, 1800, factor=5),
        Exponential(5, 1800, factor=0.5),
        Exponential(5, 1, factor=2),
        Exponential(5, 1800, factor=1e300),
        Exponential(5, 1800, jitter=1.0),
        Exponential(0, 1800),
        Linear(5, 1800, jitter=1.0),
        Constant(1800),
    ],
    ids=repr,
)
def test_a_delay_is_never_beyond_its_ceiling(backoff: Exponential | Linear | Constant) -> None:
    for attempt in (*ATTEMPTS, 1_023, 1_100, 4_999):
        for _ in range(20):
            assert 0 <= Policy(backoff).delay(attempt) <= 1800


def _exits(attempt: int) -> float:
    sys.exit(f"after {attempt}")


BROKEN: dict[str, Callable[[int], Any]] = {
    "raises": lambda attempt: [10, 20][attempt + 5],
    "exits": _exits,
    "no number": lambda attempt: "soon",
    "nothing": lambda attempt: None,
    "not a number": lambda attempt: float("nan"),
    "too large for a float": lambda attempt: 10**400,
    "overflows": lambda attempt: 5.0 ** (1000 * attempt),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_backoff_of_the_programs_own_that_is_broken_is_stood_in_for(
    broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the handler raised or ran out of time, which is decided outside of every attempt."""
    policy = Policy(backoff=BROKEN[broken])
    ends = [failed(make_lease(), ValueError("the cause"), policy), timed_out(make_lease(), 5, policy)]
    for end in ends:
        assert (end.status, 0.5 <= end.delay_seconds <= 1) == (Status.PENDING, True)
    assert ends[0].error == "the cause"
    told = records(caplog, "a job type's own backoff failed; the default one is used")
    assert [record.levelno for record in told] == [logging.WARNING] * 2
    assert all(record.exc_info for record in told)


@pytest.mark.parametrize(
    ("answer", "low", "high"),
    [(-5.0, 0, 0), (True, 1, 1), ("5", 5, 5), (1e300, Limits.DELAY_SECONDS, Limits.DELAY_SECONDS), (0.25, 0.25, 0.25)],
)
def test_a_backoff_of_the_programs_own_is_kept_in_bounds(answer: Any, low: float, high: float) -> None:
    assert low <= Policy(backoff=lambda attempt: answer).delay(3) <= high


async def test_a_job_whose_backoff_is_broken_goes_on(bench: Bench) -> None:
    """In a worker, from a thread that outlived its timeout too: what decides there is no attempt's own task."""
    calls = dict.fromkeys(("raise", "hang"), 0)
    release = asyncio.Event()

    async def fail() -> None:
        calls["raise"] += 1
        raise ValueError("no")

    async def hang() -> None:
        calls["hang"] += 1
        while not release.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                release.set()

    bench.app.job(name="fail", backoff=_exits)(fail)
    bench.app.job(name="hang", backoff=_exits)(hang)
    ids = [
        await bench.enqueue("fail", max_attempts=2),
        await bench.enqueue("hang", max_attempts=1, timeout_seconds=0.2),
    ]
    await bench.start()
    ended_jobs = await bench.finished(*ids)
    assert {one.status for one in ended_jobs} == {Status.DEAD_LETTER}
    assert calls == {"raise": 2, "hang": 1}


def test_jobs_that_fail_together_come_back_apart() -> None:
    """2,000 in one second: over the half of the bound that is drawn from, and over a tenth of what was asked for."""
    waits = sorted(
        failed(make_lease(attempt=7, max_attempts=20), ValueError(), Policy()).delay_seconds for _ in range(2_000)
    )
    assert 32 <= waits[0] < 33 < 63 < waits[-1] <= 64
    asked = sorted(failed(make_lease(), Retry("busy", after=60), Policy()).delay_seconds for _ in range(2_000))
    assert 60 <= asked[0] < 60.2 < 65.8 < asked[-1] <= 66
    for wave in (waits, asked):
        most = max(sum(start <= wait < start + 0.1 for wait in wave) for start in wave[::50])
        assert most < 100, "a wave"


async def test_a_replayed_dead_letter_has_a_budget_of_its_own(
    jobs: Jobs, worker_store: WorkerStore, sql: Connection
) -> None:
    """Three attempts used up, one more failure after the replay, then it succeeds; the history is all there."""
    made = job(max_attempts=3)
    await jobs.enqueue([made])
    queue_id = await sql.fetchval("select id from fencepost.queues")

    async def attempt(ending: Ending, status: Status) -> int:
        [lease] = await claim(worker_store, queue_id)
        await worker_store.settle(queue_id, [ended(lease, ending, status)])
        return lease.attempt

    for status in (Status.PENDING, Status.PENDING, Status.DEAD_LETTER):
        await attempt(Ending.FAILED, status)
    await jobs.retry(made.id)
    assert await attempt(Ending.FAILED, Status.PENDING) == 1
    assert await attempt(Ending.SUCCEEDED, Status.COMPLETED) == 2
    assert (await jobs.get(made.id)).status is Status.COMPLETED
    assert len(await jobs.attempts(made.id)) == 4


async def test_a_replay_of_many_pressed_twice_runs_nothing_twice(bench: Bench) -> None:
    """500 dead letters, two replays of all of them at once, into a queue that is paused until they are done."""
    ran: list[int] = []

    @bench.job("once", payload=int)
    async def once(context: Context, payload: int) -> None:
        ran.append(payload)

    ids = await bench.enqueue_many("once", list(range(500)))
    await bench.sql("delete from fencepost.pending")
    await bench.sql(
        "insert into fencepost.finished (id, queue_id, status, attempts, token, finished_at) "
        "select j.id, j.queue_id, 'dead_letter', 3, 3, now() from fencepost.jobs j"
    )
    await bench.queues.pause("default")
    await bench.start()
    hints = Hints(bench.database)
    one, other = (Bulk(bench.database, bench.queues, hints) for _ in range(2))
    done = await asyncio.gather(one.retry(Selection(everything=True)), other.retry(Selection(everything=True)))
    assert sum(result.changed for result in done) == 500
    assert ran == []
    again = await one.retry(Selection(everything=True))
    assert (again.matched, again.changed) == (0, 0)
    await bench.queues.resume("default")
    await bench.finished_quickly(ids)
    assert sorted(ran) == list(range(500))
    await hints.close()


def test_what_a_receiver_asks_for_is_bounded() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    asked = {
        "60": 60.0,
        str(10 * 365 * 86400): LONGEST_WAIT_SECONDS,
        "9" * 5000: LONGEST_WAIT_SECONDS,
        "Thu, 01 Jan 2026 00:01:00 GMT": 60.0,
        "Thu, 01 Jan 2036 00:00:00 GMT": LONGEST_WAIT_SECONDS,
        "Thu, 01 Jan 2015 00:00:00 GMT": None,
        "soon": None,
        "-5": None,
        "1e9": None,
    }
    assert {text: read_retry_after(text, now=now) for text in asked} == asked
