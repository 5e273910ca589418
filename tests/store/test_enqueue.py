"""Storing jobs: whole or not at all, exactly what was given, due by the database's clock."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fencepost.domain.ids import new_id
from fencepost.domain.job import Status
from fencepost.domain.text import check_json
from fencepost.errors import JobNotFound
from fencepost.store.database import Database
from fencepost.store.enqueueing import encode_jobs, enqueue_sql, read_answer
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore

from .support import Connection, claim, completed, contents, job

pytestmark = pytest.mark.anyio


async def test_everything_that_was_given_comes_back(jobs: Jobs, queues: Queues, worker_store: WorkerStore) -> None:
    made = job(
        type="send.email", queue="mail", priority=7, payload=b'{"to": "ada@example.org"}', max_attempts=9,
        timeout_seconds=12.5, idempotency_key="key", request_id="request", delay_seconds=0.0,
    )  # fmt: skip
    [stored] = await jobs.enqueue([made])
    assert (stored.id, stored.replayed) == (made.id, False)
    read = await jobs.get(made.id)
    assert read.status is Status.PENDING
    for field in (
        "id",
        "type",
        "queue",
        "priority",
        "max_attempts",
        "timeout_seconds",
        "idempotency_key",
        "request_id",
    ):
        assert getattr(read, field) == getattr(made, field), field
    assert json.loads(bytes(read.payload)) == {"to": "ada@example.org"}
    assert (read.attempts, read.lease_token) == (0, 0)
    assert (read.created_at, read.run_at) == (stored.created_at, stored.run_at)
    assert (read.started_at, read.finished_at, read.locked_until, read.last_error, read.result) == (None,) * 5
    [lease] = await claim(worker_store, await queues.id_of("mail"))
    for field in ("id", "type", "queue", "max_attempts", "timeout_seconds", "request_id"):
        assert getattr(lease, field) == getattr(made, field), field
    assert json.loads(lease.payload) == {"to": "ada@example.org"}


async def test_no_jobs_are_no_work(jobs: Jobs) -> None:
    assert await jobs.enqueue([]) == []


async def test_there_is_no_job_that_was_not_stored(jobs: Jobs) -> None:
    missing = new_id()
    for operation in (jobs.get, jobs.attempts, jobs.cancel, jobs.retry):
        with pytest.raises(JobNotFound, match=str(missing)):
            await operation(missing)


@pytest.mark.parametrize("count", [1, 3_000, 10_000])
async def test_bulk_of(jobs: Jobs, count: int) -> None:
    made = [job(priority=number % 3, payload=b'{"n": %d}' % number) for number in range(count)]
    stored = await jobs.enqueue(made)
    assert [one.id for one in stored] == [one.id for one in made]
    assert not any(one.replayed for one in stored)
    assert await jobs.audit() == {"jobs": count, "pending": count, "leases": 0, "finished": 0}


@pytest.mark.parametrize(
    "bad", [{"priority": 101}, {"max_attempts": 0}, {"timeout_seconds": -1.0}, {"payload": b'"\\u0000"'}]
)
async def test_a_bad_one_in_the_middle_stores_none(jobs: Jobs, sql: Connection, bad: dict[str, Any]) -> None:
    """What got past the door's checks is refused by the database, whole."""
    made = [job() for _ in range(1_000)]
    made[500] = job(**bad)
    with pytest.raises(asyncpg.PostgresError):
        await jobs.enqueue(made)
    assert all(not rows for rows in (await contents(sql)).values())
    await jobs.enqueue([job()])


async def test_no_job_of_a_bulk_can_be_claimed_before_all_are_committed(
    database: Database, jobs: Jobs, queues: Queues, worker_store: WorkerStore
) -> None:
    queue_id = await queues.ensure("default", 0)
    async with database.transaction() as session:
        records = [
            {
                "id": new_id(),
                "queue": "default",
                "queue_id": queue_id,
                "type": "work",
                "priority": 0,
                "payload": {},
                "max_attempts": 1,
            }
            for _ in range(100)
        ]
        await session.fetch("enqueue_plain", jobs=msgspec.json.encode(records), channel="x", hint=None)
        assert await claim(worker_store, queue_id, slots=10) == []
    assert len(await claim(worker_store, queue_id, slots=200)) == 100


