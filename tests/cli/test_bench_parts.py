"""The parts of `fencepost bench`: the crowd, the load, and worker processes."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext

import pytest

from fencepost.cli.bench import ground
from fencepost.cli.bench.child import Config
from fencepost.cli.bench.crowd import gather
from fencepost.cli.bench.http import http
from fencepost.cli.bench.plan import Plan, job
from fencepost.cli.bench.workers import changed, children
from fencepost.cli.output import Advance
from fencepost.domain.job import Status
from fencepost.errors import FencepostError
from fencepost.store.listing import Filter, Listing
from tests.cli.test_bench import rows


def silent(part: str, total: int) -> AbstractContextManager[Advance]:
    """Shows no progress."""
    return nullcontext(lambda remark, steps=1: None)


async def test_a_crowd_is_in_order(empty_url: str) -> None:
    async with ground.fresh(empty_url, "mine") as place:
        await gather(place, Plan(jobs=100), silent)
        assert await place.jobs.audit() == {"jobs": 4400, "pending": 2400, "leases": 0, "finished": 2000}
        due = "run_at <= now()"
        found = await asyncio.to_thread(
            rows,
            empty_url,
            f"select q.name, {due} as due, count(*) from mine.pending p join mine.queues q on q.id = p.queue_id "
            "group by q.name, due order by q.name",
        )
        assert [tuple(row) for row in found] == [("default", False, 2000), ("unserved", True, 400)]
        filed = "select count(*), count(*) filter (where substr(id::text, 15, 1) = '7') from mine.jobs_default"
        assert [tuple(row) for row in await asyncio.to_thread(rows, empty_url, filed)] == [(0, 0)]
        statuses = await asyncio.to_thread(
            rows, empty_url, "select status, count(*) from mine.finished group by status order by status"
        )
        assert dict(map(tuple, statuses)) == {"cancelled": 20, "completed": 1940, "dead_letter": 20, "failed": 20}
        page = await Listing(place.database, place.queues).page(Filter(status=Status.FAILED), limit=50)
        assert [job.last_error for job in page.jobs] == ["it broke"] * 20


async def test_a_load_that_is_refused_ends_the_benchmark(empty_url: str) -> None:
    async with ground.fresh(empty_url, "mine") as place:
        refused = Plan(jobs=64, payload=b"NaN")
        with pytest.raises(FencepostError, match="refused"):
            await http(place, refused, silent)


async def test_an_idle_worker_is_silent(empty_url: str) -> None:
    async with ground.fresh(empty_url, "mine") as place, children(1, Config(empty_url, "mine", 2)) as (child,):
        child.go()
        # It may have run the job before this has heard that it is stored.
        waiting = asyncio.create_task(changed([child]))
        await asyncio.sleep(0)
        await place.jobs.enqueue([job(Plan())])
        await waiting
        assert [one.started for one in child.progress] == [1]
        with pytest.raises(FencepostError, match="no job"):
            await changed([child], seconds=0.3)
        assert (await child.finish()).cpu_seconds > 0


async def test_a_worker_that_cannot_work_ends_the_benchmark(capfd: pytest.CaptureFixture[str]) -> None:
    async with children(1, Config("postgresql://127.0.0.1:1/none", "fencepost", 1)) as (child,):
        child.go()
        with pytest.raises(FencepostError, match="ended without its figures"):
            await child.finish()
    assert "not available" in capfd.readouterr().err
