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
from fencepost.store.database import Database

from ..worker.support import wait_until


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

    async with app.worker():
        # The first waiter opens the connection that listens for all.
        handle = await work.enqueue()
        waiting = asyncio.create_task(handle.result(timeout=20))
        client = await app._producer.client()
        await asyncio.wait_for(client.watcher._connected.wait(), 5)
        waiting.cancel()
        waiting = asyncio.create_task(handle.result(timeout=20))
        await wait_until(lambda: "notify" in fetches, 5)
        await asyncio.sleep(0.2)
        looks = fetches.count("read_jobs")
        began = time.monotonic()
        release.set()
        assert await waiting == "done"
        assert time.monotonic() - began < 1
        assert fetches.count("read_jobs") == looks + 1


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
        assert time.monotonic() - began < 3


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
    release = asyncio.Event()

    @app.job
    async def work() -> str:
        await release.wait()
        return "done"

    connection = await asyncpg.connect(database_url)
    async with app.worker():
        waiting = asyncio.create_task((await work.enqueue()).result(timeout=20))
        await asyncio.sleep(0.3)
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
