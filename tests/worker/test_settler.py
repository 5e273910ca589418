"""The settler by itself, against a store that fails in every way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from fencepost.domain import outcome as outcomes
from fencepost.domain.job import Status
from fencepost.domain.outcome import Outcome
from fencepost.errors import DatabaseUnavailable, InvalidSettings, PrivilegeMissing, SchemaMismatch
from fencepost.worker import apart
from fencepost.worker import settler as settler_module
from fencepost.worker.attempt import Attempt
from fencepost.worker.settler import BATCH, BATCH_BYTES, Settler

from .support import make_lease, wait_until, within

pytestmark = pytest.mark.anyio

Key = tuple[UUID, int]


class Store:
    """Writes what it isn't told to refuse."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, list[Outcome]]] = []
        self.kept: list[Outcome] = []
        self.apart: list[Outcome] = []
        self.refuse: Callable[[list[Outcome]], BaseException | None] = lambda batch: None
        self.lost: set[UUID] = set()
        self.gate: asyncio.Event | None = None
        self.seconds = 0.0

    async def settle(self, queue_id: int, batch: list[Outcome], /) -> list[Status | None]:
        self.calls.append((queue_id, list(batch)))
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(self.seconds)
        error = self.refuse(batch)
        if error is not None:
            raise error
        self.kept += batch
        return [None if one.id in self.lost else one.status for one in batch]

    async def settle_apart(self, queue_id: int, outcome: Outcome, /) -> Status | None:
        self.apart.append(outcome)
        error = self.refuse([outcome])
        if error is not None:
            raise error
        self.kept.append(outcome)
        return None if outcome.id in self.lost else outcome.status

    async def completed(self, queue_id: int, ended: Sequence[Key], /) -> set[Key]:
        return set()

    async def written(self, queue_id: int, outcome: Outcome, /) -> Status | None:
        return None


class Settlement:
    def __init__(self, store: Store, settler: Settler, reports: list[tuple[Outcome, Status | None]]) -> None:
        self.store = store
        self.settler = settler
        self.reports = reports

    def put(self, result: bytes | None = b"1", queue_id: int = 1) -> Outcome:
        attempt = Attempt(make_lease(queue_id=queue_id))
        outcome = outcomes.succeeded(attempt.lease, result)
        self.settler.put(attempt, outcome)
        return outcome


@asynccontextmanager
async def settling() -> AsyncIterator[Settlement]:
    store = Store()
    reports: list[tuple[Outcome, Status | None]] = []
    settler = Settler(store, settled=lambda attempt, outcome, status: reports.append((outcome, status)))
    task = asyncio.create_task(settler.run())
    try:
        yield Settlement(store, settler, reports)
    finally:
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])


async def test_outcomes_that_gather_during_a_write_go_together() -> None:
    async with settling() as at:
        at.store.gate = asyncio.Event()
        first = at.put()
        await wait_until(lambda: at.store.calls, 1)
        others = [at.put() for _ in range(BATCH + 20)]
        assert at.reports == []
        at.store.gate.set()
        await within(2, at.settler.flush())
        assert [len(batch) for _, batch in at.store.calls] == [1, BATCH, 20]
        assert [outcome for outcome, _ in at.reports] == [first, *others]
        assert {status for _, status in at.reports} == {Status.COMPLETED}


