"""What the tests behind a pooler share."""

from __future__ import annotations

import asyncio
import uuid

from fencepost.domain.ids import new_id
from fencepost.domain.job import NewJob
from fencepost.store.database import HOT_SESSION, Database
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.listing import Filter, Listing
from fencepost.store.pooling import Pooler
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore
from tests.store.support import claim, completed

SWAPPED = ("prepared statement", "another connection")
"""What the error of a statement that was left behind on another connection says."""


async def opened(url: str, *, schema: str = "fencepost", connections: int = 10) -> Database:
    """A pool in transaction mode, with the settings of workers."""
    database = Database(url, schema=schema, connections=connections, session=HOT_SESSION, pooler=Pooler.TRANSACTION)
    await database.open()
    return database


async def live_through(database: Database, *, queue: str) -> None:
    """Every operation of a job's life, in a queue of its own."""
    hints = Hints(database)
    queues = Queues(database, hints)
    jobs = Jobs(database, queues, hints)
    store = WorkerStore(database, uuid.uuid4())
    made = [
        NewJob(id=new_id(), type="work", queue=queue, max_attempts=3, payload=b'{"a":[1,null]}', tags=("t",))
        for _ in range(2)
    ]
    await jobs.enqueue(made)
    queue_id = await queues.id_of(queue)
    leases = await claim(store, queue_id, slots=2)
    assert {lease.id for lease in leases} == {one.id for one in made}
    await store.extend(queue_id, [(lease.id, lease.token) for lease in leases], lease_seconds=60)
    await store.heartbeat(host="h", pid=1, version="v", slots=1)
    await store.recover(queue_id, after=None, max_rows=10)
    await store.settle(queue_id, [completed(lease, b'"\xc3\xa9"') for lease in leases])
    read = await jobs.get(made[0].id)
    assert bytes(read.result or b"") == b'"\xc3\xa9"'
    page = await Listing(database, queues).page(Filter(queue=queue), limit=10)
    assert {job.id for job in page.jobs} == {one.id for one in made}
    await queues.pause(queue)
    await queues.resume(queue)
    await hints.close()


async def lives(database: Database, *, callers: int, rounds: int, prefix: str = "q") -> None:
    """So many at once, so many times one after the other."""

    async def call(number: int) -> None:
        for turn in range(rounds):
            await live_through(database, queue=f"{prefix}{number}-{turn}")

    await asyncio.gather(*(call(number) for number in range(callers)))
