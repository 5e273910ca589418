"""Wake-ups: few, after the commit, and only to whom they are meant for."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fencepost.domain.ids import new_id
from fencepost.errors import DatabaseUnavailable
from fencepost.store.database import Database
from fencepost.store.hints import MOST_QUEUES, QUIET_SECONDS, Hints
from fencepost.store.jobs import Jobs
from fencepost.store.listener import Listener
from fencepost.store.migrate import prepare
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore
from tests.conftest import with_database
from tests.patience import limit

from .support import Connection, claim, connect, job, until, waits_for_a_lock

pytestmark = pytest.mark.anyio


class Ear:
    """A listener of the store's, and what it heard."""

    def __init__(self, database: Database) -> None:
        self.heard: list[str] = []
        self.connections = 0
        self._news = asyncio.Event()
        self.listener = Listener(database, heard=self._take, connected=self._connect, probe_seconds=0.2)

    def _take(self, hint: str) -> None:
        self.heard.append(hint)
        self._news.set()

    def _connect(self) -> None:
        self.connections += 1
        self._news.set()

    async def hears(self, count: int) -> list[str]:
        """Wait until so many hints were heard."""
        await self._until(lambda: len(self.heard) >= count)
        return self.heard

    async def connects(self, count: int) -> None:
        await self._until(lambda: self.connections >= count)

    async def _until(self, condition: object) -> None:
        assert callable(condition)
        async with asyncio.timeout(10):
            while not condition():
                self._news.clear()
                await self._news.wait()