@pytest.mark.slow
async def test_a_stop_asks_for_new_connections_only_where_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it takes, and whatever goes wrong with that; but not beside writes that get on, slowly."""
    # Much longer than one of the slow writes below, and shorter than all of them.
    monkeypatch.setattr(settler_module, "SILENT_SECONDS", 1.2)
    asked = 0

    async def reconnect() -> None:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise InvalidSettings("the password was changed") if asked == 1 else OSError("nobody there")
        at.store.gate = None
        gate.set()

    async with settling() as at:
        at.store.gate = gate = asyncio.Event()
        stuck = [at.put(), at.put()]
        await within(10, at.settler.finish(reconnect))
        assert asked == 3
        assert [outcome for outcome, _ in at.reports] == stuck
        at.store.seconds = 0.3
        slow = [at.put(queue_id=number) for number in range(6)]
        await within(10, at.settler.finish(reconnect))
        assert asked == 3
        assert [outcome for outcome, _ in at.reports] == stuck + slow


async def test_a_busy_queue_does_not_hold_up_another() -> None:
    async with settling() as at:
        at.store.gate = asyncio.Event()
        for _ in range(3 * BATCH):
            at.put(queue_id=1)
        at.put(queue_id=2)
        at.store.gate.set()
        await within(2, at.settler.flush())
        assert [queue_id for queue_id, _ in at.store.calls] == [1, 2, 1, 1]


async def test_large_results_are_spread_over_several_statements() -> None:
    async with settling() as at:
        at.store.gate = asyncio.Event()
        at.put()
        await wait_until(lambda: at.store.calls, 1)
        size = BATCH_BYTES * 2 // 5
        for _ in range(5):
            at.put(b"x" * size)
        at.put(b"x" * (2 * BATCH_BYTES))
        at.store.gate.set()
        await within(2, at.settler.flush())
        assert [len(batch) for _, batch in at.store.calls] == [1, 2, 2, 1, 1]


@pytest.mark.slow
async def test_a_batch_that_is_too_much_for_the_server_is_halved_until_it_is_not() -> None:
    """It cancels the statement for taking too long: the same again would never end otherwise."""
    async with settling() as at:
        too_much = DatabaseUnavailable("canceling statement due to statement timeout")
        at.store.refuse = lambda tried: too_much if len(tried) > 50 else None
        batch = [at.put() for _ in range(300)]
        await within(15, at.settler.flush())
        assert [outcome for outcome, _ in at.reports] == batch
        at.store.refuse = lambda tried: None
        at.store.calls.clear()
        for _ in range(BATCH):
            at.put()
        await within(2, at.settler.flush())
        assert len(at.store.calls) <= 8, "it grows again"


async def test_a_fault_that_is_not_the_outcomes_is_waited_out_and_nothing_is_given_up() -> None:
    """A missing right, say: the batch is tried apart, each until it is written."""
    async with settling() as at:
        at.store.refuse = lambda tried: SchemaMismatch("in the middle of a migration")
        batch = [at.put() for _ in range(5)]
        await wait_until(lambda: len(at.store.apart) >= 3, 5)
        assert not at.reports
        at.store.refuse = lambda tried: None
        await within(5, at.settler.flush())
        assert sorted(outcome.id for outcome, _ in at.reports) == sorted(one.id for one in batch)
        assert {status for _, status in at.reports} == {Status.COMPLETED}
        assert all(outcome.result == b"1" for outcome, _ in at.reports), "it wasn't stripped"


async def test_outcomes_that_lack_a_right_do_not_hold_up_those_that_need_none() -> None:
    """A trigger of somebody's, which writes where our role may not, for every tenth of them."""
    async with settling() as at:
        batch = [at.put(b"0" if number % 10 == 0 else b"1") for number in range(200)]
        denied = {one.id for one in batch if one.result == b"0"}
        missing = PrivilegeMissing("permission denied for table audit")
        at.store.refuse = lambda tried: missing if any(one.id in denied for one in tried) else None
        await wait_until(lambda: len(at.reports) == 180, 3)
        # Nor later ones.
        later = at.put()
        await wait_until(lambda: len(at.reports) == 181, 3)
        assert at.reports[-1] == (later, Status.COMPLETED)
        at.store.refuse = lambda tried: None
        await within(5, at.settler.flush())
        assert {status for _, status in at.reports} == {Status.COMPLETED}
        assert len({outcome.id for outcome, _ in at.reports}) == 201


async def test_whoever_is_told_of_an_end_can_not_keep_the_others_from_being_told() -> None:
    store = Store()
    told: list[UUID] = []

    def settled(attempt: Attempt, outcome: Outcome, status: Status | None) -> None:
        told.append(outcome.id)
        if len(told) == 1:
            raise RuntimeError("a fault of somebody's")

    settler = Settler(store, settled=settled)
    task = asyncio.create_task(settler.run())
    for _ in range(3):
        attempt = Attempt(make_lease())
        settler.put(attempt, outcomes.succeeded(attempt.lease, None))
    await within(2, settler.flush())
    assert (len(told), task.done()) == (3, False)
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("position", [0, 25, 49])
async def test_one_refused_outcome_does_not_hold_up_the_others(position: int) -> None:
    async with settling() as at:
        batch = [at.put(b"bad" if at_place == position else b"1") for at_place in range(50)]
        at.store.refuse = lambda tried: ValueError("no") if any(one.result == b"bad" for one in tried) else None
        await within(2, at.settler.flush())
        assert {outcome.id for outcome, status in at.reports if status is Status.COMPLETED} == {one.id for one in batch}
        assert len(at.reports) == 50
        (bare,) = [outcome for outcome in at.store.kept if outcome.result is None]
        assert (bare.id, bare.status) == (batch[position].id, Status.COMPLETED)


