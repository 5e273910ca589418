"""Concurrent single enqueues share statements, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest

from fencepost.domain.ids import new_id
from fencepost.domain.job import NewJob
from fencepost.errors import DatabaseUnavailable, KeyConflict
from fencepost.store.holding import Contended
from fencepost.store.jobs import Jobs
from fencepost.store.merging import UNDER_WAY, Merger
from tests.patience import limit


def job(**changes: Any) -> NewJob:
    return NewJob(**{"id": new_id(), "type": "work", "max_attempts": 3, **changes})


class Inserts:
    """Stands for the statement: waits until it is let go, and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.let_go = asyncio.Event()
        self.poison: int | None = None
        self.error: Exception = ValueError("poison")

    async def __call__(self, records: Sequence[dict[str, int]]) -> list[Any]:
        ids = [record["id"] for record in records]
        self.batches.append(ids)
        await self.let_go.wait()
        if self.poison in ids:
            raise self.error
        return [{"id": one} for one in ids]


async def gathered(merger: Merger[dict[str, int], Any], count: int) -> list[asyncio.Task[Any]]:
    """Callers who all wait."""
    callers = [asyncio.create_task(merger.put({"id": number})) for number in range(count)]
    for _ in range(5):
        await asyncio.sleep(0)
    return callers


async def test_who_comes_while_statements_are_under_way_shares_the_next() -> None:
    inserts = Inserts()
    callers = await gathered(Merger(inserts), 100)
    inserts.let_go.set()
    rows = await asyncio.gather(*callers)
    assert [row["id"] for row in rows] == list(range(100))
    assert sorted(one for batch in inserts.batches for one in batch) == list(range(100))
    assert len(inserts.batches) <= UNDER_WAY + 1


async def test_a_lone_job_is_sent_at_once() -> None:
    inserts = Inserts()
    inserts.let_go.set()
    assert await Merger(inserts).put({"id": 7}) == {"id": 7}
    assert inserts.batches == [[7]]


async def test_one_that_cannot_be_stored_fails_alone() -> None:
    inserts = Inserts()
    inserts.poison = 40
    callers = await gathered(Merger(inserts), 100)
    inserts.let_go.set()
    ended = await asyncio.gather(*callers, return_exceptions=True)
    assert [number for number, one in enumerate(ended) if isinstance(one, Exception)] == [40]


async def test_an_outage_is_told_to_all_and_the_next_call_works() -> None:
    inserts = Inserts()
    inserts.poison, inserts.error = 0, DatabaseUnavailable("gone")
    merger: Merger[dict[str, int], Any] = Merger(inserts)
    callers = await gathered(merger, 10)
    inserts.let_go.set()
    ended = await asyncio.gather(*callers, return_exceptions=True)
    assert any(isinstance(one, DatabaseUnavailable) for one in ended)
    assert await merger.put({"id": 99}) == {"id": 99}


async def test_a_caller_who_gives_up_takes_nobody_along() -> None:
    inserts = Inserts()
    callers = await gathered(Merger(inserts), 20)
    for number in (0, 5, 19):
        callers[number].cancel()
    inserts.let_go.set()
    ended = await asyncio.gather(*callers, return_exceptions=True)
    assert sum(isinstance(one, asyncio.CancelledError) for one in ended) == 3
    assert sum(isinstance(one, dict) for one in ended) == 17


async def test_merged_callers_get_what_they_asked_for(jobs: Jobs) -> None:
    """Fresh ones, a replay, a conflict and a value that PostgreSQL refuses, all in one moment."""
    first = (await jobs.enqueue([job(idempotency_key="k", payload=b'{"a":1}')]))[0]
    good = [job() for _ in range(30)]
    asked = [
        *(jobs.enqueue([one]) for one in good),
        jobs.enqueue([job(idempotency_key="k", payload=b'{"a":1.0}')]),
        jobs.enqueue([job(idempotency_key="k", payload=b'{"a":2}')]),
        jobs.enqueue([job(payload=b'"\\u0000"')]),
    ]
    *fresh, replay, conflict, refused = await asyncio.gather(*asked, return_exceptions=True)
    assert [one[0].id for one in fresh if isinstance(one, list)] == [one.id for one in good]
    assert isinstance(replay, list)
    assert (replay[0].id, replay[0].replayed) == (first.id, True)
    assert isinstance(conflict, KeyConflict)
    assert isinstance(refused, asyncpg.DataError)
    assert (await jobs.audit())["jobs"] == 31


