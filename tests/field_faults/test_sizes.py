"""
Sizes: of payloads, of names, of batches. B07, B08, B10.

A notice never carries a payload or a queue's name: it says `due` and numbers of queues, on one channel a schema.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx2
import msgspec
import pytest

from fencepost import Fencepost, InvalidJob, KeyConflict
from fencepost.domain.ids import new_id
from fencepost.settings import Settings
from fencepost.store import enqueueing
from fencepost.store.database import Database
from fencepost.store.jobs import Jobs
from fencepost.telemetry.events import Events
from fencepost.worker.worker import Worker
from tests.patience import limit
from tests.store.support import Connection, job
from tests.worker.support import SETTINGS, Bench, wait_until

from .doors import Doors, Refused

pytestmark = pytest.mark.anyio

MAX_PAYLOAD = Settings().max_payload_bytes


@pytest.fixture
def doors(app: Fencepost, echo: Any, api: httpx2.AsyncClient, database_url: str) -> Doors:
    return Doors(app, echo, api, database_url)


@pytest.fixture
async def elsewhere(app: Fencepost, echo: Any, database_url: str) -> AsyncIterator[Worker]:
    """An idle worker that hears of jobs by notices alone, as one in another process does. It polls every 30 s."""
    worker = Worker(database_url, app.types, SETTINGS, Events())
    await worker.start()
    await wait_until(lambda: worker._listener.is_connected, 5)
    yield worker
    await worker.drain(5)


@pytest.mark.slow
@pytest.mark.parametrize("size", [7_900, 8_100, 100_000, 1_040_000])
async def test_payloads_of_any_size_wake_an_idle_worker(
    app: Fencepost, doors: Doors, elsewhere: Worker, size: int
) -> None:
    for (name, door), character in itertools.product(doors.all().items(), "x€"):
        text = character * (size // len(character.encode()))
        if name.startswith("http") and character != "x":
            continue  # The doors write HTTP's JSON in ASCII, which takes more than its limit.
        began = time.monotonic()
        [job_id] = await door([text])
        assert await _ended(app, job_id, text)
        started = time.monotonic() - began
        assert started < limit(5), f"{name}: {started:.1f} s; it was found by polling"


async def _ended(app: Fencepost, job_id: Any, text: str) -> bool:
    """Whether its handler got the whole text: results are smaller than payloads, so one of this size isn't kept."""
    await wait_until(lambda: _has_ended(app, job_id), 10, "the job to end")
    record = await app.get(job_id)
    return record.status == "completed" and msgspec.json.decode(record.payload)["payload"] == text


async def _has_ended(app: Fencepost, job_id: Any) -> bool:
    return (await app.handle(job_id).status()) in ("completed", "failed", "dead_letter")


