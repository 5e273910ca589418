"""One key, one job: under duplicates at once, in bulk, and against requests that only look alike."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from fencepost.domain.job import NewJob, Status, Unique, UniqueMode, UniqueUntil
from fencepost.errors import KeyConflict
from fencepost.store.database import Database
from fencepost.store.enqueueing import decode_answer, encode_jobs
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore

from .support import Connection, claim, completed, contents, job, waits_for_a_lock

pytestmark = pytest.mark.anyio


async def test_fifty_duplicates_at_once_make_one_job(jobs: Jobs, database_url: str) -> None:
    """Half of them from another process's pool."""
    other = Database(database_url, connections=10)
    await other.open()
    hints = Hints(other)
    others = Jobs(other, Queues(other, hints), hints)
    made = [job(idempotency_key="order-1", payload=b'{"n": 1}') for _ in range(50)]
    answers = await asyncio.gather(*(door.enqueue([one]) for one, door in zip(made, [jobs, others] * 25, strict=True)))
    await hints.close()
    await other.close()
    ids = {answer.id for [answer] in answers}
    assert len(ids) == 1
    assert sum(not answer.replayed for [answer] in answers) == 1
    assert (await jobs.audit())["jobs"] == 1


async def test_a_replay_names_the_job_whatever_became_of_it(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore
) -> None:
    first = job(idempotency_key="k")
    await jobs.enqueue([first])
    queue_id = await queues.id_of("default")
    for _ in range(3):
        [again] = await jobs.enqueue([job(idempotency_key="k")])
        assert (again.id, again.replayed) == (first.id, True)
        for lease in await claim(worker_store, queue_id):
            await worker_store.settle(queue_id, [completed(lease)])
    assert (await jobs.get(first.id)).status is Status.COMPLETED
    assert (await jobs.audit())["jobs"] == 1


BASE: dict[str, Any] = {
    "idempotency_key": "k",
    "payload": b'{"id": 1, "to": ["a", {"b": 1.50}], "n": 100}',
    "priority": 3,
    "timeout_seconds": 5.0,
    "delay_seconds": 60.0,
}

SAME_PAYLOADS = [
    b'{"n": 1e2, "to": ["a", {"b": 1.5}], "id": 1.0}',
    b'\n{ "to" : [ "\\u0061" , {"b":15e-1} ] ,\t"id":1,"n":100 }',
]

OTHERS: dict[str, dict[str, Any]] = {
    "payload: more": {"payload": b'{"id": 1, "to": ["a", {"b": 1.50}], "n": 100, "x": 2}'},
    "payload: less": {"payload": b'{"id": 1, "to": ["a", {"b": 1.50}]}'},
    "payload: inside": {"payload": b'{"id": 1, "to": ["a", {"b": 1.51}], "n": 100}'},
    "payload: order of a list": {"payload": b'{"id": 1, "to": [{"b": 1.50}, "a"], "n": 100}'},
    "payload: text for a number": {"payload": b'{"id": "1", "to": ["a", {"b": 1.50}], "n": 100}'},
    "payload: true for a number": {"payload": b'{"id": true, "to": ["a", {"b": 1.50}], "n": 100}'},
    "payload: null for absent": {"payload": b'{"id": 1, "to": ["a", {"b": 1.50}], "n": 100, "x": null}'},
    "payload: empty": {"payload": b"{}"},
    "type": {"type": "other"},
    "queue": {"queue": "other"},
    "priority": {"priority": 4},
    "max_attempts": {"max_attempts": 4},
    "timeout: another": {"timeout_seconds": 6.0},
    "timeout: none": {"timeout_seconds": None},
    "tags": {"tags": ("a",)},
    "metadata": {"metadata": b'{"a": 1}'},
    "expiry: a moment": {"expires_at": datetime(2031, 1, 1, tzinfo=UTC)},
    "expiry: after a time": {"expires_seconds": 60.0},
    "unique": {"unique": Unique(key="u")},
    "schedule: another delay": {"delay_seconds": 61.0},
    "schedule: now": {"delay_seconds": None},
    "schedule: a moment": {"delay_seconds": None, "run_at": datetime(2031, 1, 1, tzinfo=UTC)},
}


@pytest.mark.parametrize("payload", SAME_PAYLOADS)
async def test_spelling_does_not_make_another_request(jobs: Jobs, payload: bytes) -> None:
    first = job(**BASE)
    await jobs.enqueue([first])
    [again] = await jobs.enqueue([job(**{**BASE, "payload": payload, "request_id": "another"})])
    assert (again.id, again.replayed) == (first.id, True)


