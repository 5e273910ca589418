"""
The cursors against a model of PostgreSQL.

The model knows transactions, snapshots and row locks, and lets every step of the
dispatcher happen between any two steps of others. However they fall: once every
transaction has ended, a few more claims and looks take every job.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from fencepost.domain.job import Lease
from fencepost.store.claims import Claim, LaneScan, Position, Snapshot
from fencepost.worker.cursors import Cursors, Starts

START = datetime(2030, 1, 1, tzinfo=UTC)
YOUNG = 6
AGING = 4
EVERYTHING = Position(datetime(1, 1, 1, tzinfo=UTC))


def at(tick: int) -> datetime:
    return START + timedelta(seconds=tick)


class Row:
    """A pending job: who put it there, who holds or took it."""

    def __init__(self, number: int, lane: int, run_at: int, inserted_by: int) -> None:
        self.place = Position(at(run_at), UUID(int=number))
        self.lane = lane
        self.inserted_by = inserted_by
        self.held_by: int | None = None


class Server:
    """PostgreSQL, as far as claims depend on it."""

    def __init__(self) -> None:
        self.clock = 1
        self.next_transaction = 10
        self.last_completed = 9
        self.open: set[int] = set()
        self.aborted: set[int] = set()
        self.rows: list[Row] = []

    def begin(self) -> int:
        transaction = self.next_transaction
        self.next_transaction += 1
        self.open.add(transaction)
        return transaction

    def commit(self, transaction: int) -> None:
        self.open.discard(transaction)
        self.last_completed = max(self.last_completed, transaction)

    def abort(self, transaction: int) -> None:
        self.commit(transaction)
        self.aborted.add(transaction)
        self.rows = [row for row in self.rows if row.inserted_by != transaction]
        for row in self.rows:
            if row.held_by == transaction:
                row.held_by = None

    def snapshot(self) -> Snapshot:
        """As procarray.c takes it: whoever is beyond the last to have completed is running, but isn't in the list."""
        xmax = self.last_completed + 1
        return Snapshot(xmax, frozenset(transaction for transaction in self.open if transaction < xmax))

    def sees(self, snapshot: Snapshot, row: Row) -> bool:
        if row.inserted_by in self.open or not snapshot.sees_end_of(row.inserted_by):
            return False
        taken = row.held_by is not None and row.held_by not in self.open
        return not (taken and snapshot.sees_end_of(row.held_by or 0))

    def due(self, snapshot: Snapshot, lane: int, start: Position, until: datetime) -> list[Row]:
        """What a scan of a lane shows, in its order."""
        found = [
            row
            for row in self.rows
            if row.lane == lane and row.place > start and row.place.run_at <= until and self.sees(snapshot, row)
        ]
        return sorted(found, key=lambda row: row.place)

    def left(self) -> list[Row]:
        """What is committed and nobody has taken."""
        return [row for row in self.rows if row.inserted_by not in self.open and row.held_by is None]


class Scan:
    """A claim under way, between its snapshot and its end."""

    def __init__(self, server: Server, starts: Starts, lanes: list[int], slots: int) -> None:
        self.server = server
        self.starts = starts
        self.lanes = lanes
        self.slots = slots
        self.seen_at = at(server.clock)
        self.snapshot = server.snapshot()
        self.result: Claim | None = None

    def lock(self) -> None:
        """Take what can be locked, as claim.sql does, and commit."""
        own = self.server.begin()
        shown = {
            lane: self.server.due(self.snapshot, lane, self.starts.get(lane, EVERYTHING), self.seen_at)
            for lane in self.lanes
        }
        wanted = {self.lanes[0]: self.slots}
        if len(self.lanes) > 1:
            heads = [
                (row.place.run_at - timedelta(seconds=lane * AGING), -lane, lane)
                for lane, rows in shown.items()
                for row in rows[: self.slots]
            ]
            front = [lane for _, _, lane in sorted(heads)[: self.slots]]
            wanted = {lane: front.count(lane) for lane in self.lanes}
        leases, scans = [], []
        for lane, rows in shown.items():
            taken = [row for row in rows if row.held_by is None][: wanted[lane]]
            for row in taken:
                row.held_by = own
            rest = next((row.place for row in rows if row not in taken), None)
            leases += [_lease(row) for row in taken]
            scans.append(LaneScan(priority=lane, wanted=wanted[lane], rest=rest, next_run_at=None))
        self.server.commit(own)
        self.result = Claim(leases=leases, lanes=scans, snapshot=self.snapshot, seen_at=self.seen_at, transaction=own)


