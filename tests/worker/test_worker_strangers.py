"""Jobs of types that a worker doesn't know: left to others, or failed when there are none."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from fencepost.app import Fencepost
from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending
from fencepost.errors import DatabaseUnavailable, SchemaMismatch
from fencepost.store.job_types import JobTypes
from fencepost.worker.maintenance import Declaration
from fencepost.worker.strangers import CACHE_SECONDS, Strangers

from .support import Bench, Tally, fields_of, make_lease, records, wait_until


class Types:
    """What is declared, and how often somebody looked."""

    def __init__(self, *names: str) -> None:
        self.names = frozenset(names)
        self.looks = 0
        self.fault: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def declared(self, *, within_seconds: float) -> frozenset[str]:
        assert within_seconds == 3600
        self.looks += 1
        names = self.names
        if self.gate is not None:
            await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        return names


async def test_a_type_that_nobody_declares_fails_for_good() -> None:
    result = await Strangers(Types("other")).judge(make_lease(type="work"))
    assert (result.ending, result.status, result.error_type) == (Ending.PERMANENT, Status.FAILED, "UnknownJobType")
    assert "'work'" in (result.error or "")


@pytest.mark.parametrize(("age", "low", "high"), [(0, 1, 1), (-500, 1, 1), (40, 10, 10), (400, 30, 30), (1e12, 30, 30)])
async def test_one_that_somebody_declares_waits_a_quarter_of_its_age(age: float, low: float, high: float) -> None:
    lease = make_lease(type="work")
    made_at = (lease.id.int >> 80) / 1000
    strangers = Strangers(Types("work"), clock=lambda: made_at + age)
    delays = [(await strangers.judge(lease)) for _ in range(50)]
    assert {(one.ending, one.status, one.error) for one in delays} == {(Ending.SNOOZED, Status.PENDING, None)}
    assert all(0.8 * low <= one.delay_seconds <= 1.2 * high for one in delays)
    assert len({one.delay_seconds for one in delays}) > 10, "a flood doesn't come back as one"


async def test_a_flood_is_not_a_flood_of_looks() -> None:
    types, now = Types("known"), time.time()
    strangers = Strangers(types, clock=lambda: now)
    for _ in range(100):
        assert (await strangers.judge(make_lease(type="known"))).ending is Ending.SNOOZED
    assert types.looks == 1
    now += CACHE_SECONDS
    await strangers.judge(make_lease(type="known"))
    assert types.looks == 2
    now -= 3600
    await strangers.judge(make_lease(type="known"))
    assert types.looks == 3, "a clock that was set back makes nothing last for ever"
    types.gate = asyncio.Event()
    judged = [asyncio.create_task(strangers.judge(make_lease(type=f"unknown-{n}"))) for n in range(200)]
    await wait_until(lambda: types.looks == 4, 2)
    types.gate.set()
    assert {one.ending for one in await asyncio.gather(*judged)} == {Ending.PERMANENT}
    assert types.looks <= 5, "those that came during a look share the next"


async def test_that_nobody_knows_a_type_is_never_said_from_memory_nor_by_a_look_that_began_before() -> None:
    types = Types()
    strangers = Strangers(types)
    assert (await strangers.judge(make_lease(type="new"))).ending is Ending.PERMANENT
    types.gate = asyncio.Event()
    first = asyncio.create_task(strangers.judge(make_lease(type="other")))
    await wait_until(lambda: types.looks == 2, 2)
    # Declared while somebody else's look is under way, and enqueued after that.
    types.names = frozenset({"new"})
    second = asyncio.create_task(strangers.judge(make_lease(type="new")))
    await asyncio.sleep(0)
    types.gate.set()
    assert (await first).ending is Ending.PERMANENT
    assert (await second).ending is Ending.SNOOZED


@pytest.mark.parametrize("fault", [DatabaseUnavailable("away"), SchemaMismatch("in the middle of a migration")])
async def test_a_job_never_fails_because_nobody_could_be_asked(fault: Exception) -> None:
    types = Types()
    types.fault = fault
    strangers = Strangers(types)
    result = await strangers.judge(make_lease(type="work"))
    assert result.ending is Ending.SNOOZED
    assert 0.8 <= result.delay_seconds <= 1.2
    types.fault = None
    assert (await strangers.judge(make_lease(type="work"))).ending is Ending.PERMANENT


@pytest.mark.slow
async def test_a_rolling_deploy_costs_no_attempt(bench: Bench) -> None:
    """The old version is alone when the new one's job comes; the new one runs it, at the latest when the old leaves."""
    new, old_tally = Fencepost(), Tally()

    async def fresh(context: Any, payload: Any) -> str:
        return f"attempt {context.attempt}"

    new.register("fresh", fresh)
    old = await bench.start(events=old_tally, workers=1, poll_interval_seconds=0.2)
    await JobTypes(bench.database).declare(["fresh"])
    job_id = await bench.enqueue("fresh", max_attempts=1)
    await wait_until(lambda: old_tally.endings[Ending.SNOOZED, Status.PENDING] >= 1, 3)
    job = await bench.get(job_id)
    assert (job.status, job.attempts, job.last_error) == (Status.PENDING, 0, None)
    assert job.run_at is not None
    await bench.start(app=new, workers=1, poll_interval_seconds=0.2)
    # While both are there, it is chance whose claim comes first.
    await old.drain(5)
    done = await bench.ended(job_id, seconds=20)
    assert (done.status, bytes(done.result or b"")) == (Status.COMPLETED, b'"attempt 1"')
    assert await bench.history(job_id) == []


async def test_an_unknown_type_that_nobody_declares_fails_at_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.start()
    job, _ = await bench.finished(*await bench.enqueue_many("typo", [None] * 2))
    warned = records(caplog, "this worker doesn't know the type of a job")
    assert [fields_of(record) for record in warned] == [{"job_type": "typo"}], "once, not for each job"
    assert (job.status, job.attempts) == (Status.FAILED, 1)
    assert [one.error_type for one in await bench.history(job.id)] == ["UnknownJobType"]


async def test_a_worker_declares_its_types_and_makes_their_queues_when_it_starts(bench: Bench) -> None:
    @bench.job("here", payload=str)
    async def here(context: Any, payload: str) -> None:
        return

    await bench.start()

    async def declared() -> bool:
        return await JobTypes(bench.database).is_declared("here", within_seconds=60)

    await wait_until(declared, 3)
    assert await bench.value("select array_agg(name) from fencepost.queues") == ["default"]
    assert await bench.value("select count(*) from fencepost.lanes") == 1


async def test_a_declaration_makes_every_queue_and_lane_once(bench: Bench) -> None:
    async def handler(context: Any, payload: Any) -> None:
        return

    for number in range(6):
        bench.app.register(f"t{number}", handler)
    types = [
        msgspec.structs.replace(one, queue=f"q{number % 2}", priority=number % 3)
        for number, one in enumerate(bench.app.types.values())
    ]
    for _ in range(2):
        await Declaration(types, JobTypes(bench.database), bench.queues).declare()
    rows = await bench.sql(
        "select q.name, l.priority from fencepost.lanes l join fencepost.queues q on q.id = l.queue_id order by 1, 2"
    )
    assert [tuple(row) for row in rows] == [(queue, lane) for queue in ("q0", "q1") for lane in (0, 1, 2)]
    assert await JobTypes(bench.database).declared(within_seconds=60) == {f"t{number}" for number in range(6)}