@pytest.mark.parametrize("other", OTHERS)
async def test_another_request_under_the_same_key_is_a_conflict(jobs: Jobs, sql: Connection, other: str) -> None:
    """Both ways round: neither contains the other, they just aren't equal."""
    for key, one, two in (("k", BASE, {**BASE, **OTHERS[other]}), ("l", {**BASE, **OTHERS[other]}, BASE)):
        first = job(**{**one, "idempotency_key": key})
        await jobs.enqueue([first])
        before = await contents(sql)
        with pytest.raises(KeyConflict, match=f"'{key}' already made job {first.id}"):
            await jobs.enqueue([job(**{**two, "idempotency_key": key})])
        assert await contents(sql) == before


UNIQUE = Unique(key="u", until=UniqueUntil.PERIOD, period_seconds=60.0)


@pytest.mark.parametrize(
    "other",
    [
        None,
        Unique(key="v", until=UniqueUntil.PERIOD, period_seconds=60.0),
        Unique(key="u", until=UniqueUntil.PERIOD, period_seconds=61.0),
        Unique(key="u", until=UniqueUntil.FINISHED),
        Unique(key="u", until=UniqueUntil.PERIOD, period_seconds=60.0, mode=UniqueMode.REPLACE),
    ],
)
async def test_what_is_unique_is_a_part_of_the_request(jobs: Jobs, other: Unique | None) -> None:
    first = job(idempotency_key="k", unique=UNIQUE)
    await jobs.enqueue([first])
    with pytest.raises(KeyConflict):
        await jobs.enqueue([job(idempotency_key="k", unique=other)])
    [again] = await jobs.enqueue([job(idempotency_key="k", unique=UNIQUE)])
    assert (again.id, again.effect) == (first.id, "replayed")


async def test_the_same_with_everything_is_a_replay(jobs: Jobs) -> None:
    asked: dict[str, Any] = {
        "idempotency_key": "k", "tags": ("a", "b"), "metadata": b'{"a": 1, "b": 2}', "expires_seconds": 60.0,
        "delay_seconds": 1.5, "unique": UNIQUE,
    }  # fmt: skip
    [first] = await jobs.enqueue([job(**asked)])
    [again] = await jobs.enqueue([job(**{**asked, "metadata": b'{"b":2,"a":1}', "trace_context": "another"})])
    assert (again.id, again.effect) == (first.id, "replayed")


async def test_a_key_in_somebodys_long_transaction_holds_up_only_its_own(jobs: Jobs, sql: Connection) -> None:
    """Callers share statements; one who has to wait for a key must not take the others along."""
    await jobs.enqueue([job()])
    holder = sql.transaction()
    await holder.start()
    await sql.execute(
        "insert into fencepost.idempotency_keys (key, job_id, queue_id, schedule) "
        "values ('held', gen_random_uuid(), 1, 'now')"
    )
    waiting = asyncio.get_running_loop().create_task(jobs.enqueue([job(idempotency_key="held")]))
    await waits_for_a_lock(sql)
    async with asyncio.timeout(5):
        together = await asyncio.gather(
            *(jobs.enqueue([job(idempotency_key=f"free-{number}")]) for number in range(20)),
            *(jobs.enqueue([job()]) for _ in range(20)),
        )
        second = asyncio.get_running_loop().create_task(jobs.enqueue([job(idempotency_key="held")]))
        others = await asyncio.gather(*(jobs.enqueue([job(idempotency_key=f"more-{number}")]) for number in range(20)))
    assert all(one.effect == "created" for [one] in [*together, *others])
    assert not waiting.done()
    assert not second.done()
    await holder.rollback()
    effects = sorted([(await waiting)[0].effect, (await second)[0].effect])
    assert effects == ["created", "replayed"]


async def test_a_key_twice_in_one_request(jobs: Jobs) -> None:
    made = [job(idempotency_key="a"), job(), job(idempotency_key="a"), job(idempotency_key="b")]
    answers = await jobs.enqueue(made)
    assert [one.replayed for one in answers] == [False, False, True, False]
    assert answers[2].id == made[0].id
    assert (await jobs.audit())["jobs"] == 3


async def test_a_key_twice_in_one_request_for_different_jobs(jobs: Jobs, sql: Connection) -> None:
    with pytest.raises(KeyConflict):
        await jobs.enqueue([job(idempotency_key="a"), job(), job(idempotency_key="a", priority=1)])
    assert all(not rows for rows in (await contents(sql)).values())


HELD = {**BASE, "unique": Unique(key="held")}
"""A request that makes no job while another one has its unique key: its idempotency key is let go of again."""