def _lease(row: Row) -> Lease:
    return Lease(
        id=row.place.id, queue_id=1, queue="q", token=1, type="work", payload="{}", attempt=1,
        max_attempts=1, timeout_seconds=None, request_id=None,
    )  # fmt: skip


class Model(RuleBasedStateMachine):
    """One dispatcher with cursors; producers and other dispatchers with transactions."""

    lanes: tuple[int, ...] = (0,)

    def __init__(self) -> None:
        super().__init__()
        self.server = Server()
        self.cursors = Cursors(young_seconds=YOUNG, clock=lambda: float(self.server.clock))
        self.scan: Scan | None = None
        self.look: tuple[set[int], Starts] | None = None
        self.numbers = 0

    def tick(self, by: int = 1) -> None:
        self.server.clock += by

    # Producers and other dispatchers.

    @rule()
    def begin(self) -> None:
        if len(self.server.open) < 4:
            self.server.begin()

    @precondition(lambda self: self.server.open)
    @rule(data=st.data(), lane=st.integers(0, 2), delay=st.sampled_from([0, 0, 0, 2, 5]))
    def insert(self, data: st.DataObject, lane: int, delay: int) -> None:
        transaction = data.draw(st.sampled_from(sorted(self.server.open)))
        self.numbers += 1
        # Ids don't come in the order of run_at.
        number = self.numbers * 7919 % 1009 + 1
        lane = self.lanes[lane % len(self.lanes)]
        self.server.rows.append(Row(number, lane, self.server.clock + delay, transaction))

    @rule(lane=st.integers(0, 2), delay=st.sampled_from([0, 0, 3]))
    def insert_and_commit(self, lane: int, delay: int) -> None:
        transaction = self.server.begin()
        self.numbers += 1
        number = self.numbers * 7919 % 1009 + 1
        lane = self.lanes[lane % len(self.lanes)]
        self.server.rows.append(Row(number, lane, self.server.clock + delay, transaction))
        self.server.commit(transaction)

    @precondition(lambda self: self.server.open and self.server.left())
    @rule(data=st.data(), count=st.integers(1, 3))
    def hold(self, data: st.DataObject, count: int) -> None:
        """Another dispatcher's claim, or a cancellation: it holds rows until it ends."""
        transaction = data.draw(st.sampled_from(sorted(self.server.open)))
        for row in self.server.left()[:count]:
            row.held_by = transaction

    @precondition(lambda self: self.server.open)
    @rule(data=st.data(), committed=st.booleans())
    def end(self, data: st.DataObject, committed: bool) -> None:
        transaction = data.draw(st.sampled_from(sorted(self.server.open)))
        if committed:
            self.server.commit(transaction)
        else:
            self.server.abort(transaction)

    @rule(by=st.sampled_from([1, 1, 1, 3, YOUNG + 1]))
    def time_passes(self, by: int) -> None:
        self.tick(by)

    # The dispatcher: claims and polls one after the other, looks beside them.

    @precondition(lambda self: self.scan is None)
    @rule(slots=st.integers(1, 3))
    def claim_begins(self, slots: int) -> None:
        self.tick()
        self.scan = Scan(self.server, self.cursors.starts(), list(self.lanes), slots)

    @precondition(lambda self: self.scan is not None and self.scan.result is None)
    @rule()
    def claim_locks(self) -> None:
        assert self.scan is not None
        self.scan.lock()

    @precondition(lambda self: self.scan is not None and self.scan.result is not None)
    @rule()
    def claim_ends(self) -> None:
        assert self.scan is not None
        assert self.scan.result is not None
        self.cursors.claimed(self.scan.starts, self.scan.result)
        self.scan = None

    @rule(slots=st.integers(1, 3))
    def claim_at_once(self, slots: int) -> None:
        if self.scan is None:
            self.claim_begins(slots)
            self.claim_locks()
            self.claim_ends()

    @precondition(lambda self: self.scan is None)
    @rule()
    def poll(self) -> None:
        self.cursors.observed(self.server.snapshot())

    @precondition(lambda self: self.scan is None)
    @rule()
    def reconnect(self) -> None:
        self.cursors.forget()

    @precondition(lambda self: self.look is None)
    @rule()
    def look_begins(self) -> None:
        what = self.cursors.to_look_after()
        if what is None:
            return
        suspects, starts = what
        snapshot, now = self.server.snapshot(), at(self.server.clock)
        found = {}
        for lane in self.lanes:
            rows = self.server.due(snapshot, lane, starts.get(lane, EVERYTHING), now)
            if rows:
                found[lane] = Position(rows[0].place.run_at)
        self.look = suspects, found

    @precondition(lambda self: self.look is not None)
    @rule()
    def look_ends(self) -> None:
        assert self.look is not None
        self.cursors.looked_after(*self.look)
        self.look = None

    def teardown(self) -> None:
        """Everybody ends; then nothing may be left."""
        if self.scan is not None:
            if self.scan.result is None:
                self.claim_locks()
            self.claim_ends()
        if self.look is not None:
            self.look_ends()
        for number, transaction in enumerate(sorted(self.server.open)):
            if number % 2:
                self.server.commit(transaction)
            else:
                self.server.abort(transaction)
        self.tick(20)
        rounds = len(self.server.left()) + 10
        for _ in range(rounds):
            self.tick()
            self.poll()
            self.look_begins()
            if self.look is not None:
                self.look_ends()
            self.claim_at_once(2)
        left = [(row.lane, row.place) for row in self.server.left()]
        assert not left, f"behind the cursors {self.cursors.starts()} for ever: {left}"
        assert not self.cursors._suspects, "everybody has ended and was looked after"


