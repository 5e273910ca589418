"""Every operation against a job in every situation: what TRANSITIONS has, happens; anything else touches nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import msgspec
import pytest

from fencepost.domain.job import TRANSITIONS, Event, Lease, Status
from fencepost.domain.outcome import Ending, expired, snoozed
from fencepost.errors import WrongStatus
from fencepost.store import completion
from fencepost.store.jobs import Jobs
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore

from .support import Connection, claim, completed, contents, ended, expire, job, with_token

pytestmark = pytest.mark.anyio

SITUATIONS = {
    "due": Status.PENDING,
    "scheduled": Status.PENDING,
    "running": Status.PROCESSING,
    "running its last attempt": Status.PROCESSING,
    "running, to be cancelled": Status.PROCESSING,
    "completed": Status.COMPLETED,
    "failed": Status.FAILED,
    "dead": Status.DEAD_LETTER,
    "cancelled": Status.CANCELLED,
}


class Case(NamedTuple):
    """A job that was brought into a situation."""

    id: UUID
    queue_id: int
    lease: Lease | None
    """Its latest lease, whether it still holds or not."""
    token: int


class Bench:
    """Brings jobs into situations, and does things to them."""

    def __init__(self, jobs: Jobs, queues: Queues, store: WorkerStore, sql: Connection) -> None:
        self.jobs, self.queues, self.store, self.sql = jobs, queues, store, sql
        self.made = 0

    async def bring(self, situation: str) -> Case:
        """A new job in a queue of its own, so that nothing else can be meant."""
        self.made += 1
        queue = f"q{self.made}"
        last = situation in ("running its last attempt", "dead")
        run_at = datetime.now(UTC) + timedelta(hours=1) if situation == "scheduled" else None
        made = job(queue=queue, max_attempts=1 if last else 3, run_at=run_at)
        await self.jobs.enqueue([made])
        queue_id = await self.queues.id_of(queue)
        lease = None
        if SITUATIONS[situation] is not Status.PENDING and situation != "cancelled":
            [lease] = await claim(self.store, queue_id)
        if situation == "completed":
            assert lease is not None
            await self.store.settle(queue_id, [completed(lease)])
        elif situation == "failed":
            assert lease is not None
            await self.store.settle(queue_id, [ended(lease, Ending.PERMANENT, Status.FAILED)])
        elif situation == "dead":
            assert lease is not None
            await self.store.settle(queue_id, [ended(lease, Ending.FAILED, Status.DEAD_LETTER)])
        elif situation in ("cancelled", "running, to be cancelled"):
            await self.jobs.cancel(made.id)
        assert (await self.jobs.get(made.id)).status is SITUATIONS[situation]
        return Case(made.id, queue_id, lease, 0 if lease is None else lease.token)


Operation = Callable[[Bench, Case], Awaitable[bool]]
"""Do it; return whether it claims to have been applied."""


async def _claim(bench: Bench, case: Case) -> bool:
    return bool(await claim(bench.store, case.queue_id, slots=10))


def _lease_of(case: Case) -> Lease:
    """Its latest lease, or one that nobody ever got."""
    return case.lease or Lease(
        id=case.id, queue_id=case.queue_id, queue="", token=1, type="work", payload="", attempt=1,
        max_attempts=3, timeout_seconds=None, request_id=None,
    )  # fmt: skip


def _settle(ending: Ending, status: Status, *, token: int = 0, queue: int = 0) -> Operation:
    async def settle(bench: Bench, case: Case) -> bool:
        lease = _lease_of(case)
        written = ended(lease, ending, status, result=b'"done"' if ending is Ending.SUCCEEDED else None)
        answer = await bench.store.settle(case.queue_id + queue, [with_token(written, lease.token + token)])
        return answer != [None]

    return settle


def _settle_apart(ending: Ending, status: Status, *, token: int = 0) -> Operation:
    async def settle(bench: Bench, case: Case) -> bool:
        written = with_token(ended(_lease_of(case), ending, status), _lease_of(case).token + token)
        return await bench.store.settle_apart(case.queue_id, written) is not None

    return settle


def _complete(*, token: int = 0, queue: int = 0) -> Operation:
    """As a handler does it, in a connection that has nothing to do with us."""

    async def complete(bench: Bench, case: Case) -> bool:
        lease = _lease_of(case)
        named = msgspec.structs.replace(lease, token=lease.token + token, queue_id=case.queue_id + queue)
        statement = completion.complete_sql("fencepost").replace(":attempt", "$1")
        answer = await bench.sql.fetchval(statement, completion.encode(named, b'"done"'))
        assert answer in ("true", "false")
        return bool(answer == "true")

    return complete


async def _recover(bench: Bench, case: Case) -> bool:
    return bool((await bench.store.recover(case.queue_id, after=None, max_rows=10)).jobs)


async def _cancel(bench: Bench, case: Case) -> bool:
    with suppress(WrongStatus):
        await bench.jobs.cancel(case.id)
        return True
    return False


async def _retry(bench: Bench, case: Case) -> bool:
    with suppress(WrongStatus):
        await bench.jobs.retry(case.id)
        return True
    return False


OPERATIONS: dict[str, tuple[Operation, Event | None]] = {
    "claim": (_claim, Event.CLAIM),
    "succeed": (_settle(Ending.SUCCEEDED, Status.COMPLETED), Event.SUCCEED),
    "fail": (_settle(Ending.FAILED, Status.PENDING), Event.FAIL_RETRYABLE),
    "time out": (_settle(Ending.TIMED_OUT, Status.PENDING), Event.FAIL_RETRYABLE),
    "fail for the last time": (_settle(Ending.FAILED, Status.DEAD_LETTER), Event.FAIL_LAST),
    "time out for the last time": (_settle(Ending.TIMED_OUT, Status.DEAD_LETTER), Event.FAIL_LAST),
    "fail permanently": (_settle(Ending.PERMANENT, Status.FAILED), Event.FAIL_PERMANENT),
    "release": (_settle(Ending.RELEASED, Status.PENDING), Event.RELEASE),
    "snooze": (_settle(Ending.SNOOZED, Status.PENDING), Event.SNOOZE),
    "end cancelled": (_settle(Ending.CANCELLED, Status.CANCELLED), Event.CANCEL),
    "complete in a transaction": (_complete(), Event.SUCCEED),
    "complete, stale": (_complete(token=-1), None),
    "complete, from the future": (_complete(token=1), None),
    "complete, in another queue": (_complete(queue=1), None),
    "succeed apart": (_settle_apart(Ending.SUCCEEDED, Status.COMPLETED), Event.SUCCEED),
    "fail apart": (_settle_apart(Ending.FAILED, Status.PENDING), Event.FAIL_RETRYABLE),
    "fail apart, stale": (_settle_apart(Ending.FAILED, Status.PENDING, token=-1), None),
    "recover too early": (_recover, None),
    "recover": (_recover, Event.EXPIRE),
    "cancel": (_cancel, Event.CANCEL),
    "retry": (_retry, Event.RETRY),
    "succeed, stale": (_settle(Ending.SUCCEEDED, Status.COMPLETED, token=-1), None),
    "fail, stale": (_settle(Ending.FAILED, Status.PENDING, token=-1), None),
    "release, stale": (_settle(Ending.RELEASED, Status.PENDING, token=-1), None),
    "snooze, stale": (_settle(Ending.SNOOZED, Status.PENDING, token=-1), None),
    "succeed, from the future": (_settle(Ending.SUCCEEDED, Status.COMPLETED, token=1), None),
    "fail, from the future": (_settle(Ending.FAILED, Status.DEAD_LETTER, token=1), None),
    "succeed, in another queue": (_settle(Ending.SUCCEEDED, Status.COMPLETED, queue=1), None),
}


def expected(situation: str, operation: str) -> Status | None:
    """Where TRANSITIONS says it goes, or None when it is refused."""
    status, event = SITUATIONS[situation], OPERATIONS[operation][1]
    if event is None:
        return None
    if situation == "scheduled" and event is Event.CLAIM:
        return None  # Pending, and not due.
    if operation == "end cancelled" and status is not Status.PROCESSING:
        return None  # An attempt's own word, and there is no attempt.
    if event is Event.EXPIRE and situation == "running its last attempt":
        event = Event.EXPIRE_LAST
    to = TRANSITIONS.get((status, event))
    if to is None:
        return None
    if operation == "cancel" and status is Status.PROCESSING:
        return Status.PROCESSING  # Only a request; the attempt decides.
    if situation == "running, to be cancelled" and (to is Status.PENDING or event is Event.EXPIRE):
        return Status.CANCELLED
    return to


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_exactly_what_the_table_says(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection, situation: str
) -> None:
    bench = Bench(jobs, queues, worker_store, sql)
    for name, (operation, _) in OPERATIONS.items():
        case = await bench.bring(situation)
        if name == "recover":
            await expire(sql, case.id)
        before, was = await contents(sql), await jobs.get(case.id)
        applied = await operation(bench, case)
        after, now = await contents(sql), await jobs.get(case.id)
        to = expected(situation, name)
        assert applied is (to is not None), f"{name} on a job that is {situation}"
        if to is None:
            assert after == before, f"{name} on a job that is {situation} was refused, and touched something"
            continue
        assert now.status is to, f"{name} on a job that is {situation}"
        assert now.lease_token == was.lease_token + (name == "claim")
        assert (now.finished_at is not None) == (to not in (Status.PENDING, Status.PROCESSING))
        assert (now.run_at is not None) == (to is Status.PENDING)
        assert (now.locked_until is not None) == (to is Status.PROCESSING)
        assert after["jobs"] == before["jobs"], "a definition is never rewritten"
        assert set(before["attempts"]) <= set(after["attempts"])
    counts = await jobs.audit()
    assert counts["jobs"] == counts["pending"] + counts["leases"] + counts["finished"] == len(OPERATIONS)


async def test_what_each_transition_leaves_behind(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    bench = Bench(jobs, queues, worker_store, sql)
    case = await bench.bring("running")
    await OPERATIONS["succeed"][0](bench, case)
    done = await jobs.get(case.id)
    assert (done.attempts, bytes(done.result or b""), done.last_error) == (1, b'"done"', None)
    assert await jobs.attempts(case.id) == []

    case = await bench.bring("running")
    await OPERATIONS["time out"][0](bench, case)
    again = await jobs.get(case.id)
    assert (again.attempts, again.last_error) == (1, "it broke")
    [attempt] = await jobs.attempts(case.id)
    assert (attempt.attempt, attempt.token, attempt.outcome, attempt.error_type) == (1, 1, "timed_out", "Boom")
    assert attempt.worker_id == worker_store.worker_id
    assert attempt.started_at <= attempt.ended_at

    case = await bench.bring("running its last attempt")
    await expire(sql, case.id)
    await OPERATIONS["recover"][0](bench, case)
    dead = await jobs.get(case.id)
    assert (dead.status, dead.attempts) == (Status.DEAD_LETTER, 1)
    [attempt] = await jobs.attempts(case.id)
    assert (attempt.outcome, attempt.error_type) == ("lost", "LeaseExpired")
    assert str(worker_store.worker_id) in (attempt.error or "")

    await jobs.retry(case.id)
    retried = await jobs.get(case.id)
    assert (retried.status, retried.attempts, retried.lease_token) == (Status.PENDING, 0, 1)
    assert len(await jobs.attempts(case.id)) == 1, "history is kept"


async def test_a_snooze_gives_the_attempt_back_and_leaves_no_trace(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    made = job(max_attempts=1)
    await jobs.enqueue([made])
    queue_id = await queues.id_of("default")
    for token in range(1, 51):
        [lease] = await claim(worker_store, queue_id)
        assert (lease.attempt, lease.token) == (1, token)
        assert await worker_store.settle(queue_id, [snoozed(lease, 0.0)]) == [Status.PENDING]
    now = await jobs.get(made.id)
    assert (now.attempts, now.lease_token, now.last_error) == (0, 50, None)
    assert await jobs.attempts(made.id) == []
    [lease] = await claim(worker_store, queue_id)
    before = await sql.fetchval("select clock_timestamp()")
    await worker_store.settle(queue_id, [snoozed(lease, 20.0)])
    run_at = (await jobs.get(made.id)).run_at
    assert run_at is not None
    assert timedelta(seconds=20) <= run_at - before < timedelta(seconds=25)
    assert await claim(worker_store, queue_id) == []


async def test_a_job_that_is_cancelled_while_it_snoozes_off_ends_and_says_why(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    bench = Bench(jobs, queues, worker_store, sql)
    case = await bench.bring("running, to be cancelled")
    assert case.lease is not None
    assert await worker_store.settle(case.queue_id, [snoozed(case.lease, 60.0)]) == [Status.CANCELLED]
    [attempt] = await jobs.attempts(case.id)
    assert (attempt.outcome, attempt.error_type) == ("cancelled", "Cancelled")
    assert "cancelled on request" in (attempt.error or "")


async def test_an_expired_job_is_told_by_its_claim_and_ends_cancelled(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore
) -> None:
    past, future = datetime.now(UTC) - timedelta(minutes=1), datetime.now(UTC) + timedelta(hours=1)
    late, early, plain = job(expires_at=past), job(expires_at=future), job()
    await jobs.enqueue([late, early, plain])
    queue_id = await queues.id_of("default")
    leases = {lease.id: lease for lease in await claim(worker_store, queue_id, slots=3)}
    assert {one: lease.expired for one, lease in leases.items()} == {late.id: True, early.id: False, plain.id: False}
    await worker_store.settle(queue_id, [expired(leases[late.id])])
    assert (await jobs.get(late.id)).status is Status.CANCELLED
    [attempt] = await jobs.attempts(late.id)
    assert (attempt.outcome, attempt.error_type) == ("cancelled", "Expired")


async def test_a_claim_tells_what_belongs_to_a_job_beside_its_payload(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore
) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    rich, plain = job(tags=("a", 'ü, "}'), metadata=b'{"t": 1}', trace_context=trace), job()
    await jobs.enqueue([rich, plain])
    queue_id = await queues.id_of("default")
    first, second = await claim(worker_store, queue_id, slots=2)
    assert (first.tags, first.metadata, first.trace_context) == (("a", 'ü, "}'), '{"t": 1}', trace)
    assert (second.tags, second.metadata, second.trace_context, second.expired) == ((), None, None, False)


async def test_cancelling_twice_keeps_the_first_request(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    bench = Bench(jobs, queues, worker_store, sql)
    case = await bench.bring("running")
    assert await jobs.cancel(case.id) is Status.PROCESSING
    first = (await jobs.get(case.id)).cancel_requested_at
    assert await jobs.cancel(case.id) is Status.PROCESSING
    assert (await jobs.get(case.id)).cancel_requested_at == first is not None
    assert await worker_store.cancel_requests(case.queue_id, [case.id]) == [(case.id, 1)]


async def test_extending_is_for_the_holder_and_changes_only_the_lease(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    bench = Bench(jobs, queues, worker_store, sql)
    for situation in SITUATIONS:
        case = await bench.bring(situation)
        before = await contents(sql)
        for token in (case.token - 1, case.token + 1):
            assert await worker_store.extend(case.queue_id, [(case.id, token)], lease_seconds=600) == []
        assert await worker_store.extend(case.queue_id + 1, [(case.id, case.token)], lease_seconds=600) == []
        assert await contents(sql) == before
        was = await jobs.get(case.id)
        held = await worker_store.extend(case.queue_id, [(case.id, case.token)], lease_seconds=600)
        now = await jobs.get(case.id)
        if SITUATIONS[situation] is not Status.PROCESSING:
            assert held == []
            assert await contents(sql) == before
            continue
        assert [(one.id, one.token) for one in held] == [(case.id, case.token)]
        assert held[0].cancel_requested is (situation == "running, to be cancelled")
        assert was.locked_until is not None
        assert now.locked_until is not None
        assert timedelta(seconds=530) < now.locked_until - was.locked_until < timedelta(seconds=550)
        await worker_store.extend(case.queue_id, [(case.id, case.token)], lease_seconds=1)
        assert (await jobs.get(case.id)).locked_until == now.locked_until, "an extension never shortens"