async def test_an_outcome_that_can_not_be_written_at_all_is_given_up_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(apart, "REFUSED_SECONDS", 0.3)
    async with settling() as at:
        batch = [at.put() for _ in range(50)]
        cursed = batch[7].id
        at.store.refuse = lambda tried: ValueError("never") if any(one.id == cursed for one in tried) else None
        await within(3, at.settler.flush())
        others = [(one.id, Status.COMPLETED) for one in batch if one.id != cursed]
        assert [(outcome.id, status) for outcome, status in at.reports] == [*others, (cursed, None)]


async def test_what_a_trigger_refuses_for_a_moment_is_written_with_its_result() -> None:
    async with settling() as at:
        refusals = 0

        def refuse(tried: list[Outcome]) -> BaseException | None:
            nonlocal refusals
            refusals += 1
            return ValueError("not now") if refusals <= 9 else None

        at.store.refuse = refuse
        outcome = at.put(b'"precious"')
        await within(5, at.settler.flush())
        assert at.reports == [(outcome, Status.COMPLETED)]
        assert {one.result for one in at.store.apart} == {b'"precious"', None}, "each time also without it"


async def test_a_failed_outcome_that_is_refused_is_written_without_its_words() -> None:
    async with settling() as at:
        attempt = Attempt(make_lease(attempt=3))
        outcome = outcomes.permanent(attempt.lease, "Odd", "unspeakable")
        at.store.refuse = lambda tried: ValueError("no") if any(one.error == "unspeakable" for one in tried) else None
        at.settler.put(attempt, outcome)
        await within(2, at.settler.flush())
        (written,) = at.store.kept
        assert (written.status, written.ending, written.error_type) == (Status.FAILED, outcome.ending, "Unrecordable")
        assert "log" in (written.error or "")


@pytest.mark.slow
async def test_it_waits_for_the_database_and_loses_nothing() -> None:
    failures = 4

    def down(batch: list[Outcome]) -> BaseException | None:
        nonlocal failures
        failures -= 1
        return DatabaseUnavailable("down") if failures >= 0 else None

    async with settling() as at:
        at.store.refuse = down
        batch = [at.put() for _ in range(10)]
        await within(5, at.settler.flush())
        assert at.store.kept == batch
        assert [outcome for outcome, _ in at.reports] == batch


async def test_the_database_may_go_away_while_outcomes_are_written_one_by_one() -> None:
    outage = [False, False]

    def refuse(batch: list[Outcome]) -> BaseException | None:
        if len(batch) > 1:
            return ValueError("one of them is bad")
        if len(at.store.kept) in (3, 6) and not outage[len(at.store.kept) // 3 - 1]:
            outage[len(at.store.kept) // 3 - 1] = True
            return DatabaseUnavailable("down")
        return None

    async with settling() as at:
        at.store.refuse = refuse
        batch = [at.put() for _ in range(10)]
        await within(5, at.settler.flush())
        assert outage == [True, True]
        wanted = sorted(outcome.id for outcome in batch)
        assert sorted(outcome.id for outcome in at.store.kept) == wanted, "one was written twice, or not at all"
        assert sorted(outcome.id for outcome, _ in at.reports) == wanted


async def test_a_lost_lease_is_reported_as_such() -> None:
    async with settling() as at:
        kept, lost = at.put(), at.put()
        at.store.lost.add(lost.id)
        await within(2, at.settler.flush())
        assert at.reports == [(kept, Status.COMPLETED), (lost, None)]


async def test_flush_waits_for_what_is_under_way() -> None:
    async with settling() as at:
        await within(1, at.settler.flush())
        at.store.gate = asyncio.Event()
        at.put()
        flushed = asyncio.create_task(at.settler.flush())
        await wait_until(lambda: at.store.calls, 1)
        assert not flushed.done()
        at.store.gate.set()
        await within(1, flushed)
        assert len(at.reports) == 1