class ModelOfThreeLanes(Model):
    lanes = (0, 1, 2)


STEPS = settings(max_examples=400, stateful_step_count=40, deadline=None)


@pytest.mark.slow
def test_nothing_is_left_behind_in_one_lane() -> None:
    run_state_machine_as_test(Model, settings=STEPS)


@pytest.mark.slow
def test_nothing_is_left_behind_in_three_lanes() -> None:
    run_state_machine_as_test(ModelOfThreeLanes, settings=STEPS)


# The same, case by case.


class Desk:
    """A dispatcher's cursors, with a server."""

    def __init__(self, lanes: tuple[int, ...] = (0,)) -> None:
        self.server = Server()
        self.lanes = list(lanes)
        self.cursors = Cursors(young_seconds=YOUNG, clock=lambda: float(self.server.clock))
        self.numbers = 0

    @classmethod
    def with_cursors(cls) -> Desk:
        """After the two claims from the beginning that every dispatcher starts with."""
        desk = cls()
        for _ in range(2):
            desk.claim()
        return desk

    def named(self) -> tuple[int, Row]:
        """A writer that a claim's snapshot has named, with a job of its own behind the cursor."""
        writer = self.server.begin()
        straggler = self.insert(writer)
        # Somebody who began later and has completed: now the list goes as far as the writer.
        self.server.commit(self.server.begin())
        self.claim()
        assert writer in self.cursors._suspects
        return writer, straggler

    def insert(self, transaction: int | None = None, *, lane: int = 0, delay: int = 0) -> Row:
        self.server.clock += 1
        self.numbers += 1
        writer = self.server.begin() if transaction is None else transaction
        row = Row(self.numbers, lane, self.server.clock + delay, writer)
        self.server.rows.append(row)
        if transaction is None:
            self.server.commit(writer)
        return row

    def begin(self, slots: int = 2) -> Scan:
        self.server.clock += 1
        return Scan(self.server, self.cursors.starts(), self.lanes, slots)

    def end(self, scan: Scan) -> bool:
        if scan.result is None:
            scan.lock()
        assert scan.result is not None
        return self.cursors.claimed(scan.starts, scan.result)

    def claim(self, slots: int = 2) -> tuple[list[UUID], bool]:
        scan = self.begin(slots)
        again = self.end(scan)
        assert scan.result is not None
        return [lease.id for lease in scan.result.leases], again

    def look(self) -> bool:
        what = self.cursors.to_look_after()
        assert what is not None
        snapshot, now = self.server.snapshot(), at(self.server.clock)
        found = {}
        for lane in self.lanes:
            rows = self.server.due(snapshot, lane, what[1].get(lane, EVERYTHING), now)
            if rows:
                found[lane] = Position(rows[0].place.run_at)
        return self.cursors.looked_after(what[0], found)


