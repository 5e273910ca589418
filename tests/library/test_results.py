"""Waiting for results: without asking again and again, through lost hints, outages and failures."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from fencepost import Cancel, Fencepost, Handle, InvalidJob, JobFailed, JobNotFound, Permanent, ResultTimeout
from fencepost.client import watching
from fencepost.errors import DatabaseUnavailable
from fencepost.store.database import Database
from tests.patience import TIMER_SECONDS, limit

from ..worker.support import wait_until, within


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the statements that are run, in every pool."""
    names: list[str] = []
    fetch = Database.fetch

    async def counting(self: Database, name: str, /, **values: object) -> Any:
        names.append(name)
        return await fetch(self, name, **values)

    monkeypatch.setattr(Database, "fetch", counting)
    return names


async def test_a_result_comes_at_once_without_polling(
    app: Fencepost, fetches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A waiter that looked by itself would take this long.
    monkeypatch.setattr(watching, "FIRST_LOOK_SECONDS", 30.0)
    release = asyncio.Event()

    @app.job
    async def work() -> str:
        await release.wait()
        return "done"

    async with app.worker() as worker:
        # The first waiter opens the connection that listens for all.
        handle = await work.enqueue()
        waiting = asyncio.create_task(handle.result(timeout=20))
        client = await app._producer.client()
        await within(5, client.watcher._connected.wait())
        waiting.cancel()
        await asyncio.wait([waiting])
        waiting = asyncio.create_task(handle.result(timeout=20))
        # It has said so, has looked once more, and the worker has heard of it, in any order.
        watches = client.watcher._watches
        await wait_until(lambda: handle.id in watches and watches[handle.id].answered >= 2, 5)
        await wait_until(lambda: len(worker._watching) == 1, 5)
        looks = fetches.count("read_jobs")
        began = time.monotonic()
        release.set()
        assert await waiting == "done"
        assert time.monotonic() - began < limit(1)
        assert fetches.count("read_jobs") == looks + 1


@pytest.mark.slow
async def test_waiting_costs_less_and_less(app: Fencepost, fetches: list[str]) -> None:
    @app.job
    async def work() -> None: ...

    handle = await work.enqueue()
    fetches.clear()
    with pytest.raises(ResultTimeout, match="has not ended yet; it is pending"):
        await handle.result(timeout=3)
    # After 0, 0.05, 0.15, 0.35, 0.75, 1.55 and 3 seconds, and the first of all.
    assert fetches.count("read_jobs") <= 9
    assert fetches.count("notify") <= 1


async def test_no_patience_is_one_look(app: Fencepost, fetches: list[str]) -> None:
    @app.job
    async def work() -> str:
        return "done"

    handle = await work.enqueue()
    fetches.clear()
    for timeout in (0, 0.0):
        with pytest.raises(ResultTimeout, match="has not ended yet; it is pending"):
            await handle.result(timeout=timeout)
    assert fetches == ["read_jobs"] * 2
    with pytest.raises(JobNotFound):
        await app.handle(uuid4()).result(timeout=0)
    async with app.worker():
        assert await handle.result(timeout=None) == "done"
    assert await handle.result(timeout=0) == await handle.result(timeout=math.inf) == "done"


@pytest.mark.parametrize("timeout", [math.nan, -1, -0.001, -math.inf, "5", "", True, False, b"5", [1]])
async def test_what_is_no_time_to_wait_is_refused(app: Fencepost, timeout: Any) -> None:
    with pytest.raises(InvalidJob, match=r"timeout: must be seconds, from 0 \(look once\) up, or None") as caught:
        await app.handle(uuid4()).result(timeout=timeout)
    assert caught.value.field == "timeout"


async def test_a_lost_hint_only_makes_it_later(app: Fencepost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching.Watcher, "_heard", lambda self, hint: None)

    @app.job
    async def work() -> int:
        await asyncio.sleep(0.3)
        return 1

    async with app.worker():
        began = time.monotonic()
        assert await (await work.enqueue()).result(timeout=10) == 1
        assert time.monotonic() - began < limit(2)


async def test_many_wait_through_one_connection(app: Fencepost, database_url: str) -> None:
    release = asyncio.Event()

    @app.job
    async def work(number: int) -> int:
        await release.wait()
        return number

    connection = await asyncpg.connect(database_url)
    async with app.worker(workers=50):
        handles = await work.enqueue_many([work.call(number) for number in range(40)])
        waiting = [asyncio.create_task(handle.result(timeout=20)) for handle in handles]
        await asyncio.sleep(0.5)
        count = await connection.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen%'"
        )
        # The worker's, and one for all that wait.
        assert count <= 2
        release.set()
        assert await asyncio.gather(*waiting) == list(range(40))
    await connection.close()


