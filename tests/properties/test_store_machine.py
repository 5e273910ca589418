"""
The store against a model, by operations at random on a real PostgreSQL.

The model knows where each job is, its attempts and its token, and predicts what every
operation answers. After each step the tables are read as they are, and have to agree.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import asyncpg
import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from fencepost.domain.ids import new_id
from fencepost.domain.job import Lease, NewJob, Status
from fencepost.domain.outcome import Ending, Outcome
from fencepost.errors import KeyConflict, WrongStatus
from fencepost.store.claims import Recovery
from fencepost.store.completion import complete_sql, encode
from fencepost.store.database import HOT_SESSION, Database
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.queues import Queues
from fencepost.store.workers import LeaseBusy, WorkerStore
from fencepost.worker.cursors import Cursors

WORKERS = 3
TABLES = ("jobs", "pending", "leases", "finished", "attempts", "idempotency_keys")
COMPLETE = complete_sql("fencepost").replace(":attempt", "$1")
T = TypeVar("T")

# In CI the examples are the same in every run; elsewhere new ones are tried.
STEPS = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


class World:
    """The connections, which live as long as the whole test."""

    def __init__(self, url: str) -> None:
        self.runner = asyncio.Runner()
        self.url = url
        self.database = Database(url, connections=2)
        self.hot = [Database(url, connections=1, session=HOT_SESSION) for _ in range(WORKERS)]
        self.sql: Any = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    async def open(self) -> None:
        self.sql = await asyncpg.connect(self.url)
        for database in (self.database, *self.hot):
            await database.open()

    async def close(self) -> None:
        for database in (self.database, *self.hot):
            await database.close()
        await self.sql.close()


class Known(msgspec.Struct):
    """What the model knows of a job."""

    new: NewJob
    status: Status = Status.PENDING
    attempts: int = 0
    token: int = 0
    highest_token: int = 0
    due: bool = True
    expired: bool = False
    cancel_requested: bool = False
    failures: int = 0


class StoreMachine(RuleBasedStateMachine):
    """Producers, operators and three workers."""

    world: World
    jobs = Bundle("jobs")
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[uuid.UUID, Known] = {}
        self.keys: dict[str, uuid.UUID] = {}
        self.paused = False

    @initialize()
    def empty(self) -> None:
        self.world.run(self.world.sql.execute("".join(f"delete from fencepost.{table};" for table in TABLES)))
        self.world.run(self.world.sql.execute("update fencepost.queues set paused_at = null"))
        self.hints = Hints(self.world.database)
        self.queues = Queues(self.world.database, self.hints)
        self.door = Jobs(self.world.database, self.queues, self.hints)
        self.workers = [WorkerStore(database, uuid.uuid4()) for database in self.world.hot]
        self.cursors = [Cursors() for _ in self.workers]
        self.queue_id = self.world.run(self.queues.ensure("default", 0))

    def teardown(self) -> None:
        if hasattr(self, "hints"):
            self.world.run(self.hints.close())

    # Producers.

    @rule(
        target=jobs,
        priority=st.sampled_from([0, 0, 5, 100]),
        max_attempts=st.integers(1, 3),
        later=st.sampled_from([False, False, False, True]),
        keyed=st.booleans(),
    )
    def enqueue(self, priority: int, max_attempts: int, later: bool, keyed: bool) -> uuid.UUID:
        new = NewJob(
            id=new_id(), type="work", priority=priority, max_attempts=max_attempts,
            delay_seconds=3600.0 if later else None, idempotency_key=uuid.uuid4().hex if keyed else None,
        )  # fmt: skip
        [stored] = self.world.run(self.door.enqueue([new]))
        assert (stored.id, stored.replayed) == (new.id, False)
        self.known[new.id] = Known(new, due=not later)
        if new.idempotency_key is not None:
            self.keys[new.idempotency_key] = new.id
        return new.id

    @rule(target=jobs, count=st.integers(2, 5))
    def enqueue_many(self, count: int) -> Any:
        made = [NewJob(id=new_id(), type="work", max_attempts=2) for _ in range(count)]
        self.world.run(self.door.enqueue(made))
        self.known.update({new.id: Known(new) for new in made})
        return multiple(*(new.id for new in made))

    @rule(job=jobs, other=st.booleans())
    def enqueue_again(self, job: uuid.UUID, other: bool) -> None:
        """The same key, for the same request or for another."""
        new = self.known[job].new
        if new.idempotency_key is None:
            return
        again = msgspec.structs.replace(new, id=new_id(), type="other" if other else new.type)
        if other:
            with pytest.raises(KeyConflict):
                self.world.run(self.door.enqueue([again]))
        else:
            [stored] = self.world.run(self.door.enqueue([again]))
            assert (stored.id, stored.replayed) == (job, True)

    # Workers.

    @rule(
        target=leases,
        worker=st.integers(0, WORKERS - 1),
        slots=st.integers(1, 4),
        with_cursors=st.booleans(),
        aging=st.sampled_from([0.0, 60.0]),
        contended=st.booleans(),
    )
    def claim(self, worker: int, slots: int, with_cursors: bool, aging: float, contended: bool) -> Any:
        cursors = self.cursors[worker]
        starts = cursors.starts() if with_cursors else {}
        claimed = self.world.run(
            self.workers[worker].claim(
                self.queue_id,
                slots=slots,
                cursors=starts,
                lease_seconds=600,
                aging_seconds=aging,
                contended=contended,
            )
        )
        cursors.claimed(starts, claimed)
        due = {one for one, known in self.known.items() if known.status is Status.PENDING and known.due}
        taken = [lease.id for lease in claimed.leases]
        assert len(taken) == len(set(taken))
        assert set(taken) <= due
        assert len(taken) == (0 if self.paused else min(slots, len(due))), "everything due can be had, cursor or not"
        if aging == 0 and taken:
            left = [self.known[one].new.priority for one in due - set(taken)]
            assert min(self.known[one].new.priority for one in taken) >= max(left, default=0)
        for lease in claimed.leases:
            known = self.known[lease.id]
            known.status, known.attempts, known.token = Status.PROCESSING, known.attempts + 1, known.token + 1
            known.expired = known.cancel_requested = False
            assert (lease.attempt, lease.token, lease.max_attempts) == (
                known.attempts, known.token, known.new.max_attempts,
            )  # fmt: skip
            assert lease.token > known.highest_token
            known.highest_token = lease.token
        return multiple(*claimed.leases)

    @rule(
        lease=leases,
        ending=st.sampled_from([one for one in Ending if one is not Ending.LOST]),
        bend=st.sampled_from([0, 0, 0, -1, 1]),
        worker=st.integers(0, WORKERS - 1),
    )
    def settle(self, lease: Lease, ending: Ending, bend: int, worker: int) -> None:
        """Under the right token or another; the first time or again; by whoever holds it or somebody else."""
        self._settle(lease, ending, bend, worker)

    @rule(lease=consumes(leases), ending=st.sampled_from([Ending.SUCCEEDED, Ending.FAILED]))
    def settle_twice(self, lease: Lease, ending: Ending) -> None:
        self._settle(lease, ending, 0, 0)
        self._settle(lease, Ending.SUCCEEDED, 0, 1)

    def _settle(self, lease: Lease, ending: Ending, bend: int, worker: int) -> None:
        known, token = self.known[lease.id], lease.token + bend
        last = lease.attempt >= lease.max_attempts
        status = {
            Ending.SUCCEEDED: Status.COMPLETED,
            Ending.PERMANENT: Status.FAILED,
            Ending.CANCELLED: Status.CANCELLED,
            Ending.RELEASED: Status.PENDING,
            Ending.SNOOZED: Status.PENDING,
        }.get(ending, Status.DEAD_LETTER if last else Status.PENDING)
        error = None if ending is Ending.SUCCEEDED else "it broke"
        outcome = Outcome(
            id=lease.id,
            queue_id=self.queue_id,
            token=token,
            ending=ending,
            status=status,
            error=error,
            error_type=error,
        )
        answer = self.world.run(self.workers[worker].settle(self.queue_id, [outcome]))
        if known.status is not Status.PROCESSING or known.token != token:
            assert answer == [None]
            return
        if status is Status.PENDING and known.cancel_requested:
            status = Status.CANCELLED
        assert answer == [status]
        known.status, known.due = status, True
        snoozed = ending is Ending.SNOOZED and status is Status.PENDING
        known.failures += ending is not Ending.SUCCEEDED and not snoozed
        if snoozed or ending is Ending.RELEASED:
            known.attempts -= 1

    @rule(lease=leases, bend=st.sampled_from([0, 0, 0, -1, 1]), commit=st.booleans())
    def complete_in_a_transaction(self, lease: Lease, bend: int, commit: bool) -> None:
        """In a connection of the handler's; while it is open, nobody who passes by waits."""
        known, token = self.known[lease.id], lease.token + bend
        holds = known.status is Status.PROCESSING and known.token == token
        named = msgspec.structs.replace(lease, token=token)
        outcome = Outcome(
            id=lease.id, queue_id=self.queue_id, token=token, ending=Ending.FAILED, status=Status.DEAD_LETTER
        )

        async def complete() -> None:
            transaction = self.world.sql.transaction()
            await transaction.start()
            assert await self.world.sql.fetchval(COMPLETE, encode(named, b"1")) == ("true" if holds else "false")
            if holds:
                [held] = await self.workers[0].extend(self.queue_id, [(lease.id, token)], lease_seconds=600)
                assert held.busy
                with pytest.raises(LeaseBusy):
                    await self.workers[1].settle_apart(self.queue_id, outcome)
                assert await self.workers[2].write_progress(self.queue_id, {(lease.id, token): b"1"}) == {
                    (lease.id, token)
                }
                recovery = await self.workers[0].recover(self.queue_id, after=None, max_rows=1_000)
                self._take_in_recovery(recovery, except_for=lease.id)
            await (transaction.commit() if commit else transaction.rollback())
            completed = await self.workers[1].completed(self.queue_id, [(lease.id, token)])
            expected = {(lease.id, token)} if self._has_completed(lease.id, token, holds and commit) else set()
            assert completed == expected

        self.world.run(complete())
        if holds and commit:
            known.status, known.due = Status.COMPLETED, True

    def _has_completed(self, job: uuid.UUID, token: int, just_now: bool) -> bool:
        known = self.known[job]
        return just_now or (known.status is Status.COMPLETED and known.token == token)

    @rule(lease=consumes(leases))
    def crash(self, lease: Lease) -> None:
        """Nobody remembers the lease; only recovery will end it."""

    @rule(job=jobs)
    def time_passes_over(self, job: uuid.UUID) -> None:
        """The job's lease runs out."""
        changed = self.world.run(
            self.world.sql.execute(
                "update fencepost.leases set started_at = now() - interval '1 hour', "
                "locked_until = now() - interval '1 minute' where id = $1",
                job,
            )
        )
        known = self.known[job]
        assert changed == f"UPDATE {int(known.status is Status.PROCESSING)}"
        known.expired = known.status is Status.PROCESSING

    @rule(worker=st.integers(0, WORKERS - 1), rows=st.sampled_from([1, 100]))
    def recover(self, worker: int, rows: int) -> None:
        recovery = self.world.run(self.workers[worker].recover(self.queue_id, after=None, max_rows=rows))
        self._take_in_recovery(recovery, rows=rows)

    def _take_in_recovery(self, recovery: Recovery, *, rows: int = 1_000, except_for: uuid.UUID | None = None) -> None:
        expired = {one for one, known in self.known.items() if known.status is Status.PROCESSING and known.expired}
        expired.discard(except_for or uuid.UUID(int=0))
        assert {job for job, _, _ in recovery.jobs} <= expired
        assert len(recovery.jobs) == min(rows, len(expired))
        for job, attempt, status in recovery.jobs:
            known = self.known[job]
            assert attempt == known.attempts
            if known.cancel_requested:
                expected = Status.CANCELLED
            else:
                expected = Status.PENDING if attempt < known.new.max_attempts else Status.DEAD_LETTER
            assert status is expected
            known.status, known.due = status, True
            known.failures += 1

    @rule(lease=leases, bend=st.sampled_from([0, 0, -1, 1]), worker=st.integers(0, WORKERS - 1))
    def extend(self, lease: Lease, bend: int, worker: int) -> None:
        known, token = self.known[lease.id], lease.token + bend
        held = self.world.run(self.workers[worker].extend(self.queue_id, [(lease.id, token)], lease_seconds=600))
        if known.status is Status.PROCESSING and known.token == token:
            assert [(one.id, one.token, one.cancel_requested) for one in held] == [
                (lease.id, token, known.cancel_requested)
            ]
            known.expired = False
        else:
            assert held == []

    # Operators.

    @rule(job=jobs)
    def cancel(self, job: uuid.UUID) -> None:
        known = self.known[job]
        if known.status is Status.PENDING:
            assert self.world.run(self.door.cancel(job)) is Status.CANCELLED
            known.status = Status.CANCELLED
        elif known.status is Status.PROCESSING:
            assert self.world.run(self.door.cancel(job)) is Status.PROCESSING
            known.cancel_requested = True
        else:
            with pytest.raises(WrongStatus):
                self.world.run(self.door.cancel(job))

    @rule(job=jobs)
    def retry(self, job: uuid.UUID) -> None:
        known = self.known[job]
        if known.status is Status.DEAD_LETTER:
            self.world.run(self.door.retry(job))
            known.status, known.attempts, known.due = Status.PENDING, 0, True
        else:
            with pytest.raises(WrongStatus):
                self.world.run(self.door.retry(job))

    @rule(paused=st.booleans())
    def pause_or_resume(self, paused: bool) -> None:
        self.world.run(self.queues.pause("default") if paused else self.queues.resume("default"))
        self.paused = paused

    # What always holds.

    @invariant()
    def every_job_is_in_one_place_and_there_as_the_model_says(self) -> None:
        if not hasattr(self, "hints"):
            return
        rows = self.world.run(
            self.world.sql.fetch(
                "select id, 'pending' as status, attempts, token, null::timestamptz as asked from fencepost.pending "
                "union all select id, 'processing', attempt, token, cancel_requested_at from fencepost.leases "
                "union all select id, status, attempts, token, null from fencepost.finished"
            )
        )
        assert len(rows) == len({row["id"] for row in rows}), "a job is in two places"
        assert {row["id"] for row in rows} == self.known.keys(), "a job is lost, or made up"
        for row in rows:
            known = self.known[row["id"]]
            assert (row["status"], row["attempts"], row["token"]) == (known.status, known.attempts, known.token)
            assert 0 <= row["attempts"] <= known.new.max_attempts
            if known.status is Status.PROCESSING:
                assert (row["asked"] is not None) is known.cancel_requested
        counts = self.world.run(self.door.audit())
        assert counts["jobs"] == counts["pending"] + counts["leases"] + counts["finished"] == len(self.known)

    @invariant()
    def history_has_every_attempt_that_failed(self) -> None:
        if not hasattr(self, "hints"):
            return
        rows = self.world.run(self.world.sql.fetch("select id, count(*) as n from fencepost.attempts group by 1"))
        assert {row["id"]: row["n"] for row in rows} == {
            one: known.failures for one, known in self.known.items() if known.failures
        }

    @invariant()
    def leases_that_have_not_run_out_have_time_left(self) -> None:
        if not hasattr(self, "hints"):
            return
        rows = self.world.run(
            self.world.sql.fetch("select id, locked_until - clock_timestamp() as remaining from fencepost.leases")
        )
        for row in rows:
            assert (row["remaining"] < timedelta()) is self.known[row["id"]].expired


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    world = World(database_url)
    with world.runner:
        world.run(world.open())
        yield world
        with suppress(asyncpg.PostgresError):
            world.run(world.close())


@pytest.mark.slow
def test_the_store_does_what_the_model_says(world: World) -> None:
    machine = type("Machine", (StoreMachine,), {"world": world})
    run_state_machine_as_test(machine, settings=STEPS)