def test_a_drain_reads_no_place_more_than_twice() -> None:
    desk = Desk()
    rows = [desk.insert() for _ in range(50)]
    for number in range(25):
        taken, again = desk.claim()
        assert taken == [row.place.id for row in rows[2 * number : 2 * number + 2]]
        assert not again
        if number:
            assert desk.cursors.starts() == {0: rows[2 * number].place.just_before()}, "where the last claim began"
    desk.claim()
    seen_at = desk.server.clock
    desk.claim()
    assert desk.cursors.starts() == {0: Position(at(seen_at))}, "up to the clock when nothing is left"


def test_passed_over_lanes_advance_to_their_first_job() -> None:
    desk = Desk((0, 5))
    low = desk.insert(lane=0)
    for _ in range(4):
        desk.insert(lane=5)
    for _ in range(2):
        desk.claim()
    assert desk.cursors.starts()[0] == low.place.just_before()
    assert desk.claim()[0] == [low.place.id]


def test_a_transaction_that_no_snapshot_knew_is_covered_by_the_next_claim() -> None:
    desk = Desk.with_cursors()
    writer = desk.server.begin()
    straggler = desk.insert(writer)
    desk.claim()
    assert not desk.cursors._suspects, "it began last and nobody after it has completed: the list ends before it"
    desk.server.commit(writer)
    assert desk.claim()[0] == [straggler.place.id]


def test_a_short_transaction_is_covered_while_it_runs_and_forgotten_when_it_has_ended() -> None:
    desk = Desk.with_cursors()
    before = desk.cursors.starts()[0]
    writer, straggler = desk.named()
    for _ in range(3):
        assert desk.cursors.starts()[0] <= straggler.place
        assert desk.claim()[0] == []
    desk.server.commit(writer)
    taken, again = desk.claim()
    assert taken == [straggler.place.id]
    assert not again
    assert not desk.cursors._suspects
    desk.claim()
    assert desk.cursors.starts()[0] > before


def test_a_transaction_that_ended_after_a_claim_began_asks_for_another() -> None:
    desk = Desk.with_cursors()
    writer, straggler = desk.named()
    scan = Scan(desk.server, {0: Position(at(desk.server.clock))}, [0], 2)
    desk.server.commit(writer)
    scan.snapshot = desk.server.snapshot()
    assert desk.end(scan), "it ended, and this claim began too far ahead to find what it left"
    assert desk.claim()[0] == [straggler.place.id]


def test_an_old_transaction_holds_no_claim_back_and_is_looked_after_once() -> None:
    desk = Desk.with_cursors()
    writer, straggler = desk.named()
    desk.server.clock += YOUNG
    for _ in range(2):
        desk.claim()
    assert desk.cursors.starts()[0] > straggler.place, "claims no longer start further back for it"
    assert desk.cursors.to_look_after() is None, "it has not ended"
    desk.server.commit(writer)
    desk.cursors.observed(desk.server.snapshot())
    assert desk.look(), "found behind the cursor"
    assert desk.claim()[0] == [straggler.place.id]
    assert desk.cursors.to_look_after() is None