class Link:
    """The way from a listener to its server: counted, and cut on demand."""

    def __init__(self, listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_down = False
        self.fault = DatabaseUnavailable("the link is down")
        self.made: Any = None
        self._tries = 0
        self._news = asyncio.Event()
        self._connect = listener._database.connect_to_listen
        monkeypatch.setattr(listener._database, "connect_to_listen", self._try)

    async def _try(self) -> Any:
        self._tries += 1
        self._news.set()
        if self.is_down:
            raise self.fault
        self.made = await self._connect()
        return self.made

    async def is_tried(self, times: int) -> None:
        """Wait until it was tried so many times more, the last of them begun."""
        last = self._tries + times
        async with asyncio.timeout(limit(10)):
            while self._tries < last:
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def listening(database: Database) -> AsyncIterator[Ear]:
    ear = Ear(database)
    task = asyncio.get_running_loop().create_task(ear.listener.run())
    try:
        await ear.connects(1)
        yield ear
    finally:
        task.cancel()
        await asyncio.wait([task])


async def settle_down(ear: Ear, database: Database) -> list[str]:
    """Everything that was sent before has been heard when this mark is."""
    mark = f"mark {uuid.uuid4()}"
    await database.fetch("notify", channel=database.channel, hint=mark)
    await ear._until(lambda: mark in ear.heard)
    return [hint for hint in ear.heard if not hint.startswith("mark")]


async def test_an_enqueue_is_heard(jobs: Jobs, queues: Queues, database: Database) -> None:
    async with listening(database) as ear:
        await jobs.enqueue([job()])
        assert await ear.hears(1) == [f"due {await queues.id_of('default')}"]


async def test_one_enqueue_for_many_queues_is_one_hint(jobs: Jobs, queues: Queues, database: Database) -> None:
    async with listening(database) as ear:
        await jobs.enqueue([job(queue=f"q{number}") for number in range(20)])
        ids = sorted([await queues.id_of(f"q{number}") for number in range(20)])
        assert await ear.hears(1) == ["due " + ",".join(map(str, ids))]


@pytest.mark.direct  # Its bound is on how many quiet moments pass, and each enqueue takes longer there.
async def test_a_burst_is_one_hint_and_a_trailing_one(database: Database) -> None:
    """With a clock that stands still, everything after the first is inside the quiet moment."""
    now = 100.0
    hints = Hints(database, clock=lambda: now)
    jobs = Jobs(database, Queues(database, hints), hints)
    async with listening(database) as ear:
        await jobs.enqueue([job()])
        assert await ear.hears(1) == ["due 1"]
        began = time.monotonic()
        for _ in range(50):
            await jobs.enqueue([job()])
        await hints.close()
        moments = (time.monotonic() - began) / QUIET_SECONDS
        heard = await settle_down(ear, database)
    assert heard[0] == "due 1"
    assert 2 <= len(heard) <= 2 + moments, "at most one more for each quiet moment that really passed"
    assert set(heard) == {"due 1"}


async def test_offers_are_rationed_by_queue(database: Database) -> None:
    now = 100.0
    hints = Hints(database, clock=lambda: now)
    assert hints.offer({1, 2}) == {1, 2}
    assert hints.offer({1}) == set()
    assert hints.offer({2, 3}) == {3}
    now += QUIET_SECONDS / 2
    assert hints.offer({1, 2, 3}) == set()
    now += QUIET_SECONDS
    assert hints.offer({1, 2, 3}) == {1, 2, 3}
    assert hints.immediate({1}) == "due 1", "what a person asked for doesn't wait"
    assert hints.offer(set()) == set()
    await hints.close()


async def test_what_is_owed_is_paid(database: Database) -> None:
    now = 100.0
    hints = Hints(database, clock=lambda: now)
    async with listening(database) as ear:
        assert hints.offer({7}) == {7}
        assert hints.offer({7}) == set()
        hints.committed({7}, named=set())
        assert await ear.hears(1) == ["due 7"]
        assert hints.offer({7}) == set()
        hints.committed({7}, named=set())
        await hints.close()
        assert await ear.hears(2) == ["due 7", "due 7"]
        await hints.close()


@pytest.mark.parametrize("by", ["library", "function"])
async def test_a_hint_for_more_queues_than_one_can_carry_is_several(
    jobs: Jobs, queues: Queues, database: Database, sql: Connection, by: str
) -> None:
    """Each queue is told of, and not the first 500 alone."""
    names = [f"queue-{number}" for number in range(MOST_QUEUES + 120)]
    async with listening(database) as ear:
        if by == "library":
            await jobs.enqueue([job(queue=name) for name in names])
        else:
            record = {"type": "work", "payload": {}, "max_attempts": 1}
            records = [{"id": str(new_id()), "queue": name, **record} for name in names]
            await sql.execute("select fencepost.enqueue_jobs($1)", json.dumps(records))
        heard = await ear.hears(2)
        told = [[int(one) for one in hint.removeprefix("due ").split(",")] for hint in heard]
        assert [len(one) for one in told] == [MOST_QUEUES, 120]
        assert {one for some in told for one in some} == {await queues.id_of(name) for name in names}


async def test_what_is_owed_to_many_queues_is_paid_to_all(database: Database) -> None:
    hints = Hints(database)
    everywhere = set(range(1, 2 * MOST_QUEUES + 2))
    async with listening(database) as ear:
        hints.committed(everywhere, named=set())
        await hints.close()
        heard = await ear.hears(3)
    assert {int(one) for hint in heard for one in hint.removeprefix("due ").split(",")} == everywhere


async def test_no_hint_is_paid_before_the_commit_that_it_is_owed_for(
    database: Database, database_url: str, sql: Connection
) -> None:
    """
    The story in `Hints.offer`: of two enqueues that are both too soon for a hint of their own, one commits late.

    The trailing hint of the first comes before it; so it is owed one more.
    """
    hints = Hints(database, clock=lambda: 100.0)
    slow, quick = [Jobs(database, Queues(database, hints), hints) for _ in range(2)]
    await quick.enqueue([job()])
    holder = await connect(database_url)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("select fencepost.enqueue('work', idempotency_key => 'k')")
    async with listening(database) as ear:
        late = asyncio.create_task(slow.enqueue([job(idempotency_key="k")]))
        await waits_for_a_lock(sql)
        await quick.enqueue([job()])
        assert await ear.hears(1) == ["due 1"]
        await transaction.rollback()
        await asyncio.wait_for(late, 10)
        assert await ear.hears(2) == ["due 1", "due 1"]
    await holder.close()
    await hints.close()


async def test_workers_of_the_same_process_are_woken_after_the_commit(database: Database, sql: Connection) -> None:
    seen: list[tuple[set[int], int]] = []
    count: list[asyncio.Task[int]] = []

    async def stored() -> int:
        return int(await sql.fetchval("select count(*) from fencepost.pending"))

    def local(queue_ids: object) -> None:
        assert isinstance(queue_ids, set)
        seen.append((queue_ids, len(count)))
        count.append(asyncio.get_running_loop().create_task(stored()))

    hints = Hints(database, local=local)
    jobs = Jobs(database, Queues(database, hints), hints)
    await jobs.enqueue([job()])
    assert [queue_ids for queue_ids, _ in seen] == [{1}]
    assert await count[0] == 1
    await hints.close()


async def test_a_hint_comes_with_the_commit_and_not_without(
    database: Database, queues: Queues, sql: Connection
) -> None:
    queue_id = await queues.ensure("default", 0)
    record = (
        b'[{"id": "%s", "queue": "default", "queue_id": %d, "type": "work", "priority": 0, "payload": {}, '
        b'"max_attempts": 1}]'
    )

    class NotAfterAll(Exception):
        pass

    async def store(*, and_roll_back: bool) -> None:
        async with database.transaction() as session:
            jobs = record % (str(new_id()).encode(), queue_id)
            await session.fetch("enqueue_plain", jobs=jobs, channel=database.channel, hint="due 1")
            if and_roll_back:
                raise NotAfterAll

    async with listening(database) as ear:
        with pytest.raises(NotAfterAll):
            await store(and_roll_back=True)
        assert await settle_down(ear, database) == [], "rolled back, so nobody is woken"
        async with database.transaction() as session:
            await session.fetch(
                "enqueue_plain",
                jobs=record % (str(new_id()).encode(), queue_id),
                channel=database.channel,
                hint="due 1",
            )
            assert await settle_down(ear, database) == [], "not yet committed"
        assert await settle_down(ear, database) == ["due 1"]
        assert await sql.fetchval("select count(*) from fencepost.pending") == 1


async def test_replays_and_refusals_wake_nobody(jobs: Jobs, database: Database) -> None:
    await jobs.enqueue([job(idempotency_key="k")])
    await asyncio.sleep(2 * QUIET_SECONDS)
    async with listening(database) as ear:
        await jobs.enqueue([job(idempotency_key="k")])
        assert await settle_down(ear, database) == []


async def test_cancel_retry_pause_and_resume_are_heard(
    jobs: Jobs, queues: Queues, database: Database, worker_store: WorkerStore
) -> None:
    made = job()
    await jobs.enqueue([made])
    await claim(worker_store, await queues.id_of("default"))
    async with listening(database) as ear:
        await jobs.cancel(made.id)
        assert await ear.hears(1) == [f"cancel 1 {made.id}"]
        await queues.resume("default")
        assert (await ear.hears(2))[1] == "due 1"


@pytest.mark.slow
async def test_a_listener_reconnects_and_says_so(
    jobs: Jobs, queues: Queues, database: Database, sql: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(database) as ear:
        for number in range(1, 4):
            assert ear.listener.is_connected
            [ended] = await sql.fetch(
                "select pg_terminate_backend(pid) as done from pg_stat_activity "
                "where datname = current_database() and query ilike 'listen %'"
            )
            assert ended["done"]
            await ear.connects(number + 1)
            before = len(ear.heard)
            await queues.ensure("default", 0)
            await jobs.enqueue([job()])
            await ear.hears(before + 1)
            await asyncio.sleep(2 * QUIET_SECONDS)


@pytest.mark.slow
async def test_a_listener_that_cannot_connect_keeps_trying(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its database isn't there yet."""
    server = await connect(server_url)
    later = f"fencepost_{uuid.uuid4().hex[:12]}"
    ear = Ear(Database(with_database(server_url, later)))
    link = Link(ear.listener, monkeypatch)
    task = asyncio.get_running_loop().create_task(ear.listener.run())
    try:
        await link.is_tried(2)
        assert not ear.listener.is_connected
        await server.execute(f"create database {later}")
        await ear.connects(1)
    finally:
        task.cancel()
        await asyncio.wait([task])
        await server.execute(f"drop database if exists {later} with (force)")
        await server.close()


async def test_each_outage_is_told_of_once(
    database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second too, for the very reason of the first; and not once a try."""
    monkeypatch.setattr("fencepost.store.listener._LONGEST_PAUSE_SECONDS", 0.02)
    ear = Ear(database)
    link = Link(ear.listener, monkeypatch)
    task = asyncio.get_running_loop().create_task(ear.listener.run())

    def told() -> int:
        return sum(record.__dict__.get("reason") == str(link.fault) for record in caplog.records)

    try:
        for number in range(1, 4):
            await ear.connects(number)
            link.is_down = True
            link.made.terminate()
            await link.is_tried(3)
            assert told() == number
            link.is_down = False
        await ear.connects(4)
        assert told() == 3
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_what_anybody_sends_on_the_channel_does_no_harm(database: Database, sql: Connection) -> None:
    """Hints are read by people's code too: what it can't read is passed over."""
    heard: list[str] = []

    def picky(hint: str) -> None:
        heard.append(hint)
        int(hint)

    connected = asyncio.Event()
    listener = Listener(database, heard=picky, connected=connected.set)
    task = asyncio.get_running_loop().create_task(listener.run())
    await connected.wait()
    for hint in ("nonsense", "", "x" * 7_000, "\ufffd", "1"):
        await sql.execute("select pg_notify($1, $2)", database.channel, hint)

    async def all_heard() -> bool:
        return len(heard) == 5

    await until(all_heard)
    assert listener.is_connected
    task.cancel()
    await asyncio.wait([task])


async def test_two_schemas_of_one_database_never_hear_each_other(database_url: str) -> None:
    databases = [
        Database(database_url, schema=schema, connections=3) for schema in ("fencepost", "Job Queue", "job queue")
    ]
    for database in databases:
        await database.open()
        await prepare(database, partition_days=3)
    try:
        async with listening(databases[0]) as one, listening(databases[1]) as two, listening(databases[2]) as three:
            ears = [one, two, three]
            for database in databases:
                hints = Hints(database)
                await Jobs(database, Queues(database, hints), hints).enqueue([job()])
                await hints.close()
            for ear, database in zip(ears, databases, strict=True):
                assert await settle_down(ear, database) == ["due 1"]
    finally:
        for database in databases:
            await database.close()


async def test_hints_that_cannot_be_sent_are_only_late(database_url: str) -> None:
    database = Database(database_url, connections=1)
    hints = Hints(database)
    assert hints.offer({1}) == {1}
    assert hints.offer({1}) == set()
    hints.committed({1}, named=set())
    await asyncio.sleep(3 * QUIET_SECONDS)
    await hints.close()
    with pytest.raises(DatabaseUnavailable):
        await database.ping()


async def test_the_connection_used_for_hints_never_holds_a_transaction_open(
    database: Database, sql: Connection
) -> None:
    async with listening(database) as ear:
        await database.fetch("notify", channel=database.channel, hint="due 1")
        await ear.hears(1)
        rows = await sql.fetch(
            "select state from pg_stat_activity where datname = current_database() and query ilike 'listen %'"
        )
        assert [row["state"] for row in rows] == ["idle"]