async def test_other_endings_are_told_apart(app: Fencepost) -> None:
    @app.job(max_attempts=1)
    async def end(how: str) -> None:
        raise {"failed": Permanent, "dead_letter": ValueError, "cancelled": Cancel}[how](f"because {how}")

    async with app.worker():
        for how in ("failed", "dead_letter", "cancelled"):
            handle = await end.enqueue(how)
            with pytest.raises(JobFailed, match=f"ended {how}: .*because {how}") as caught:
                await handle.result(timeout=5)
            assert caught.value.status == how


async def test_a_cancelled_job_ends_the_wait(app: Fencepost) -> None:
    @app.job
    async def work() -> None: ...

    handle = await work.options(delay=60).enqueue()
    waiting = asyncio.create_task(handle.result(timeout=10))
    await asyncio.sleep(0.1)
    await handle.cancel()
    with pytest.raises(JobFailed, match="cancelled"):
        await waiting


async def test_an_outage_while_waiting_is_survived(app: Fencepost, database_url: str) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    @app.job
    async def work() -> str:
        begun.set()
        await release.wait()
        return "done"

    connection = await asyncpg.connect(database_url)
    async with app.worker():
        handle = await work.enqueue()
        waiting = asyncio.create_task(handle.result(timeout=20))
        watches = (await app._producer.client()).watcher._watches
        await wait_until(lambda: handle.id in watches and watches[handle.id].seen, 3)
        # A claim whose answer is lost would leave the job to its lease.
        await within(5, begun.wait())
        await connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()"
        )
        release.set()
        assert await waiting == "done"
    await connection.close()


async def test_results_that_arent_there(app: Fencepost) -> None:
    @app.job
    async def nothing() -> None: ...

    @app.job
    async def large() -> str:
        return "x" * (1 << 20)

    async with app.worker():
        handle: Handle[Any] = await nothing.enqueue()
        assert await handle.result(timeout=5) is None
        assert await (await large.enqueue()).result(timeout=5) is None


@pytest.mark.parametrize("timeout", [None, 20])
async def test_a_job_that_is_removed_meanwhile_is_waited_for_no_longer(app: Fencepost, timeout: float | None) -> None:
    @app.job
    async def work() -> None: ...

    handle = await work.options(delay=60).enqueue()
    in_transaction = Handle[None](app._producer, handle.id, may_appear=True)
    waiting = [asyncio.create_task(one.result(timeout=timeout)) for one in (handle, in_transaction)]
    watches = (await app._producer.client()).watcher._watches
    await wait_until(lambda: handle.id in watches and watches[handle.id].seen, 3)
    # In one moment, or the waiters would hear of its cancellation.
    database = (await app._producer.client()).database
    await database.execute(
        f"with p as (delete from fencepost.pending where id = '{handle.id}') "
        f"delete from fencepost.jobs where id = '{handle.id}'"
    )
    for error in await within(5, asyncio.gather(*waiting, return_exceptions=True)):
        assert isinstance(error, JobNotFound)
        assert str(error) == f"job {handle.id} was removed meanwhile"
    assert not watches


async def test_a_job_that_never_was_is_not_waited_for(app: Fencepost) -> None:
    for timeout in (None, 20):
        with pytest.raises(JobNotFound, match="it was never enqueued here, or its retention has passed"):
            await within(5, app.handle(uuid4()).result(timeout=timeout))


async def test_a_job_in_an_open_transaction_is_waited_for(app: Fencepost, database_url: str) -> None:
    @app.job
    async def work() -> str:
        return "done"

    connection = await asyncpg.connect(database_url)
    async with app.worker():
        transaction = connection.transaction()
        await transaction.start()
        handle = await work.within(connection).enqueue()
        waiting = asyncio.create_task(handle.result(timeout=20))
        watches = (await app._producer.client()).watcher._watches
        await wait_until(lambda: handle.id in watches and watches[handle.id].answered > 2, 5)
        # One who doesn't know of the transaction isn't told what was seen before it was committed.
        await transaction.commit()
        assert await app.handle(handle.id).result(timeout=20) == "done"
        assert await waiting == "done"
        with pytest.raises(JobNotFound, match="yet; if it was enqueued in a transaction of yours"):
            await Handle[None](app._producer, uuid4(), may_appear=True).result(timeout=0.2)
    await connection.close()


