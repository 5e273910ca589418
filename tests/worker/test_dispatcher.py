"""The dispatcher by itself, against a store that is slow or away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fencepost.domain.job import Lease
from fencepost.errors import DatabaseUnavailable
from fencepost.store.claims import Claim, DueQueue, LaneScan, Snapshot
from fencepost.worker.dispatcher import Dispatcher
from fencepost.worker.settler import Settler
from tests.patience import limit

from .support import make_lease, wait_until, within

pytestmark = pytest.mark.anyio


class Store:
    """A queue a number, each with so many due jobs."""

    def __init__(self) -> None:
        self.due: dict[int, int] = {}
        self.next_due: dict[int, datetime] = {}
        self.claims: list[tuple[int, int, float]] = []
        self.polls = 0
        self.down = False
        self.fault: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.poll_gate: asyncio.Event | None = None

    async def claim(self, queue_id: int, *, slots: int, **_: Any) -> Claim:
        self.claims.append((queue_id, slots, time.monotonic()))
        if self.gate is not None:
            await self.gate.wait()
        if self.down:
            raise DatabaseUnavailable("down")
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        now = datetime.now(UTC)
        planned = self.next_due.get(queue_id)
        if planned is not None and planned <= now:
            self.due[queue_id] = self.due.get(queue_id, 0) + 1
            del self.next_due[queue_id]
        taken = min(slots, self.due.get(queue_id, 0))
        self.due[queue_id] = self.due.get(queue_id, 0) - taken
        return Claim(
            leases=[make_lease(queue_id=queue_id) for _ in range(taken)],
            lanes=[LaneScan(priority=0, wanted=slots, rest=None, next_run_at=self.next_due.get(queue_id))],
            snapshot=Snapshot(10, frozenset()),
            seen_at=now,
        )

    async def due_queues(self, cursors: Any) -> tuple[Snapshot, list[DueQueue]]:
        self.polls += 1
        if self.poll_gate is not None:
            await self.poll_gate.wait()
        if self.down:
            raise DatabaseUnavailable("down")
        now = datetime.now(UTC)
        return Snapshot(10, frozenset()), [
            DueQueue(queue_id=queue_id, due=count > 0, next_run_at=self.next_due.get(queue_id), seen_at=now)
            for queue_id, count in self.due.items()
        ]

    async def first_pending(self, queue_id: int, after: Any) -> dict[int, Any]:
        return {}


class Desk:
    """A dispatcher with slots that are taken until somebody frees them."""

    def __init__(self, store: Store, slots: int, poll_seconds: float) -> None:
        self.store = store
        self.slots = slots
        self.slot_freed = asyncio.Event()
        self.taken: list[Lease] = []
        self.asked_at = 0.0
        self.dispatcher = Dispatcher(
            store,  # type: ignore[arg-type]
            settler=Settler(store, settled=lambda *_: None),  # type: ignore[arg-type]
            slots=slots,
            free=lambda: self.slots - len(self.taken),
            slot_freed=self.slot_freed,
            hand_over=self.hand_over,
            lease_seconds=30,
            aging_seconds=60,
            poll_seconds=poll_seconds,
        )

    def hand_over(self, leases: list[Lease], asked_at: float) -> None:
        self.taken += leases
        self.asked_at = asked_at

    def free(self, count: int = 1) -> None:
        del self.taken[:count]
        self.slot_freed.set()


@asynccontextmanager
async def dispatching(store: Store, *, slots: int = 4, poll_seconds: float = 30.0) -> AsyncIterator[Desk]:
    desk = Desk(store, slots, poll_seconds)
    task = asyncio.create_task(desk.dispatcher.run())
    try:
        yield desk
    finally:
        assert not task.done()
        desk.dispatcher.stop()
        await within(2, task)


@pytest.mark.slow
async def test_an_outage_is_met_with_growing_pauses_also_after_a_wake_up() -> None:
    """A wake-up that came before the outage must not turn the pauses off."""
    store = Store()
    async with dispatching(store) as desk:
        await wait_until(lambda: store.polls == 1, 1)
        store.down = True
        store.polls = 0
        desk.dispatcher.wake([1])
        await wait_until(lambda: store.claims, 1)
        await asyncio.sleep(1.0)
        assert store.polls + len(store.claims) <= 8, "it hammers a database that is down"
        store.down = False
        store.due = {1: 1}
        await wait_until(lambda: desk.taken, 3)


async def test_a_fault_in_a_claim_is_survived() -> None:
    store = Store()
    async with dispatching(store) as desk:
        store.due = {1: 2}
        store.fault = RuntimeError("odd")
        desk.dispatcher.wake([1])
        await wait_until(lambda: len(desk.taken) == 2, 3)


async def test_a_fault_of_one_queue_is_not_met_again_with_the_others() -> None:
    """A hint has named a queue that can't be claimed from: it is forgotten, and only the poll brings it back."""
    store = Store()
    async with dispatching(store) as desk:
        await wait_until(lambda: store.polls == 1, 3)
        store.fault = OverflowError("no such number")
        desk.dispatcher.wake([99])
        await wait_until(lambda: store.polls == 2, 3)
        store.due = {1: 2}
        desk.dispatcher.wake([1])
        await wait_until(lambda: len(desk.taken) == 2, 3)
        assert [queue_id for queue_id, *_ in store.claims] == [99, 1]
        assert list(desk.dispatcher._cursors) == [1]