async def test_a_time_in_the_past_is_now(jobs: Jobs, sql: Connection) -> None:
    before = await sql.fetchval("select clock_timestamp()")
    stored = await jobs.enqueue([job(run_at=datetime(1980, 1, 1, tzinfo=UTC)), job(), job(delay_seconds=0.0)])
    after = await sql.fetchval("select clock_timestamp()")
    for one in stored:
        assert before <= one.run_at <= after


async def test_a_delay_counts_from_the_databases_clock(jobs: Jobs, sql: Connection) -> None:
    before = await sql.fetchval("select clock_timestamp()")
    [late] = await jobs.enqueue([job(delay_seconds=90.0)])
    after = await sql.fetchval("select clock_timestamp()")
    assert before <= late.run_at - timedelta(seconds=90) <= after
    moment = datetime(2031, 5, 1, 12, 0, 0, 250_000, tzinfo=UTC)
    [at] = await jobs.enqueue([job(run_at=moment)])
    assert at.run_at == moment


async def test_a_clients_wrong_clock_changes_nothing(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, sql: Connection
) -> None:
    """An id from 1990 or from 2090 is filed elsewhere; it is due now, and in its turn."""
    past = new_id(now_ns=lambda: 631_152_000 * 10**9)
    future = new_id(now_ns=lambda: 3_786_912_000 * 10**9)
    order = [job(id=future), job(), job(id=past), job()]
    for one in order:
        await jobs.enqueue([one])
    queue_id = await queues.id_of("default")
    leases = [lease for _ in order for lease in await claim(worker_store, queue_id)]
    assert [lease.id for lease in leases] == [one.id for one in order]
    await worker_store.settle(queue_id, [completed(lease) for lease in leases])
    for one in order:
        assert (await jobs.get(one.id)).status is Status.COMPLETED
    where = await sql.fetch("select tableoid::regclass::text as part, id from fencepost.finished")
    assert {row["id"] for row in where if row["part"].endswith("_default")} == {past, future}


