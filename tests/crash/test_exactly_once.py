"""
Effects in the same database happen once, whatever dies between them and the end of their job.

FENCEPOST_CRASHES sets how many faults are injected; without it a few, so that the suite stays quick.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from itertools import cycle
from pathlib import Path

import asyncpg
import pytest

from fencepost.store.jobs import Jobs
from tests.crash.bank import ASYNC, FAULTS, PLAIN, app, pay, pay_in_thread

CRASHES = int(os.environ.get("FENCEPOST_CRASHES", "60"))
WORKERS = 2
"""Side by side: what one leaves behind when it dies, the other finds while the first one's successor starts."""
ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 120 + CRASHES


def start_worker(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "fencepost", "worker", "tests.crash.bank:app", "--workers", "8"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_SECONDS + 60)
async def test_effects_happen_exactly_once(
    database_url: str, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck = tmp_path / "struck"
    struck.touch()
    environment = {
        **os.environ,
        "DATABASE_URL": database_url,
        "CRASHES": str(struck),
        "LEASE_DURATION": "2s",
        "LEASE_EXTENSION": "true",
        "RECOVERY_INTERVAL": "300ms",
        "POLL_INTERVAL": "100ms",
        "LOG_LEVEL": "error",
    }
    monkeypatch.setenv("DATABASE_URL", database_url)
    connection = await asyncpg.connect(database_url)
    # No unique constraint: an effect that happened twice must be seen, not prevented.
    await connection.execute("create table effects (job uuid, kind text, cents int)")
    # A fault strikes less than half of all jobs, once or more, so these are enough.
    count = CRASHES * 4
    async with app:
        calls = [
            (pay if kind in ASYNC else pay_in_thread).call(kind, cents)
            for cents, kind in zip(range(count), cycle([*ASYNC, *PLAIN]), strict=False)
        ]
        await app.enqueue_many(calls)
        deaths = await _work_until_all_have_ended(connection, count, environment)
    struck_by = [line.split(", ") for line in struck.read_text().splitlines()]
    faults, kinds = (Counter(column) for column in zip(*struck_by, strict=True))
    effects = await connection.fetch("select job, count(*) as times, min(cents) as cents from effects group by job")
    ended = await connection.fetch("select status, count(*) from fencepost.finished group by status")
    await connection.close()
    print(f"{len(struck_by)} faults {dict(faults)} {dict(kinds)}, {deaths} dead workers, {count} jobs")
    assert [tuple(row) for row in ended] == [("completed", count)]
    assert len(effects) == count
    assert [row for row in effects if row["times"] != 1] == []
    assert sum(row["cents"] for row in effects) == sum(range(count))
    assert len(struck_by) >= CRASHES
    assert set(faults) == set(FAULTS), "each kind of fault has struck"
    assert set(kinds) == {*ASYNC, *PLAIN}, "in each kind of connection"
    assert deaths > 0
    audit = await jobs.audit()
    assert audit.pop("jobs") == sum(audit.values())


async def _work_until_all_have_ended(
    connection: asyncpg.Connection[asyncpg.Record], count: int, environment: dict[str, str]
) -> int:
    """Start a worker whenever there are fewer than two; returns how many died."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    deaths = 0
    workers = [start_worker(environment) for _ in range(WORKERS)]
    try:
        while True:
            left = await connection.fetchval("select count(*) from fencepost.finished")
            if left == count:
                return deaths
            assert time.monotonic() < deadline, f"{left} of {count} jobs have ended"
            for place, worker in enumerate(workers):
                if worker.poll() is not None:
                    deaths += 1
                    workers[place] = start_worker(environment)
            await asyncio.sleep(0.02)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
