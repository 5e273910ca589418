"""Event loops, threads, forks and the end of the program: an app may be used from all of them."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import asyncpg
import psycopg
import pytest

from fencepost import Draft, Fencepost, FencepostError, InvalidSettings, Job, Settings
from fencepost.errors import SchemaMismatch
from tests.patience import limit
from tests.worker.support import wait_until


@pytest.fixture
def store(app: Fencepost) -> Job[[str], None]:
    @app.job
    async def store(word: str) -> None: ...

    return store


def portals() -> set[threading.Thread]:
    """The threads that sync callers wait for. Apps of other tests may have left one that is about to go."""
    return {thread for thread in threading.enumerate() if thread.name == "fencepost-portal"}


async def count(database_url: str, word: str) -> int:
    connection = await asyncpg.connect(database_url)
    try:
        sql = "select count(*) from fencepost.jobs where payload->>'word' = $1"
        return int(await connection.fetchval(sql, word))
    finally:
        await connection.close()


async def connections(database_url: str) -> int:
    connection = await asyncpg.connect(database_url)
    try:
        return int(
            await connection.fetchval(
                "select count(*) from pg_stat_activity "
                "where application_name = 'fencepost' and datname = current_database()"
            )
        )
    finally:
        await connection.close()


async def test_each_loop_has_its_own_connections(app: Fencepost, store: Job[[str], None], database_url: str) -> None:
    await store.enqueue("here")

    def elsewhere() -> None:
        # Two loops after each other, and nobody closes anything: the end of a loop does.
        for word in ("one", "two"):
            asyncio.run(enqueue(word))

    async def enqueue(word: str) -> None:
        await store.enqueue(word)

    await asyncio.to_thread(elsewhere)
    before = await connections(database_url)
    assert await count(database_url, "two") == 1
    await app.close()
    await wait_until(lambda: _none(database_url), 3)
    assert before > 0
    await store.enqueue("after")
    assert await count(database_url, "after") == 1


async def _none(database_url: str) -> bool:
    return await connections(database_url) == 0


async def test_loops_that_were_just_closed_keep_no_connections(
    app: Fencepost, store: Job[[str], None], database_url: str
) -> None:
    """Of programs that make a loop for each call, and close it with everything that was opened in it."""
    kept: set[int] = set()

    def call() -> None:
        for number in range(20):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(store.enqueue(f"round {number}"))
            loop.close()
            kept.add(len(app._producer.clients._open))

    await asyncio.to_thread(call)
    assert kept == {1}
    await store.enqueue("here")
    assert list(app._producer.clients._open) == [asyncio.get_running_loop()]
    own = (await app._producer.client()).database.connection_count

    async def are_own() -> bool:
        return await connections(database_url) == own

    await wait_until(are_own, 3)
    assert await count(database_url, "round 19") == 1


async def test_sync_callers_of_many_threads(app: Fencepost, store: Job[[str], None], database_url: str) -> None:
    before = portals()

    def work(number: int) -> str:
        handle = store.enqueue_sync(f"word {number % 3}")
        return app.wait(handle.status()).value

    def many() -> list[str]:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(work, range(60)))

    assert await asyncio.to_thread(many) == ["pending"] * 60
    assert await count(database_url, "word 2") == 20
    assert len(portals() - before) == 1


@pytest.mark.slow
async def test_sync_calls_inside_of_a_running_loop_are_refused(
    app: Fencepost, store: Job[[str], None], database_url: str
) -> None:
    """They would block it. In a sync connection nothing waits for a loop, so that is allowed."""
    seen: list[int] = []
    before = portals()

    @app.around_enqueue
    def count_them(drafts: list[Draft]) -> Iterator[None]:
        seen.append(len(drafts))
        yield

    handle = await store.enqueue("here")
    waits: list[Callable[[], object]] = [
        lambda: store.enqueue_sync("refused"),
        lambda: store.enqueue_many_sync([store.call("refused")]),
        lambda: app.enqueue_many_sync([store.call("refused")]),
        # Were it not closed, pytest would fail this test for a coroutine that was never awaited.
        lambda: app.wait(handle.status()),
    ]
    for wait in waits:
        with pytest.raises(FencepostError, match=r"await instead of waiting.*notebook"):
            wait()
        gc.collect()
    with psycopg.connect(database_url) as connection:
        store.within(connection).enqueue_sync("allowed")
        app.enqueue_many_sync([store.call("allowed")], within=connection)
    assert (await count(database_url, "refused"), await count(database_url, "allowed")) == (0, 2)
    assert seen == [1, 1, 1]
    assert portals() <= before
    assert await asyncio.to_thread(lambda: app.wait(handle.status())) == "pending"


async def test_waiting_inside_of_what_is_waited_for_is_refused(app: Fencepost, store: Job[[str], None]) -> None:
    async def inside() -> None:
        store.enqueue_sync("never")

    with pytest.raises(FencepostError, match="await instead of waiting"):
        await asyncio.to_thread(app.wait, inside())


async def test_an_error_in_a_coroutine_is_the_callers(app: Fencepost) -> None:
    async def fail() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await asyncio.to_thread(app.wait, fail())


def run(script: str, database_url: str, *arguments: str, **environment: str) -> str:
    """Run a script as people do; everything it warns of is an error."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), database_url, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == "", ended.stderr
    return ended.stdout