@pytest.mark.parametrize("character", ["x", "€"])
async def test_a_payload_above_the_limit_is_refused_with_it(doors: Doors, jobs: Jobs, character: str) -> None:
    text = character * (1_100_000 // len(character.encode()))
    for name, door in doors.all().items():
        if name == "sql":
            continue  # MAX_PAYLOAD is a setting of the processes; SQL has PostgreSQL's own limits.
        with pytest.raises((InvalidJob, Refused), match=r"the limit is 1,048,576|1,064,960 bytes") as refused:
            await door([text])
        assert getattr(refused.value, "status", 400) in (400, 413)
        with pytest.raises((InvalidJob, Refused), match=r"the limit is 1,048,576|1,064,960 bytes"):
            await door(["good", text])
    assert (await jobs.audit())["jobs"] == 0


SAME_63 = "q" * 63
QUEUES = ["q" * 58, "q" * 64, "q" * 100, SAME_63 + "a", SAME_63 + "b", "UPPER.lower:1-2_3", "upper.lower:1-2_3"]


@pytest.mark.slow
async def test_long_and_similar_queue_names_work_everywhere_and_wake_nobody_else(
    app: Fencepost, doors: Doors, api: httpx2.AsyncClient, database_url: str, sql: Connection
) -> None:
    workers = [
        Worker(database_url, app.types, msgspec.structs.replace(SETTINGS, queues=(name,)), Events()) for name in QUEUES
    ]
    try:
        for worker in workers:
            await worker.start()
        for worker in workers:
            await wait_until(lambda w=worker: w._listener.is_connected, 5)  # type: ignore[misc]
        for place, name in enumerate(QUEUES):
            for door in doors.all(queue=name).values():
                began = time.monotonic()
                [job_id] = await door([place])
                await app.handle(job_id).result(timeout=10)
                assert time.monotonic() - began < limit(5)
                record = (await api.get(f"/jobs/{job_id}")).json()
                assert (record["queue"], record["status"]) == (name, "completed")
    finally:
        for worker in workers:
            await worker.drain(5)
    listed = {queue["name"] for queue in (await api.get("/queues")).json()["queues"]}
    assert listed >= set(QUEUES)
    for name in QUEUES:
        shown = await api.get(f"/queues/{name}")
        assert (shown.status_code, shown.json()["name"]) == (200, name)
        assert (await api.post(f"/queues/{name}/pause")).json()["paused"] is True
        paused = await sql.fetch("select name from fencepost.queues where paused_at is not null")
        assert [row["name"] for row in paused] == [name]
        assert (await api.post(f"/queues/{name}/resume")).json()["paused"] is False
        assert len((await api.get(f"/jobs?queue={name}")).json()["jobs"]) == len(doors.all())


async def test_a_queue_name_that_cannot_be_is_refused_by_every_door(doors: Doors, jobs: Jobs) -> None:
    for name in ("é" * 32, "q" * 101, "a b", "a'b", 'a"b', "a;b", "a/b", "", "a\nb", "ａ"):
        for door in ("library", "http", "http, lines", "sql"):
            with pytest.raises((InvalidJob, Refused, asyncpg.InvalidParameterValueError), match="queue: must be 1 to"):
                await doors.all(queue=name)[door]([1])
    assert (await jobs.audit())["jobs"] == 0


@pytest.mark.slow
async def test_thirty_three_thousand_in_one_call_are_stored_whole_or_not_at_all(
    app: Fencepost, echo: Any, jobs: Jobs, database_url: str
) -> None:
    """More than a statement may have parameters; here it has one, whatever the number of jobs."""
    taken = echo.options(idempotency_key="taken")
    await taken.enqueue("first")
    good = [echo.call(number) for number in range(33_000)]
    bad = [*good[:20_000], taken.call("other"), *good[20_000:]]
    connection = await asyncpg.connect(database_url)
    try:
        async with connection.transaction():
            with pytest.raises(KeyConflict, match="taken"):
                await app.enqueue_many(bad, within=connection)
        with pytest.raises(KeyConflict, match="taken"):
            await asyncio.to_thread(app.enqueue_many_sync, bad)
        assert (await jobs.audit())["jobs"] == 1
        async with connection.transaction():
            await app.enqueue_many(good, within=connection)
            assert (await jobs.audit())["jobs"] == 1, "not before the commit"
    finally:
        await connection.close()
    assert (await jobs.audit())["pending"] == 33_001


@pytest.mark.slow
async def test_two_hundred_thousand_in_one_call(app: Fencepost, echo: Any, jobs: Jobs) -> None:
    await echo.options(idempotency_key="taken").enqueue("first")
    calls = [echo.call(number) for number in range(200_000)]
    assert len({handle.id for handle in await app.enqueue_many(calls)}) == 200_000
    assert await jobs.audit() == {"jobs": 200_001, "pending": 200_001, "leases": 0, "finished": 0}
    calls[150_000] = echo.options(idempotency_key="taken").call("other")
    with pytest.raises(KeyConflict, match="taken"):
        await app.enqueue_many(calls)
    assert (await jobs.audit())["jobs"] == 200_001


async def test_a_call_too_large_for_one_statement_says_so(
    app: Fencepost, echo: Any, jobs: Jobs, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL's own limit is 256 MiB; the same at a thousandth of it."""
    monkeypatch.setattr(enqueueing, "CALL_BYTES", 250_000)
    calls = [echo.call("x" * 100_000) for _ in range(3)]
    connection = await asyncpg.connect(database_url)
    try:
        async with connection.transaction():
            for within in (None, connection):
                with pytest.raises(InvalidJob, match=r"jobs: take 300,\d+ bytes together, and one call takes 250,000"):
                    await app.enqueue_many(calls, within=within)
            # Nothing was sent, so the caller's transaction goes on.
            await app.enqueue_many(calls[:2], within=connection)
    finally:
        await connection.close()
    assert (await jobs.audit())["jobs"] == 2


@pytest.mark.slow
async def test_what_grows_beyond_the_limit_in_the_database_says_so_too(database: Database, jobs: Jobs) -> None:
    """A number of one digit takes two bytes of text and twelve of jsonb."""
    payload = b"[" + b"1," * 500_000 + b"1]"
    with pytest.raises(InvalidJob, match=r"jobs: take more room together than PostgreSQL has .*several calls"):
        await jobs.enqueue([job(payload=payload) for _ in range(50)])
    assert (await jobs.audit())["jobs"] == 0
    await jobs.enqueue([job(payload=payload)])
    await database.ping()


@pytest.mark.slow
async def test_a_hundred_thousand_ids_in_one_call(bench: Bench, app: Fencepost, sql: Connection) -> None:
    """Cancelled, put back and removed by their ids, without a word about the number of parameters."""
    ids = [new_id() for _ in range(100_000)]
    await bench.enqueue("work")
    queue_id = await bench.queue_id()
    for table, columns, values in (
        ("jobs", "type, priority, payload, max_attempts, created_at", "'work', 0, '{}', 3, now()"),
        ("finished", "status, attempts, token, started_at, finished_at", "'dead_letter', 3, 3, now(), now()"),
    ):
        await sql.execute(
            f"insert into fencepost.{table} (id, queue_id, {columns}) select unnest($1::uuid[]), $2, {values}",
            ids,
            queue_id,
        )
    assert (await app.retry_all(ids=ids)).changed == 100_000
    # Twice is once.
    assert (await app.retry_all(ids=ids)).changed == 0
    assert (await app.cancel_all(ids=ids)).changed == 100_000
    assert (await app.delete_all(ids=ids)).changed == 100_000
    await bench.audit()
    assert (await bench.jobs.audit())["jobs"] == 1
