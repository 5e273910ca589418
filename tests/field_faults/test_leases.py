"""
Workers that stand still, die, or have another time of day: each claim ends once, and its late word counts for nothing.

B14, B16, B17, B19, B20, B31. More of it is in tests/worker/test_worker_leases.py, tests/store/test_races.py and
tests/service/test_service.py.
"""

from __future__ import annotations

import asyncio
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

import fencepost
from fencepost.domain.job import Job, Status, Unique
from tests.worker.support import Bench, wait_until, within

from .worker_process import application

pytestmark = pytest.mark.anyio

LEASE = 1.0


class Process:
    """A worker in a process of its own, and what it has printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.lines.append(line.decode().strip())

    def count(self, beginning: str) -> int:
        """How many lines begin like that."""
        return sum(line.startswith(beginning) for line in self.lines)

    async def finish(self) -> None:
        """Let it stop in order."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        await within(20, self.process.wait())
        await within(5, self._reading)


@asynccontextmanager
async def working(bench: Bench, *, lease: float = LEASE, offset: float = 0.0) -> AsyncIterator[Process]:
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.field_faults.worker_process", bench.dsn, str(lease), str(offset),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    process = Process(started)
    try:
        await wait_until(lambda: "working" in process.lines, 20, "the process to work")
        yield process
    finally:
        if started.returncode is None:
            started.send_signal(signal.SIGCONT)
            started.kill()
        await started.wait()
        await process._reading


async def fenced(bench: Bench, job: Job) -> None:
    """Its end is the word of whoever had it last, and every earlier attempt is known as lost."""
    assert job.status is Status.COMPLETED
    assert bytes(job.result or b"") == f'"token {job.lease_token}"'.encode()
    history = await bench.history(job.id)
    assert [(past.outcome, past.token) for past in history] == [("lost", token) for token in range(1, job.lease_token)]


@pytest.mark.slow
async def test_a_worker_that_stood_still_ends_only_what_is_still_its_own(bench: Bench) -> None:
    """Stopped for about a lease, it goes on just as others sweep: 60 completions, each before, in or after that."""
    durations = [random.uniform(0.1, 2.5 * LEASE) for _ in range(60)]
    ids = await bench.enqueue_many("sleeps", durations, max_attempts=100)
    async with working(bench) as first:
        await wait_until(lambda: first.count("started") == 60, 10)
        first.process.send_signal(signal.SIGSTOP)
        await bench.start(
            app=application(), workers=64, lease_seconds=LEASE, lease_extension=True, recovery_interval_seconds=0.05
        )
        await asyncio.sleep(LEASE * random.uniform(0.9, 1.2))
        first.process.send_signal(signal.SIGCONT)
        jobs = await bench.finished_quickly(ids, 30)
        await first.finish()
    for job in jobs:
        await fenced(bench, job)
    # What it was told is what is there. It may have taken some of them again itself.
    its_own = [job for job in jobs if f"started {job.id} {job.lease_token}" in first.lines]
    assert first.count("ended succeeded") == len(its_own)
    await bench.audit()


@pytest.mark.slow
async def test_a_handler_that_keeps_the_interpreter_to_itself_is_fenced(bench: Bench) -> None:
    """In C, with Python's lock held, nothing in that process can renew: somebody else gets the job, and it is told."""
    job_id = await bench.enqueue("holds", 3 * LEASE, timeout_seconds=60.0)
    async with working(bench) as first:
        await wait_until(lambda: first.count("started") == 1, 10)
        await bench.start(app=application(), workers=1, recovery_interval_seconds=0.05)
        job = await bench.ended(job_id, 20)
        assert (job.lease_token, job.attempts) == (2, 2)
        await wait_until(lambda: first.count("ended lost") == 1, 10)
    await fenced(bench, await bench.get(job_id))