def test_a_look_that_finds_nothing_moves_nothing() -> None:
    desk = Desk.with_cursors()
    writer, _ = desk.named()
    desk.server.clock += YOUNG
    desk.claim()
    desk.server.abort(writer)
    desk.claim()
    desk.cursors.observed(desk.server.snapshot())
    before = desk.cursors.starts()
    assert not desk.look()
    assert desk.cursors.starts() == before
    assert desk.cursors.to_look_after() is None


def test_another_server_is_told_by_its_transactions_and_read_from_the_beginning() -> None:
    desk = Desk.with_cursors()
    row = desk.insert()
    scan = Scan(desk.server, {0: Position(at(desk.server.clock))}, [0], 2)
    scan.snapshot = Snapshot(5, frozenset())
    assert desk.end(scan), "it doesn't know the transaction of the last claim"
    assert desk.cursors.starts() == {}
    assert desk.claim()[0] == [row.place.id]


def test_a_job_held_by_a_transaction_that_began_after_the_snapshot_is_not_left_behind() -> None:
    desk = Desk()
    held, free = desk.insert(), desk.insert()
    scan = desk.begin(slots=2)
    other = desk.server.begin()
    held.held_by = other
    desk.end(scan)
    assert not scan.snapshot.running, "the snapshot knows nothing of the other"
    desk.server.abort(other)
    assert free.held_by is not None
    assert desk.claim()[0] == [held.place.id]


def test_a_look_that_ends_during_a_claim_is_not_undone_by_it() -> None:
    desk = Desk.with_cursors()
    writer, straggler = desk.named()
    desk.server.clock += YOUNG
    for _ in range(2):
        desk.claim()
    desk.server.commit(writer)
    desk.cursors.observed(desk.server.snapshot())
    desk.insert()
    scan = desk.begin()
    assert desk.look()
    desk.end(scan)
    assert desk.claim()[0] == [straggler.place.id]


def test_a_lane_that_appears_later_is_read_from_its_beginning() -> None:
    desk = Desk()
    writer = desk.server.begin()
    desk.insert(writer)
    desk.claim()
    desk.lanes.append(7)
    first = desk.insert(lane=7)
    assert 7 not in desk.cursors.starts()
    assert desk.claim()[0] == [first.place.id]
    desk.server.commit(writer)
    desk.cursors.observed(desk.server.snapshot())
    assert desk.look(), "it was met before lanes had cursors, so it is looked for everywhere"
    assert len(desk.claim()[0]) == 1


def test_forgetting_starts_from_the_beginning() -> None:
    desk = Desk()
    writer = desk.server.begin()
    desk.insert(writer)
    desk.claim()
    desk.server.clock += YOUNG
    desk.claim()
    desk.cursors.forget()
    assert desk.cursors.starts() == {}
    assert desk.cursors.to_look_after() is None
    desk.server.commit(writer)
    assert len(desk.claim()[0]) == 1


def test_a_claim_from_a_paused_queue_teaches_nothing() -> None:
    desk = Desk()
    desk.claim()
    before = desk.cursors.starts()
    assert not desk.cursors.claimed(before, Claim(leases=[], lanes=[], snapshot=None, seen_at=None))
    assert desk.cursors.starts() == before


def test_snapshots_are_read_as_postgresql_writes_them() -> None:
    quiet, busy = Snapshot.parse("10:12:"), Snapshot.parse("10:14:10,12")
    assert [number for number in range(8, 16) if quiet.sees_end_of(number)] == [8, 9, 10, 11]
    assert [number for number in range(8, 16) if busy.sees_end_of(number)] == [8, 9, 11, 13]


def test_the_place_just_before() -> None:
    place = Position(START, UUID(int=5))
    assert place.just_before() < place
    assert not place.just_before() < Position(START, UUID(int=4))
    first: Any = Position(START, UUID(int=0))
    assert first.just_before() == first
