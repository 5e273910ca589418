"""What handlers say of how far they are: the newest word, now and then, and nothing when nobody says anything."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from fencepost.domain.context import Context
from fencepost.domain.job import Status
from fencepost.errors import DatabaseUnavailable
from fencepost.worker.attempt import Attempt, Key
from fencepost.worker.progress import MESSAGE_CHARACTERS, Progress
from tests.patience import TIMER_SECONDS, limit

from .support import Bench, make_lease, wait_until


class Store:
    """Keeps what is written, and can be away or have rows locked."""

    def __init__(self) -> None:
        self.writes: list[tuple[int, dict[Key, Any]]] = []
        self.error: Exception | None = None
        self.busy: set[Key] = set()

    async def write_progress(self, queue_id: int, progress: Mapping[Key, bytes], /) -> set[Key]:
        if self.error is not None:
            raise self.error
        busy = self.busy & progress.keys()
        self.writes.append(
            (queue_id, {key: msgspec.json.decode(raw) for key, raw in progress.items() if key not in busy})
        )
        return busy

    def of(self, attempt: Attempt) -> list[Any]:
        return [words[attempt.key] for _, words in self.writes if attempt.key in words]


@pytest.fixture
async def store() -> Store:
    return Store()


@pytest.fixture
async def progress(store: Store) -> Any:
    progress = Progress(store, every_seconds=0.02)
    progress.start()
    yield progress
    await progress.stop()


def attempt(**fields: Any) -> Attempt:
    return Attempt(make_lease(**fields))


async def test_the_newest_word_of_each_is_written_and_together(store: Store, progress: Progress) -> None:
    one, two, elsewhere = attempt(), attempt(), attempt(queue_id=2)
    for step in range(1_000):
        progress.put(one, step / 1_000)
    progress.put(two, 0.5, "half way")
    progress.put(elsewhere, 1)
    await wait_until(lambda: len(store.writes) == 2, 2)
    assert dict(store.writes) == {
        1: {one.key: {"fraction": 0.999}, two.key: {"fraction": 0.5, "message": "half way"}},
        2: {elsewhere.key: {"fraction": 1.0}},
    }


async def test_at_most_once_in_its_time(store: Store) -> None:
    progress = Progress(store, every_seconds=0.2)
    progress.start()
    one, began = attempt(), time.monotonic()
    count = 0
    async with asyncio.timeout(limit(5)):
        while len(store.writes) < 5:
            count += 1
            progress.put(one, count / 1_000_000)
            await asyncio.sleep(0.001)
    assert time.monotonic() - began >= 4 * (0.2 - TIMER_SECONDS)
    assert count > 50
    await progress.stop()


async def test_what_has_not_changed_is_not_written_again(store: Store, progress: Progress) -> None:
    one = attempt()
    for _ in range(3):
        progress.put(one, 0.5)
        await asyncio.sleep(0.05)
    progress.put(one, 0.6)
    await wait_until(lambda: len(store.of(one)) == 2, 2)
    assert store.of(one) == [{"fraction": 0.5}, {"fraction": 0.6}]


async def test_nothing_runs_while_nobody_says_anything(store: Store, progress: Progress) -> None:
    before = asyncio.all_tasks()
    one = attempt()
    progress.put(one, 0.5)
    await wait_until(lambda: store.writes, 2)
    await wait_until(lambda: asyncio.all_tasks() <= before, 2)
    progress.forget(one)
    assert (progress._latest, progress._written) == ({}, {})


@pytest.mark.parametrize("how", ["ended", "abandoned", "forgotten"])
async def test_what_an_attempt_said_that_has_ended_is_dropped(store: Store, progress: Progress, how: str) -> None:
    gone, there = attempt(), attempt()
    progress.put(gone, 0.5)
    progress.put(there, 0.5)
    if how == "ended":
        gone.end()
    elif how == "abandoned":
        gone.abandoned = True
    else:
        progress.forget(gone)
    await wait_until(lambda: store.of(there), 2)
    assert store.of(gone) == []


async def test_it_survives_the_database_and_keeps_the_newest(store: Store, progress: Progress) -> None:
    one, two = attempt(), attempt(queue_id=2)
    store.error = DatabaseUnavailable("away")
    progress.put(one, 0.1)
    progress.put(two, 0.1)
    await asyncio.sleep(0.05)
    progress.put(one, 0.2)
    await asyncio.sleep(0.05)
    store.error = None
    await wait_until(lambda: store.of(one) and store.of(two), 2)
    assert (store.of(one), store.of(two)) == ([{"fraction": 0.2}], [{"fraction": 0.1}])


async def test_a_locked_lease_is_tried_again(store: Store, progress: Progress) -> None:
    one = attempt()
    store.busy = {one.key}
    progress.put(one, 0.1)
    await wait_until(lambda: len(store.writes) >= 2, 2)
    store.busy = set()
    await wait_until(lambda: store.of(one) == [{"fraction": 0.1}], 2)


async def test_from_many_threads(store: Store, progress: Progress) -> None:
    attempts = [attempt() for _ in range(8)]

    def work(one: Attempt) -> None:
        for step in range(1, 2_001):
            progress.put(one, step / 2_000)

    threads = [threading.Thread(target=work, args=(one,)) for one in attempts]
    for thread in threads:
        thread.start()
    await wait_until(lambda: not any(thread.is_alive() for thread in threads), 5)
    await wait_until(lambda: all(store.of(one)[-1:] == [{"fraction": 1.0}] for one in attempts), 3)


@pytest.mark.parametrize(
    ("given", "kept"),
    [(-1, 0.0), (2, 1.0), (float("inf"), 1.0), (float("-inf"), 0.0), (True, 1.0), (0.25, 0.25), (10**400, None)],
)
async def test_a_fraction_is_brought_into_range(
    store: Store, progress: Progress, given: Any, kept: float | None
) -> None:
    one = attempt()
    if kept is None:
        with pytest.raises(ValueError, match="progress is a number from 0 to 1"):
            progress.put(one, given)
        return
    progress.put(one, given)
    await wait_until(lambda: store.of(one) == [{"fraction": kept}], 2)


@pytest.mark.parametrize("given", [float("nan"), None, "half", object()])
async def test_what_is_no_number_is_refused_where_it_is_said(progress: Progress, given: Any) -> None:
    with pytest.raises(ValueError, match="progress is a number from 0 to 1"):
        progress.put(attempt(), given)
    assert progress._latest == {}


async def test_a_message_is_made_storable(store: Store, progress: Progress) -> None:
    one = attempt()
    progress.put(one, 0.5, "a\x00b\ud800" + "x" * 1_000)
    await wait_until(lambda: store.of(one), 2)
    message = store.of(one)[0]["message"]
    assert message.startswith("a\ufffdb\ufffdx")
    assert len(message) == MESSAGE_CHARACTERS


async def test_it_can_be_read_while_the_job_runs_and_not_afterwards(bench: Bench) -> None:
    go_on = asyncio.Event()

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        context.progress(0.4, "half \x00way")
        await go_on.wait()

    await bench.start()
    job_id = await bench.enqueue("work")

    async def told() -> bool:
        return await bench.value("select progress from fencepost.leases where id = $1", job_id) is not None

    await wait_until(told, 3)
    text = await bench.value("select progress from fencepost.leases where id = $1", job_id)
    assert msgspec.json.decode(text) == {"fraction": 0.4, "message": "half \ufffdway"}
    go_on.set()
    assert (await bench.ended(job_id)).status is Status.COMPLETED


async def test_what_is_said_during_a_write_that_fails_is_newer(store: Store, progress: Progress) -> None:
    one, gate, writing = attempt(), asyncio.Event(), asyncio.Event()

    async def slow(queue_id: int, words: Mapping[Key, bytes], /) -> set[Key]:
        writing.set()
        await gate.wait()
        raise DatabaseUnavailable("away")

    write, store.write_progress = store.write_progress, slow  # type: ignore[method-assign]
    progress.put(one, 0.1)
    await asyncio.wait_for(writing.wait(), 2)
    progress.put(one, 0.2)
    store.write_progress = write  # type: ignore[method-assign]
    gate.set()
    await wait_until(lambda: store.of(one), 2)
    assert store.of(one) == [{"fraction": 0.2}]