@pytest.mark.parametrize("whole", [True, False], ids=["of one caller", "of several"])
@pytest.mark.parametrize("other", OTHERS)
async def test_a_key_twice_for_different_requests_of_which_the_first_makes_no_job(
    jobs: Jobs, sql: Connection, other: str, whole: bool
) -> None:
    """
    The second is not answered with what became of the first.

    One caller with both is told so; of several, the second asks again alone, and gets its job.
    """
    holder = job(unique=HELD["unique"])
    await jobs.enqueue([holder, job(queue="other")])
    before = await contents(sql)
    made = [job(**HELD), job(**{**HELD, **OTHERS[other]}), job(**HELD)]
    if whole:
        with pytest.raises(KeyConflict, match="'k' is that of two different requests of this call; use one for each"):
            await jobs.enqueue(made)
    else:
        answer = await sql.fetchval("select fencepost.enqueue_jobs($1, false, false)", encode_jobs(made))
        told = {one.place: (one.id, one.effect) for one in decode_answer(answer).differing}
        skipped = (holder.id, "skipped")
        assert told == {0: skipped, 1: (None, "key_gone"), 2: skipped}
    assert await contents(sql) == before
    [free] = await jobs.enqueue([job(**BASE)])
    assert free.is_new, "the key stays free"


async def test_callers_with_one_key_of_whom_the_first_makes_no_job(jobs: Jobs) -> None:
    """Whether they share a statement or not, and whoever comes first: the one that can be stored is."""
    holder = job(unique=HELD["unique"])
    await jobs.enqueue([holder])
    for number in range(20):
        first, second = job(**{**HELD, "idempotency_key": f"k{number}"}), job(idempotency_key=f"k{number}")
        async with asyncio.timeout(10):
            _, one, two = await asyncio.gather(
                *(jobs.enqueue([asked]) for asked in (job(**BASE), first, second)), return_exceptions=True
            )
        assert isinstance(two, list)
        assert (two[0].id, two[0].effect) == (second.id, "created")
        if isinstance(one, list):
            assert (one[0].id, one[0].effect) == (holder.id, "skipped")
        else:
            assert isinstance(one, KeyConflict)


async def test_a_key_twice_for_one_request_that_makes_no_job(jobs: Jobs) -> None:
    holder = job(unique=HELD["unique"])
    await jobs.enqueue([holder])
    answers = await jobs.enqueue([job(**HELD), job(**{**HELD, "payload": SAME_PAYLOADS[0]})])
    assert [(one.id, one.effect) for one in answers] == [(holder.id, "skipped")] * 2


async def test_one_conflict_stores_nothing_of_a_bulk(jobs: Jobs, sql: Connection) -> None:
    await jobs.enqueue([job(idempotency_key="taken")])
    before = await contents(sql)
    made = [job(idempotency_key=f"new-{number}") for number in range(1_000)]
    made[500] = job(idempotency_key="taken", priority=9)
    with pytest.raises(KeyConflict, match="'taken'"):
        await jobs.enqueue(made)
    assert await contents(sql) == before
    made[500] = job(idempotency_key="taken")
    answers = await jobs.enqueue(made)
    assert [number for number, one in enumerate(answers) if one.replayed] == [500]


async def test_a_key_whose_transaction_rolls_back_is_free(jobs: Jobs, sql: Connection) -> None:
    """A duplicate waits for the first to end, and then takes its place."""
    holder = sql.transaction()
    await holder.start()
    await sql.execute(
        "insert into fencepost.idempotency_keys (key, job_id, queue_id, schedule) "
        "values ('k', gen_random_uuid(), 1, 'now')"
    )
    waiting = asyncio.get_running_loop().create_task(jobs.enqueue([job(idempotency_key="k")]))
    await waits_for_a_lock(sql)
    await holder.rollback()
    [stored] = await waiting
    assert not stored.replayed


async def test_keys_in_opposite_order_never_deadlock(jobs: Jobs, database_url: str) -> None:
    other = Database(database_url, connections=2)
    await other.open()
    hints = Hints(other)
    others = Jobs(other, Queues(other, hints), hints)

    def batch(number: int, *, descending: bool) -> list[NewJob]:
        keys = sorted((f"{number}-{key}" for key in range(200)), reverse=descending)
        return [job(idempotency_key=key) for key in keys]

    try:
        for number in range(50):
            up, down = await asyncio.gather(
                jobs.enqueue(batch(number, descending=False)), others.enqueue(batch(number, descending=True))
            )
            assert [one.id for one in up] == [one.id for one in reversed(down)]
            assert sum(not one.replayed for one in up + down) == 200
    finally:
        await hints.close()
        await other.close()
    assert (await jobs.audit())["jobs"] == 10_000
