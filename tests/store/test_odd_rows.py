"""Rows that no function of ours would have written: a claim takes them along, and their neighbours run."""

from __future__ import annotations

import pytest

from fencepost.store.jobs import Jobs
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore

from .support import Connection, claim, job

pytestmark = pytest.mark.anyio

DEEP = '{"a": ' + "[" * 3000 + "]" * 3000 + "}"


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("tags", "array[['a', 'b'], ['c', 'd']]"),
        ("tags", "array['a', null]"),
        ("tags", "'[0:1]={a,b}'"),
        ("metadata", "jsonb '[1]'"),
        ("metadata", "jsonb '\"expired\"'"),
        ("metadata", "jsonb '7'"),
        ("metadata", "jsonb 'null'"),
        ("metadata", f"jsonb '{DEEP}'"),
        ("trace_context", "'nonsense'"),
        ("trace_context", "repeat('x', 100000)"),
        ("request_id", "E'\\x01'"),
        ("timeout_seconds", "'Infinity'"),
        ("timeout_seconds", "'NaN'"),
        ("expires_at", "'infinity'"),
        ("expires_at", "'20000-01-01'"),
        ("type", "repeat('x', 100000)"),
        ("payload", f"jsonb '{DEEP}'"),
    ],
)
async def test_what_is_in_a_jobs_row_never_keeps_others_from_being_run(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection, column: str, value: str
) -> None:
    odd = job(tags=("x",))
    await jobs.enqueue([job(), odd, job()])
    await sql.execute(f"update fencepost.jobs set {column} = {value} where id = $1", odd.id)
    leases = await claim(worker_store, await queues.id_of("default"), slots=5)
    assert len(leases) == 3
    [lease] = [lease for lease in leases if lease.id == odd.id]
    assert lease.expired is False


@pytest.mark.parametrize("metadata", [DEEP, "[1]", '{"expired": false}'])
async def test_what_can_not_be_read_still_expires(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection, metadata: str
) -> None:
    odd = job(tags=('"expired": false', "x"), expires_seconds=3600.0)
    await jobs.enqueue([odd])
    await sql.execute(
        "update fencepost.jobs set metadata = $2::text::jsonb, expires_at = now() - interval '1 s' where id = $1",
        odd.id,
        metadata,
    )
    [lease] = await claim(worker_store, await queues.id_of("default"))
    assert lease.expired is True


@pytest.mark.parametrize("run_at", ["20000-01-01", "infinity", "0044-03-15 BC", "-infinity"])
@pytest.mark.parametrize("lanes", [1, 2])
async def test_a_due_time_beyond_what_python_has_never_keeps_others_from_being_run(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection, run_at: str, lanes: int
) -> None:
    odd = job(priority=lanes - 1)
    await jobs.enqueue([job(priority=number % lanes) for number in range(4)])
    await jobs.enqueue([odd])
    queue_id = await queues.id_of("default")
    await sql.execute(f"update fencepost.pending set run_at = '{run_at}' where id = $1", odd.id)
    leases = [lease for _ in range(6) for lease in await claim(worker_store, queue_id, slots=1)]
    assert len({lease.id for lease in leases} - {odd.id}) == 4
    await worker_store.due_queues({})
    await worker_store.first_pending(queue_id, {})


@pytest.mark.parametrize("moment", ["20000-01-01", "infinity", "0044-03-15 BC", "-infinity"])
async def test_a_time_beyond_what_python_has_never_keeps_a_page_from_being_read(
    jobs: Jobs, sql: Connection, moment: str
) -> None:
    odd, usual = job(), job()
    await jobs.enqueue([odd, usual])
    await sql.execute(f"update fencepost.jobs set expires_at = '{moment}' where id = $1", odd.id)
    await sql.execute(f"update fencepost.pending set run_at = '{moment}' where id = $1", odd.id)
    read = await jobs.get(odd.id)
    assert read is not None
    assert read.expires_at is not None
    assert read.run_at is not None
    assert read.expires_at.year == read.run_at.year == (1 if moment in ("0044-03-15 BC", "-infinity") else 9999)
    found = await jobs.get(usual.id)
    assert found is not None
    assert found.expires_at is None


async def test_jobs_that_are_not_there_are_told_of_and_keep_no_others_from_being_run(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    gone = job()
    await jobs.enqueue([job(), gone, job()])
    await sql.execute("delete from fencepost.jobs where id = $1", gone.id)
    assert len(await claim(worker_store, await queues.id_of("default"), slots=5)) == 2
    [told] = [record for record in caplog.records if "aren't in the table jobs" in record.message]
    assert (told.__dict__["count"], told.__dict__["job_id"]) == (1, str(gone.id))


async def test_leases_without_jobs_never_keep_others_from_being_taken_back(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    """More of them than a sweep takes, all of one moment: a sweep that took them would never get past them."""
    await jobs.enqueue([job()])
    queue_id = await queues.id_of("default")
    [lease] = await claim(worker_store, queue_id)
    await sql.execute(
        "insert into fencepost.leases (id, queue_id, priority, attempt, token, worker_id, started_at, locked_until) "
        "select gen_random_uuid(), l.queue_id, 0, 1, 1, l.worker_id, now() - interval '1 h', now() - interval '5 min' "
        "from fencepost.leases l, generate_series(1, 30)"
    )
    await sql.execute(
        "update fencepost.leases set started_at = now() - interval '1 h', locked_until = now() - interval '1 min' "
        "where id = $1",
        lease.id,
    )
    after = None
    for _ in range(3):
        recovery = await worker_store.recover(queue_id, after=after, max_rows=10)
        after = recovery.last_locked_until or recovery.seen_at
        if recovery.jobs:
            break
    assert [job_id for job_id, _, _ in recovery.jobs] == [lease.id]


@pytest.mark.parametrize("run_at", ["-infinity", "0044-03-15 BC"])
async def test_a_due_time_before_all_others_never_keeps_the_queues_from_being_shown(
    jobs: Jobs, queues: Queues, sql: Connection, run_at: str
) -> None:
    await jobs.enqueue([job()])
    await sql.execute(f"update fencepost.pending set run_at = '{run_at}'")
    state = await queues.state("default")
    assert state.oldest_due_seconds is not None
    assert state.oldest_due_seconds > 2000 * 365 * 86400
