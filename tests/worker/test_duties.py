"""Duties by themselves: tried again soon after a failure, and one queue's fault spares the others."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from asyncpg import RaiseError

from fencepost.domain.ids import new_id
from fencepost.domain.job import Status
from fencepost.errors import DatabaseUnavailable, PrivilegeMissing
from fencepost.store.claims import Recovery, Snapshot
from fencepost.store.merging import Merger
from fencepost.store.workers import WorkerStore
from fencepost.telemetry.events import Events
from fencepost.telemetry.pulses import unwatched
from fencepost.worker.deadlines import Deadlines
from fencepost.worker.maintenance import Rescuer, repeat

from .support import Bench, make_lease, records, wait_until, within

pytestmark = pytest.mark.anyio


@pytest.mark.slow
@pytest.mark.parametrize("error", [DatabaseUnavailable("down"), ValueError("a fault")])
async def test_an_hourly_duty_comes_back_soon_after_an_outage(error: Exception) -> None:
    calls: list[float] = []
    pulse = unwatched("duty")
    pulse.turned_at = 0.0

    async def duty() -> None:
        calls.append(time.monotonic())
        if len(calls) <= 2:
            raise error

    task = asyncio.create_task(repeat("a duty", duty, every_seconds=3600.0, pulse=pulse))
    await wait_until(lambda: len(calls) == 2, 5)
    assert pulse.error == str(error)
    await wait_until(lambda: len(calls) == 3, 8)
    # The pauses grow, and are drawn at random from the upper half.
    assert calls[1] - calls[0] >= 0.5
    assert calls[2] - calls[1] >= 1.0
    await asyncio.sleep(0.3)
    assert len(calls) == 3
    assert pulse.turned_at >= calls[2]
    task.cancel()
    await asyncio.wait([task])


async def test_a_frequent_duty_is_not_tried_more_often_because_it_fails() -> None:
    calls = 0

    async def duty() -> None:
        nonlocal calls
        calls += 1
        raise DatabaseUnavailable("down")

    task, began = asyncio.create_task(repeat("a duty", duty, every_seconds=0.1)), time.monotonic()
    await asyncio.sleep(1)
    await wait_until(lambda: calls >= 3, 1)
    assert calls <= 21 * (time.monotonic() - began)
    task.cancel()
    await asyncio.wait([task])


class Sweeping:
    """A store with three queues, one of which can't be swept."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error
        self.swept: list[int] = []

    async def leased_queues(self) -> list[int]:
        return [1, 2, 3]

    async def recover(self, queue_id: int, *, after: Any, max_rows: int, spared: int = 0) -> Recovery:
        self.swept.append(queue_id)
        if queue_id == 2 and self.error is not None:
            raise self.error
        from datetime import UTC, datetime

        return Recovery(
            jobs=[(new_id(), 1, Status.PENDING)],
            last_locked_until=None,
            snapshot=Snapshot.parse("10:10:"),
            transaction=10,
            seen_at=datetime.now(UTC),
        )


@pytest.mark.parametrize("error", [ValueError("garbage"), PrivilegeMissing("garbage")])
async def test_one_queue_that_can_not_be_swept_spares_the_others(error: Exception) -> None:
    store: Any = Sweeping(error)
    woken: list[int] = []
    rescuer = Rescuer(store, wake=lambda queue_ids: woken.extend(queue_ids), events=Events())
    with pytest.raises(type(error), match="garbage"):
        await rescuer.sweep()
    assert (store.swept, woken) == ([1, 2, 3], [1, 3])
    # Next time it comes last; when the database fails there, the others have had their turn.
    store.error, store.swept = DatabaseUnavailable("statement timeout"), []
    with pytest.raises(DatabaseUnavailable):
        await rescuer.sweep()
    assert store.swept == [1, 3, 2]
    store.error, store.swept = None, []
    await rescuer.sweep()
    assert store.swept == [1, 3, 2]
    store.swept = []
    await rescuer.sweep()
    assert store.swept == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("bad", [{0}, {4}, {9}, {1, 2}, {0, 5, 9}, set(range(10))])