SCRIPT = """
import asyncio, os, sys, threading
from fencepost import Fencepost

app = Fencepost(sys.argv[1])

@app.job
async def store(word: str) -> None: ...
"""


async def test_a_script_ends_by_itself_and_leaves_nothing(database_url: str) -> None:
    script = SCRIPT + "store.enqueue_sync('sync')\nasyncio.run(store.enqueue('async'))\nprint('end')\n"
    assert await asyncio.to_thread(run, script, database_url) == "end\n"
    assert await count(database_url, "sync") == await count(database_url, "async") == 1


async def test_a_forked_child_has_connections_of_its_own(database_url: str) -> None:
    script = (
        SCRIPT
        + """
store.enqueue_sync('parent')
child = os.fork()
if not child:
    assert not app._producer.clients.are_open
    store.enqueue_sync('child')
    app.wait(app.close())
    sys.stdout.flush()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
store.enqueue_sync('parent')
"""
    )
    # Python warns of forks where there are threads, rightly; here it is meant.
    await asyncio.to_thread(run, script.replace("import asyncio", "import warnings, asyncio", 1), database_url)
    assert await count(database_url, "child") == 1
    assert await count(database_url, "parent") == 2


LOCKS = {
    "making": "producer._making",
    "address": "app._producer.address._lock",
    "clients": "app._producer.clients._lock",
    "portal": "app._producer._portal._lock",
    "ids": "ids._sequence._lock",
}


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
async def test_a_lock_that_a_thread_holds_at_a_fork_is_free_in_the_child(lock: str, database_url: str) -> None:
    script = f"""
from fencepost.client import producer
from fencepost.domain import ids

store.enqueue_sync('parent')
held, let_go = threading.Event(), threading.Event()

def hold():
    with {lock}:
        held.set()
        let_go.wait()

holder = threading.Thread(target=hold)
holder.start()
held.wait()
child = os.fork()
if not child:
    signal.alarm({limit(10):.0f})
    app._producer.address.release()
    store.enqueue_sync('child')
    app.wait(app.close())
    os._exit(0)
let_go.set()
holder.join()
_, status = os.waitpid(child, 0)
assert status == 0, f"the child ended with {{status}}"
store.enqueue_sync('parent')
"""
    await asyncio.to_thread(run, SCRIPT.replace("import asyncio", "import signal, asyncio") + script, database_url)
    assert (await count(database_url, "child"), await count(database_url, "parent")) == (1, 2)


@pytest.mark.slow
def test_a_forked_child_leaves_its_parents_embedded_server_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o711)
    script = (
        SCRIPT.replace("Fencepost(sys.argv[1])", "Fencepost()")
        + """
store.enqueue_sync('parent')
child = os.fork()
if not child:
    store.enqueue_sync('child')
    app.wait(app.close())
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
print(store.enqueue_sync('parent').effect)
"""
    )
    assert run(script, "", DATA_DIR=str(tmp_path / "data")) == "created\n"


async def test_a_worker_in_the_loop_runs_until_it_is_cancelled(
    app: Fencepost, store: Job[[str], None], database_url: str
) -> None:
    working = asyncio.create_task(app.run_worker(workers=2))
    handle = await store.enqueue("work")
    await handle.result(timeout=5)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert (await handle.get()).attempts == 1
    # Nobody is left to be woken.
    assert app._producer.wakers == []


