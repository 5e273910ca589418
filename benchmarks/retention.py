"""
How claims fare beside a run of retention.

    .venv/bin/python benchmarks/retention.py [--jobs 200000] [--url postgresql://…]

Makes a database with an old range that is dropped, one that is emptied in batches because too much of it must stay,
and a stream of jobs of today. Prints how long a claim with its settlement took before the run, beside it, and after.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from fencepost.domain.ids import first_id_at, new_id
from fencepost.domain.job import NewJob, Status
from fencepost.domain.outcome import Ending, Outcome
from fencepost.embedded import EmbeddedPostgres
from fencepost.settings import Settings
from fencepost.store.database import HOT_SESSION, Database
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.migrate import prepare
from fencepost.store.queues import Queues
from fencepost.store.retention import MOVED_JOBS, Keep, Retention
from fencepost.store.workers import WorkerStore
from fencepost.telemetry.events import Events
from fencepost.worker.pruner import Pruner

FILL = """
insert into fencepost.{table}
select rpad(lpad(to_hex((extract(epoch from $1::timestamptz) * 1000)::bigint + n), 12, '0') || '7' ||
       substr(md5(n::text), 1, 19), 32, '0')::uuid, $2, {columns}
  from generate_series(1, $3::int) n
"""


def say(line: str) -> None:
    """A line of the report."""
    sys.stdout.write(line + "\n")


async def make_range(sql: asyncpg.Connection, start: datetime, *, jobs: int, staying: int, queue_id: int) -> None:
    """Partitions that began at *start*, and completed jobs in them; the first *staying* are dead letters."""
    end = start + timedelta(days=3)
    for table in ("jobs", "finished", "attempts"):
        part = f"fencepost.{table}_{start:%Y%m%dt%H%M}"
        await sql.execute(
            f"create table {part} (like fencepost.{table} including defaults including constraints);"
            f"alter table fencepost.{table} attach partition {part} "
            f"for values from ('{first_id_at(start)}') to ('{first_id_at(end)}')"
        )
    await sql.execute("insert into fencepost.partitions (starts_at, ends_at) values ($1, $2)", start, end)
    job = "'work', 0, '{}', 3, null, null, null, $1"
    await sql.execute(FILL.format(table="jobs", columns=job), start, queue_id, jobs)
    state = f"case when n <= {staying} then 'dead_letter' else 'completed' end, 1, 1, $1, $1, null"
    await sql.execute(FILL.format(table="finished", columns=state), start, queue_id, jobs)


class Claims:
    """A stream of jobs of today, each claimed and settled, and how long that took."""

    def __init__(self, jobs: Jobs, store: WorkerStore, queue_id: int) -> None:
        self._jobs, self._store, self._queue_id = jobs, store, queue_id
        self.seconds: list[float] = []

    async def run(self, until: asyncio.Event) -> None:
        while not until.is_set():
            await self._jobs.enqueue([NewJob(id=new_id(), type="work", max_attempts=1)])
            began = time.perf_counter()
            claimed = await self._store.claim(self._queue_id, slots=10, cursors={}, lease_seconds=60, aging_seconds=60)
            await self._store.settle(
                self._queue_id,
                [
                    Outcome(
                        id=lease.id, queue_id=lease.queue_id, token=lease.token, ending=Ending.SUCCEEDED,
                        status=Status.COMPLETED,
                    )
                    for lease in claimed.leases
                ],
            )  # fmt: skip
            self.seconds.append(time.perf_counter() - began)
            await asyncio.sleep(0.005)

    def report(self, when: str) -> None:
        if len(self.seconds) > 1:
            cuts = [1000 * cut for cut in statistics.quantiles(self.seconds, n=1000)]
            say(
                f"{when:24} {len(self.seconds):6} claims  p50 {cuts[499]:7.2f}  p99 {cuts[989]:7.2f}  "
                f"max {1000 * max(self.seconds):7.2f} ms"
            )
        self.seconds.clear()


async def measure(url: str, *, jobs: int, seconds: float) -> None:
    """Fill the database of *url*, then claim before, beside and after a run."""
    database, hot = Database(url), Database(url, session=HOT_SESSION, connections=2)
    await database.open()
    await hot.open()
    await prepare(database, partition_days=3)
    hints = Hints(database)
    queues = Queues(database, hints)
    queue_id = await queues.ensure("default", 0)
    sql = await asyncpg.connect(url)
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    await make_range(sql, now - timedelta(days=20), jobs=jobs, staying=100, queue_id=queue_id)
    await make_range(sql, now - timedelta(days=16), jobs=jobs, staying=2 * MOVED_JOBS, queue_id=queue_id)
    await sql.execute("vacuum analyze")
    claims, stop = Claims(Jobs(database, queues, hints), WorkerStore(hot, uuid.uuid4()), queue_id), asyncio.Event()
    claiming = asyncio.ensure_future(claims.run(stop))
    await asyncio.sleep(seconds)
    claims.report("before")
    began = time.perf_counter()
    report = await Pruner(Retention(hot, Keep.of(Settings())), events=Events()).run()
    claims.report("beside a run")
    say(f"removed {report.jobs:,} jobs in {time.perf_counter() - began:.1f} s: {report}")
    await asyncio.sleep(seconds)
    claims.report("after")
    stop.set()
    await claiming
    await sql.close()
    await hints.close()
    await hot.close()
    await database.close()


async def in_a_new_database(url: str, *, jobs: int, seconds: float) -> None:
    """Measure in a database of its own on the server of *url*, dropped afterwards."""
    name = f"fencepost_bench_{uuid.uuid4().hex[:8]}"
    server = await asyncpg.connect(url)
    await server.execute(f"create database {name}")
    try:
        await measure(urlunsplit(urlsplit(url)._replace(path="/" + name)), jobs=jobs, seconds=seconds)
    finally:
        await server.execute(f"drop database {name} with (force)")
        await server.close()


def main() -> None:
    """Run on the server that was named, or on an embedded one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200_000, help="in each of the two old ranges")
    parser.add_argument("--url", help="a server whose role may create databases; default: an embedded one")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to claim before and after the run")
    given = parser.parse_args()
    if given.url:
        asyncio.run(in_a_new_database(given.url, jobs=given.jobs, seconds=given.seconds))
        return
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder:
        Path(folder).chmod(0o711)
        with EmbeddedPostgres(Path(folder) / "data") as server:
            asyncio.run(in_a_new_database(server.dsn, jobs=given.jobs, seconds=given.seconds))


if __name__ == "__main__":
    sys.exit(main())