@pytest.mark.parametrize("size", [7_900, 8_100, 100_000, 1_000_000])
@pytest.mark.parametrize("character", ["x", "€"])
async def test_payloads_of_any_size(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, size: int, character: str
) -> None:
    """A notification holds 8,000 bytes; a payload has nothing to do with that."""
    payload = json.dumps({"text": character * (size // len(character.encode()))}, ensure_ascii=False).encode()
    await jobs.enqueue([job(payload=payload)])
    [lease] = await claim(worker_store, await queues.id_of("default"))
    assert json.loads(lease.payload) == json.loads(payload)


@pytest.mark.parametrize(
    "text",
    [
        "4611686018427387907", "9007199254740993", "1" + "0" * 30, "-9223372036854775809", "1.0", "0.1", "1e308",
        "5e-324", "123456789.123456789123456789", '"\\u2028\\ud83d\\ude00"', '{"b": 1, "a": 2}', "null", '""', "-0.0",
    ],
)  # fmt: skip
async def test_values_survive_the_database(jobs: Jobs, queues: Queues, worker_store: WorkerStore, text: str) -> None:
    check_json(text.encode())
    made = job(payload=text.encode())
    await jobs.enqueue([made])
    [lease] = await claim(worker_store, await queues.id_of("default"))
    await worker_store.settle(lease.queue_id, [completed(lease, lease.payload.encode())])
    read = await jobs.get(made.id)
    # A result of null is no result.
    for came_back in (lease.payload.encode(), bytes(read.payload), bytes(read.result or b"null")):
        assert _exactly(came_back) == _exactly(text.encode())


def _exactly(raw: bytes) -> Any:
    """Decode with every digit."""
    return json.loads(raw, parse_float=Decimal, parse_int=Decimal)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
json_texts = st.text(alphabet='{}[]",:\\u0d8eE+-.19 a\x00é', max_size=30)


@pytest.mark.slow
def test_whatever_passes_the_check_comes_back_equal(database_url: str) -> None:
    """Through the same door as a payload: a jsonb array that becomes records, and back as bytes."""
    with asyncio.Runner() as runner:
        database = Database(database_url, connections=1)
        runner.run(database.open())
        hints = Hints(database)
        jobs = Jobs(database, Queues(database, hints), hints)

        @settings(
            max_examples=250, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
        )
        @given(st.one_of(json_values.map(lambda value: json.dumps(value).encode("ascii", "replace")),
                         json_texts.map(lambda text: text.encode())))  # fmt: skip
        def round_trip(raw: bytes) -> None:
            try:
                check_json(raw)
            except ValueError:
                return
            made = job(payload=raw)
            runner.run(jobs.enqueue([made]))
            assert _exactly(bytes(runner.run(jobs.get(made.id)).payload)) == _exactly(raw)

        try:
            round_trip()
        finally:
            runner.run(hints.close())
            runner.run(database.close())


ASKED: list[tuple[dict[str, Any], str | None]] = [
    # What is asked for, and the same in SQL (None: it can't be said there).
    ({}, ""),
    (
        {"priority": 7, "queue": "mail", "payload": b'{"a": [1, null, "\\u20ac"]}', "max_attempts": 9},
        """, priority => 7, queue => 'mail', payload => '{"a": [1, null, "\\u20ac"]}', max_attempts => 9""",
    ),
    ({"delay_seconds": 0.0}, ", delay => '0'"),
    ({"delay_seconds": 90.0000005}, ", delay => '90 s'"),
    ({"run_at": datetime(1999, 1, 1, tzinfo=UTC)}, ", run_at => '1999-01-01T00:00:00Z'"),
    ({"run_at": datetime(2031, 5, 1, 12, 0, 0, 250_001, tzinfo=UTC)}, ", run_at => '2031-05-01T12:00:00.250001Z'"),
    ({"timeout_seconds": 1.5, "request_id": "r"}, None),
    ({"timeout_seconds": 0.25}, ", timeout => '250 ms'"),
    ({"payload": b"null"}, ", payload => 'null'"),
    ({"tags": ("b", "a")}, ", tags => array['b', 'a', 'b']"),
    ({"metadata": b'{"b": 1, "a": [null]}'}, """, metadata => '{"b": 1, "a": [null]}'"""),
    ({"metadata": b"{}"}, ", metadata => '{}'"),
    ({"trace_context": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}, None),
    ({"expires_at": datetime(2031, 5, 1, tzinfo=UTC)}, None),
    ({"expires_seconds": 3600.000001}, ", expires => '3600.000001 s'"),
]


@pytest.mark.parametrize(("asked", "in_sql"), ASKED, ids=str)
async def test_a_job_is_stored_alike_by_whichever_way_it_comes(
    jobs: Jobs, sql: Connection, asked: dict[str, Any], in_sql: str | None
) -> None:
    """
    The statement for one, the one for many, and the function for other people's connections and for people.

    All columns are compared, but for ids and the clock's times, which are compared with what was answered.
    """
    made = [job(**asked) for _ in range(3)]
    answers = [(await jobs.enqueue(made[:1]))[0], (await jobs.enqueue([made[1], job()]))[0]]
    function = enqueue_sql("fencepost").replace(":jobs", "$1")
    answers += read_answer(await sql.fetchval(function, encode_jobs(made[2:])), made[2:])
    ids = [one.id for one in made]
    if in_sql is not None:
        attempts = "" if "max_attempts" in asked else ", max_attempts => 3"
        ids.append(await sql.fetchval(f"select fencepost.enqueue('work'{in_sql}{attempts})"))

    async def row(job_id: UUID) -> dict[str, Any]:
        found = await sql.fetchrow("select * from fencepost.jobs where id = $1", job_id)
        placed = await sql.fetchrow("select * from fencepost.pending where id = $1", job_id)
        return {**found, **{f"pending.{name}": value for name, value in placed.items()}}

    rows = [await row(job_id) for job_id in ids]
    for stored, answered in zip(rows, answers, strict=False):
        assert (stored["created_at"], stored["pending.run_at"]) == (answered.created_at, answered.run_at)
    for stored in rows:
        assert stored.pop("id") == stored.pop("pending.id")
        created_at = stored.pop("created_at")
        if stored["pending.run_at"] != asked.get("run_at"):
            stored["pending.run_at"] -= created_at
        if "expires_seconds" in asked:
            stored["expires_at"] -= created_at
    assert len(rows[0]) == 18, "all there are"
    assert rows == [rows[0]] * len(rows)