async def test_a_worker_wakes_in_memory(
    app: Fencepost, store: Job[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app.worker():
        client = await app._producer.client()
        # With no hint sent at all, only memory is left: the worker looks by itself after 30 seconds.
        monkeypatch.setattr(client.hints, "offer", lambda queue_ids: queue_ids)
        monkeypatch.setattr("fencepost.store.jobs.due_hint", lambda queue_ids: None)
        await (await store.enqueue("a")).result(timeout=5)
        await (await store.enqueue("b")).result(timeout=5)


async def test_an_enqueue_without_a_schema_says_what_to_run(empty_url: str, settings: Settings) -> None:
    app = Fencepost(empty_url, settings=settings)

    @app.job
    async def store(word: str) -> None: ...

    for asking in (store.enqueue("a"), store.enqueue_many([store.call("a")]), app.handle(uuid4()).status()):
        with pytest.raises(SchemaMismatch, match=r"'fencepost' isn't there.*`fencepost migrate`.*`async with app`"):
            await asking
    with pytest.raises(SchemaMismatch, match="fencepost migrate"):
        await asyncio.to_thread(store.enqueue_sync, "a")
    # The error of a connection of the caller's is the caller's, as it is.
    connection = await asyncpg.connect(empty_url)
    with pytest.raises(asyncpg.InvalidSchemaNameError):
        await store.within(connection).enqueue("a")
    await connection.close()
    # The same connections go on as soon as it is there.
    async with app:
        assert await (await store.enqueue("a")).status() == "pending"
    app._producer.stop()


async def test_the_schema_is_made_by_open_and_not_by_an_enqueue(empty_url: str, settings: Settings) -> None:
    app = Fencepost(lambda: empty_url, schema="other", settings=settings)

    @app.job
    async def store(word: str) -> None: ...

    async with app:
        await store.enqueue("a")
        connection = await asyncpg.connect(empty_url)
        async with connection.transaction():
            await store.within(connection).enqueue("b")
        await connection.close()
        assert [job.type async for job in app.jobs()] == ["store", "store"]
        assert app.database_url() == empty_url


def test_settings_come_from_the_environment_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Fencepost(schema="mine")
    monkeypatch.setenv("MAX_ATTEMPTS", "7")
    monkeypatch.setenv("DATABASE_URL", "postgresql://somewhere/else")
    assert (app.settings.max_attempts, app.settings.schema) == (7, "mine")
    assert app.database_url() == "postgresql://somewhere/else"
    monkeypatch.setenv("MAX_ATTEMPTS", "none")
    other = Fencepost()
    with pytest.raises(InvalidSettings, match="MAX_ATTEMPTS"):
        _ = other.settings


@pytest.mark.slow
def test_without_an_address_the_embedded_database_is_used(tmp_path: Path) -> None:
    """Started by who comes first, shared with who comes later, and gone with who started it."""
    tmp_path.chmod(0o711)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o711)
    script = """
    import asyncio, logging, subprocess, sys
    from fencepost import Fencepost

    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    app = Fencepost()

    @app.job
    async def add(a: int, b: int) -> int:
        return a + b

    if len(sys.argv) > 2:
        # In one piece: other threads log to the same stream.
        effect = add.enqueue_sync(20, 22).effect
        sys.stdout.write(f"second {effect}\\n")
        sys.stdout.flush()
    else:
        async def main():
            async with app, app.worker():
                handle = await add.enqueue(1, 2)
                print(await handle.result(timeout=10), flush=True)
                second = subprocess.Popen([sys.executable, "-c", open(__file__).read(), "x", "second"])
                await asyncio.to_thread(second.wait)
                async for job in app.jobs():
                    await app.handle(job.id).result(timeout=10)
                    print(job.id is not None, flush=True)
        asyncio.run(main())
    """
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    ended = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**environment, "DATA_DIR": str(tmp_path / "data")},
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("started the embedded PostgreSQL")
    assert [line for line in lines[1:] if "PostgreSQL" not in line and "job " not in line] == [
        "3",
        "second created",
        "True",
        "True",
    ]
    assert not (tmp_path / "data" / "postgres" / "postmaster.pid").exists()