async def test_it_stops_at_once_while_it_pauses() -> None:
    store = Store()
    store.down = True
    async with dispatching(store):
        await wait_until(lambda: store.polls >= 3, 3)
    # `dispatching` stops it and waits: within 2 seconds, though the pause is up to 5 by then.


async def test_slots_are_shared_by_the_queues_that_have_something() -> None:
    store = Store()
    store.due = {1: 100, 2: 100, 3: 100}
    async with dispatching(store, slots=6) as desk:
        await wait_until(lambda: len(desk.taken) == 6, 1)
        assert {lease.queue_id for lease in desk.taken} == {1, 2, 3}
        turns: list[int] = []
        for _ in range(12):
            desk.free(1)
            await wait_until(lambda: len(desk.taken) == 6, 1)
            turns.append(desk.taken[-1].queue_id)
        assert [turns.count(queue_id) for queue_id in (1, 2, 3)] == [4, 4, 4]


async def test_it_never_claims_more_than_is_free() -> None:
    store = Store()
    store.due = {1: 50, 2: 50}
    async with dispatching(store, slots=3) as desk:
        for _ in range(20):
            await wait_until(lambda: len(desk.taken) == 3, 1)
            desk.free(2)
        assert all(slots <= 3 for _, slots, _ in store.claims)
        await wait_until(lambda: len(desk.taken) == 3, 1)


async def test_a_queue_with_less_than_its_share_leaves_the_rest_to_the_others() -> None:
    store = Store()
    store.due = {1: 1, 2: 100}
    async with dispatching(store, slots=8) as desk:
        await wait_until(lambda: len(desk.taken) == 8, 1)


async def test_no_claim_is_made_while_no_slot_is_free() -> None:
    store = Store()
    store.due = {1: 1}
    async with dispatching(store, slots=1, poll_seconds=0.01) as desk:
        await wait_until(lambda: len(desk.taken) == 1, 1)
        known = len(store.claims)
        store.due = {1: 5}
        desk.dispatcher.wake([1, 2, 3])
        await asyncio.sleep(0.1)
        assert len(store.claims) == known
        desk.free()
        await wait_until(lambda: len(desk.taken) == 1, 1)


async def test_a_due_time_learned_from_a_claim_needs_no_poll() -> None:
    store = Store()
    async with dispatching(store) as desk:
        await wait_until(lambda: store.polls == 1, 1)
        began = time.monotonic()
        store.next_due = {1: datetime.now(UTC) + timedelta(seconds=0.3)}
        desk.dispatcher.wake([1])
        await wait_until(lambda: desk.taken, 2)
        assert 0.29 <= time.monotonic() - began < limit(0.45)
        assert store.polls == 1


async def test_a_due_time_that_comes_closer_is_heeded() -> None:
    store = Store()
    async with dispatching(store) as desk:
        await wait_until(lambda: store.polls == 1, 1)
        desk.dispatcher.due_in(1, 20.0)
        await asyncio.sleep(0.05)
        store.due = {1: 1}
        desk.dispatcher.due_in(1, 0.1)
        await wait_until(lambda: desk.taken, 1)


async def test_a_poll_asked_for_during_a_claim_is_made_after_it() -> None:
    store = Store()
    async with dispatching(store) as desk:
        await wait_until(lambda: store.polls == 1, 1)
        store.gate = asyncio.Event()
        desk.dispatcher.wake([1])
        await wait_until(lambda: store.claims, 1)
        desk.dispatcher.poll_now()
        store.gate.set()
        await wait_until(lambda: store.polls == 2, 1)


async def test_a_claim_under_way_is_handed_over_even_when_stopped() -> None:
    store = Store()
    store.due = {1: 1}
    store.gate = asyncio.Event()
    desk = Desk(store, 4, 30.0)
    running = asyncio.create_task(desk.dispatcher.run())
    await wait_until(lambda: store.claims, 1)
    desk.dispatcher.stop()
    await asyncio.sleep(0)
    assert not running.done()
    store.gate.set()
    await within(1, running)
    assert len(desk.taken) == 1


async def test_leases_are_handed_over_with_the_time_at_which_they_were_asked_for() -> None:
    """They last since then, however late the answer is read."""
    store = Store()
    store.due = {1: 3}
    store.gate = asyncio.Event()
    async with dispatching(store) as desk:
        await wait_until(lambda: store.claims, 1)
        [(_, _, sent_at)] = store.claims
        store.gate.set()
        await wait_until(lambda: desk.taken, 1)
        assert desk.asked_at <= sent_at


async def test_what_a_poll_under_way_finds_is_not_claimed_when_stopped() -> None:
    store = Store()
    store.due = {1: 3}
    store.poll_gate = asyncio.Event()
    desk = Desk(store, 4, 30.0)
    running = asyncio.create_task(desk.dispatcher.run())
    await wait_until(lambda: store.polls, 1)
    desk.dispatcher.stop()
    store.poll_gate.set()
    await within(1, running)
    assert store.claims == []


async def test_stopping_does_not_wait_for_a_free_slot() -> None:
    store = Store()
    store.due = {1: 9}
    async with dispatching(store, slots=1) as desk:
        await wait_until(lambda: desk.taken, 1)
        await asyncio.sleep(0.01)