@pytest.mark.slow
async def test_clocks_that_are_wrong_start_nothing_twice_late_or_early(bench: Bench) -> None:
    """One worker is ten minutes ahead and one as many behind; their jobs last longer than a lease."""
    # Long enough that none is lost where a process stands still for a moment.
    lease = 3 * LEASE
    async with working(bench, lease=lease, offset=600) as ahead, working(bench, lease=lease, offset=-600) as behind:
        ids = await bench.enqueue_many("sleeps", [1.3 * lease] * 100)
        delayed = await bench.enqueue("sleeps", 0, delay_seconds=1.5)
        at = await bench.value("select clock_timestamp() + interval '1 second'")
        planned = await bench.enqueue("sleeps", 0, run_at=at)
        jobs = await bench.finished_quickly([*ids, delayed, planned], 30)
        await ahead.finish()
        await behind.finish()
    assert Counter((job.status, job.attempts, job.lease_token) for job in jobs) == {(Status.COMPLETED, 1, 1): 102}
    assert ahead.count("started") + behind.count("started") == 102
    assert min(ahead.count("started"), behind.count("started")) > 0
    for job_id in (delayed, planned):
        job = await bench.get(job_id)
        due = at if job_id == planned else job.created_at + timedelta(seconds=1.5)
        assert job.started_at is not None
        assert due <= job.started_at < due + timedelta(seconds=5)
    await bench.audit()


ALLOWED = {
    # Where the time of day of a process is read, and why that decides nothing about a job.
    "domain/ids.py": "an id carries a time to sort by; where it is filed doesn't matter",
    "api/middleware.py": "a request's id",
    "store/jobs.py": "whether a wake-up is worth sending; polling finds the job",
    "worker/strangers.py": "how long a job of an unknown type waits, between bounds",
    "handlers/webhook.py": "a Retry-After that names a date, bounded",
    "cli/many_jobs.py": "`--since 2h`, as the person at the terminal means it",
    "client/options.py": "a sentence",
    "telemetry/pulses.py": "a sentence: since when a loop has stood still",
    "store/doctor/server.py": "how far this machine's clock is from the database's, to be told",
}


def test_the_time_of_day_is_read_nowhere_else() -> None:
    source = Path(fencepost.__file__).parent
    found = {
        str(file.relative_to(source))
        for file in source.rglob("*.py")
        if re.search(r"\btime\.time(_ns)?\b|\bdatetime\.(utc)?now\b|\bdatetime\.today\b", file.read_text("utf-8"))
    }
    assert {name for name in found if not name.startswith(("testing/", "cli/bench/"))} <= ALLOWED.keys()


@pytest.mark.slow
async def test_an_orphan_holds_its_key_can_be_cancelled_and_needs_no_new_job(bench: Bench) -> None:
    """Its process is killed, nobody else is there, and no new job comes. The next worker's start is enough."""
    unique = Unique(key="one at a time")
    orphan = await bench.enqueue("sleeps", 3600, unique=unique)
    other = await bench.enqueue("sleeps", 3600)
    async with working(bench) as first:
        await wait_until(lambda: first.count("started") == 2, 10)
        first.process.kill()
        await first.process.wait()
        # It still runs, as far as anybody knows.
        assert await bench.enqueue("sleeps", 0, unique=unique) == orphan
        assert await bench.jobs.cancel(other) is Status.PROCESSING
    await bench.sql("update fencepost.jobs set payload = '0'")
    await bench.start(app=application(), recovery_interval_seconds=0.1)
    job = await bench.ended(orphan, 10)
    assert (job.attempts, job.lease_token) == (2, 2)
    await fenced(bench, job)
    assert await bench.enqueue("sleeps", 0, unique=unique) != orphan
    cancelled = await bench.ended(other)
    assert (cancelled.status, cancelled.attempts) == (Status.CANCELLED, 1)
    await bench.audit()


@pytest.mark.slow
async def test_a_job_that_kills_its_process_can_be_cancelled_between_two_crashes(bench: Bench) -> None:
    job_id = await bench.enqueue("kills", max_attempts=100)
    healthy = await bench.enqueue_many("sleeps", [0] * 50, max_attempts=100)
    for crash in (1, 2):
        async with working(bench, lease=2 * LEASE) as process:
            assert await within(20, process.process.wait()) == -signal.SIGKILL
        await bench.expire(job_id)
        assert (await bench.get(job_id)).attempts == crash
    assert await bench.jobs.cancel(job_id) is Status.CANCELLED
    async with working(bench, lease=2 * LEASE) as process:
        jobs = await bench.finished_quickly(healthy, 20)
        await process.finish()
    assert {job.status for job in jobs} == {Status.COMPLETED}
    assert (await bench.get(job_id)).status is Status.CANCELLED
    await bench.audit()