@pytest.mark.parametrize("rows", [3, 100])
async def test_leases_that_can_not_be_taken_back_spare_those_behind_them(
    bench: Bench, caplog: pytest.LogCaptureFixture, bad: set[int], rows: int
) -> None:
    await bench.sql("create table public.bad (id uuid primary key)")
    await bench.sql(
        "create function public.refuse() returns trigger language plpgsql as $$ begin "
        "if new.id in (select id from public.bad) then raise exception 'refused'; end if; return new; end $$"
    )
    await bench.sql(
        "create trigger refuse before insert on fencepost.attempts for each row execute function public.refuse()"
    )
    ids = await bench.enqueue_many("work", [None] * 10)
    store = WorkerStore(bench.database, new_id())
    await store.claim(await bench.queue_id(), slots=10, cursors={}, lease_seconds=60, aging_seconds=60)
    for place, job_id in enumerate(ids):
        await bench.sql(
            "update fencepost.leases set locked_until = started_at + make_interval(secs => $1) where id = $2",
            (place + 1) / 1e6,
            job_id,
        )
    spared = {ids[place] for place in bad}
    await bench.sql("insert into public.bad select unnest($1::uuid[])", list(spared))

    rescuer = Rescuer(store, wake=lambda queue_ids: None, events=Events(), rows=rows)
    sweeps = 1
    while not await _sweeps(rescuer):
        sweeps += 1
        assert sweeps <= 2 * len(bad) + 1
    assert {row["id"] for row in await bench.sql("select id from fencepost.leases")} == spared
    (said,) = records(caplog, "leases that have run out can't be taken back")
    assert vars(said)["leases"] == len(bad)
    # Once they can be, they are, by the next sweep.
    await bench.sql("delete from public.bad")
    assert await _sweeps(rescuer)
    assert await bench.value("select count(*) from fencepost.leases") == 0


async def _sweeps(rescuer: Rescuer) -> bool:
    try:
        await rescuer.sweep()
    except RaiseError:
        return False
    return True


@pytest.mark.parametrize("count", [0, 1, 5])
async def test_nobody_waits_for_ever_for_an_answer_that_is_not_among_those_that_came(count: int) -> None:
    gate = asyncio.Event()
    rounds = 0

    async def insert(records: Any) -> list[int]:
        nonlocal rounds
        rounds += 1
        await gate.wait()
        return list(records) if rounds <= 1 or len(records) == 1 else list(range(count))

    merger: Merger[int, int] = Merger(insert)
    calls = [asyncio.create_task(merger.put(number)) for number in range(2)]
    await asyncio.sleep(0.01)
    calls += [asyncio.create_task(merger.put(number)) for number in range(2, 5)]
    calls += [asyncio.create_task(merger.put(number)) for number in range(5, 8)]
    await asyncio.sleep(0.01)
    gate.set()
    answers = await within(5, asyncio.gather(*calls, return_exceptions=True))
    assert all(isinstance(answer, int | DatabaseUnavailable) for answer in answers), answers
    assert any(isinstance(answer, DatabaseUnavailable) for answer in answers)
    # And it goes on.
    assert await within(2, merger.put(9)) == 9
    assert merger.pulse.idle


async def test_a_fault_in_timing_out_one_attempt_spares_the_next() -> None:
    import threading

    from fencepost.worker.attempt import Attempt

    one, two = Attempt(make_lease()), Attempt(make_lease())
    now = time.monotonic()
    one.deadline, two.deadline = now + 0.02, now + 0.1
    timed_out: list[Any] = []

    def time_up(attempt: Attempt) -> None:
        timed_out.append(attempt)
        if attempt is one:
            one.deadline = float("inf")
            raise RuntimeError("a fault")

    deadlines = Deadlines([one, two], lock=threading.RLock(), time_up=time_up)
    deadlines.look_at(one.deadline)
    await wait_until(lambda: two in timed_out, 3)