async def test_thousands_who_wait_for_one_job_share_its_looks(app: Fencepost, fetches: list[str]) -> None:
    release = asyncio.Event()

    @app.job
    async def work() -> str:
        await release.wait()
        return "done"

    async with app.worker():
        handle = await work.enqueue()
        fetches.clear()
        waiting = [asyncio.create_task(handle.result(timeout=60)) for _ in range(3000)]
        await wait_until(lambda: "notify" in fetches, 10)
        release.set()
        assert await asyncio.gather(*waiting) == ["done"] * 3000
        assert fetches.count("read_jobs") < 20
        assert fetches.count("job_queue") <= 2
        # Nobody waits any more, so nobody looks.
        watcher = (await app._producer.client()).watcher
        assert not watcher._watches


async def test_waiters_for_many_jobs_share_statements(app: Fencepost, fetches: list[str]) -> None:
    @app.job
    async def work(number: int) -> int:
        return number

    handles = await app.enqueue_many(work.call(number) for number in range(200))
    async with app.worker(workers=50):
        fetches.clear()
        # A handle twice in the same statement too.
        results = await asyncio.gather(*(handle.result(timeout=30) for handle in handles * 2))
        assert results == [*range(200), *range(200)]


@pytest.mark.slow
async def test_the_first_look_waits_for_the_database_like_every_other(
    app: Fencepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job
    async def work() -> str:
        return "done"

    async with app.worker():
        handle = await work.enqueue()
        assert await handle.result(timeout=10) == "done"
        database = (await app._producer.client()).database
        fetch, failures = database.fetch, 3

        async def failing(name: str, /, **values: object) -> Any:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise DatabaseUnavailable("too busy")
            return await fetch(name, **values)

        monkeypatch.setattr(database, "fetch", failing)
        assert await handle.result(timeout=10) == "done"
        failures = 3
        assert await handle.result() == "done"
        failures = 10_000
        began = time.monotonic()
        with pytest.raises(DatabaseUnavailable, match="too busy"):
            await handle.result(timeout=0.3)
        assert 0.3 - TIMER_SECONDS <= time.monotonic() - began < limit(2)
        with pytest.raises(DatabaseUnavailable, match="too busy"):
            await handle.result(timeout=0)
        monkeypatch.setattr(watching, "PATIENCE_SECONDS", 0.3)
        with pytest.raises(DatabaseUnavailable, match="too busy"):
            await within(5, handle.result())


async def test_a_look_that_is_not_answered_ends_with_the_time(app: Fencepost, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.job
    async def work() -> None: ...

    handle = await work.options(delay=60).enqueue()
    database = (await app._producer.client()).database

    async def silent(name: str, /, **values: object) -> Any:
        await asyncio.sleep(60)

    monkeypatch.setattr(database, "fetch", silent)
    monkeypatch.setattr(watching, "LAST_LOOK_SECONDS", 0.3)
    began = time.monotonic()
    with pytest.raises(DatabaseUnavailable, match="didn't answer in time"):
        await handle.result(timeout=0.2)
    assert 0.5 - 2 * TIMER_SECONDS <= time.monotonic() - began < limit(2)


async def test_a_fault_is_told_to_all_who_wait(app: Fencepost, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.job
    async def work() -> None: ...

    handle = await work.options(delay=60).enqueue()

    async def faulty(name: str, /, **values: object) -> Any:
        raise KeyError(name)

    monkeypatch.setattr((await app._producer.client()).database, "fetch", faulty)
    for error in await asyncio.gather(*(handle.result() for _ in range(3)), return_exceptions=True):
        assert isinstance(error, KeyError)


async def test_a_wait_survives_a_program_that_cancels_whatever_it_finds(app: Fencepost) -> None:
    @app.job
    async def work() -> str:
        return "done"

    handle = await work.enqueue()
    waiting = asyncio.create_task(handle.result(timeout=20))

    def looking() -> list[asyncio.Task[Any]]:
        return [task for task in asyncio.all_tasks() if task.get_name() == "fencepost-wait"]

    await wait_until(looking, 3)
    looking()[0].cancel()
    async with app.worker():
        assert await waiting == "done"