@pytest.mark.parametrize("keys", [1, 20])
async def test_merged_duplicates_of_a_key_make_one_job(jobs: Jobs, keys: int) -> None:
    asked = [jobs.enqueue([job(idempotency_key=f"key-{number % keys}")]) for number in range(100)]
    answers = [answer[0] for answer in await asyncio.gather(*asked)]
    assert len({answer.id for answer in answers}) == keys
    assert sum(not answer.replayed for answer in answers) == keys
    assert (await jobs.audit())["jobs"] == keys


async def test_a_caller_who_gives_up_at_once_stores_nothing_and_holds_up_nobody() -> None:
    inserts = Inserts()
    inserts.let_go.set()
    merger: Merger[dict[str, int], Any] = Merger(inserts)
    first = asyncio.create_task(merger.put({"id": 1}))
    await asyncio.sleep(0)
    first.cancel()
    second = asyncio.create_task(merger.put({"id": 2}))
    assert await second == {"id": 2}
    assert inserts.batches == [[2]]
    alone = asyncio.create_task(merger.put({"id": 3}))
    await asyncio.sleep(0)
    alone.cancel()
    await asyncio.wait([alone])
    assert await merger.put({"id": 4}) == {"id": 4}
    assert inserts.batches == [[2], [4]]


async def test_those_who_come_while_a_lone_one_is_stored_follow_it() -> None:
    inserts = Inserts()
    merger: Merger[dict[str, int], Any] = Merger(inserts)
    callers = []
    for number in range(6):
        callers.append(asyncio.create_task(merger.put({"id": number})))
        for _ in range(3):
            await asyncio.sleep(0)
    assert inserts.batches == [[0], [1]], "two statements at a time"
    inserts.let_go.set()
    assert [row["id"] for row in await asyncio.gather(*callers)] == list(range(6))
    assert inserts.batches[2:] == [[2, 3, 4, 5]]


class Keys:
    """Stands for the statement where another transaction holds some keys, which are waited for a little."""

    def __init__(self, *held: str) -> None:
        self.held = set(held)
        self.batches: list[list[str]] = []
        self._news = asyncio.Event()

    async def tries(self, key: str) -> None:
        """Wait until it was tried alone, twice."""
        async with asyncio.timeout(limit(5)):
            while self.batches.count([key]) < 2:
                self._news.clear()
                await self._news.wait()

    async def __call__(self, records: Sequence[str]) -> list[str]:
        self.batches.append(list(records))
        self._news.set()
        await asyncio.sleep(0.002)
        if not self.held.isdisjoint(records):
            raise Contended
        return [f"stored {record}" for record in records]


def keyed(insert: Keys) -> Merger[str, str]:
    return Merger(insert, keys=lambda record: [record])


async def test_who_waits_for_a_key_holds_up_nobody() -> None:
    insert = Keys("a", "b")
    merger = keyed(insert)
    waiting = [asyncio.create_task(merger.put(key)) for key in ("a", "a", "b", "a")]
    await insert.tries("b")
    known = len(insert.batches)
    others = await asyncio.gather(*(merger.put(f"other {number}") for number in range(50)))
    waiting.append(asyncio.create_task(merger.put("a")))
    assert others == [f"stored other {number}" for number in range(50)]
    assert all(len({*batch} & insert.held) == 0 or len(batch) == 1 for batch in insert.batches[known:])
    assert not any(task.done() for task in waiting)
    insert.held.discard("b")
    assert await waiting[2] == "stored b"
    waiting[3].cancel()
    insert.held.clear()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(one) for one in ended] == ["stored a", "stored a", "stored b", "", "stored a"]
    assert merger._held._trying is not None
    await asyncio.wait([merger._held._trying], timeout=5)
    assert merger._held._trying.done(), "nobody waits any more"


async def test_a_key_that_stays_held_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    insert = Keys("a")
    merger = keyed(insert)
    with monkeypatch.context() as patched:
        patched.setattr("fencepost.store.merging.PATIENCE_SECONDS", 0.03)
        ended = await asyncio.gather(*(merger.put("a") for _ in range(3)), return_exceptions=True)
    assert [type(one) for one in ended] == [DatabaseUnavailable] * 3
    assert all("nothing was stored" in str(one) for one in ended)
    insert.held.clear()
    assert await merger.put("a") == "stored a"


async def test_a_fault_while_a_key_is_waited_for_is_told_to_its_caller_alone() -> None:
    insert = Keys("a")
    merger = keyed(insert)
    waiting = [asyncio.create_task(merger.put(key)) for key in ("a", "a")]
    await insert.tries("a")
    whole, fault = insert.__call__, ValueError("poison")

    async def broken(records: Sequence[str]) -> list[str]:
        merger._held._insert = whole
        insert.held.clear()
        raise fault

    merger._held._insert = broken
    assert await asyncio.gather(*waiting, return_exceptions=True) == [fault, "stored a"]
