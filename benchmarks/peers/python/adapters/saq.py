"""SAQ on its PostgreSQL queue. It has no bulk call."""

from __future__ import annotations

from importlib.metadata import version

from meter import record
from saq import Queue, Worker

BEST_CONCURRENCY = 50
POOL = 20


def describe(slots):
    return {
        "version": version("saq"),
        "settings": {
            "concurrency": slots or BEST_CONCURRENCY,
            "pool": f"4 to {POOL}",
            "driver": f"psycopg {version('psycopg')}",
        },
        "left": "select count(*) from saq_jobs where status in ('new', 'queued', 'active', 'aborting')",
    }


async def open_queue(dsn, connections):
    queue = Queue.from_url(dsn, name="bench", min_size=min(4, connections), max_size=connections)
    await queue.connect()
    return queue


async def install(dsn):
    queue = await open_queue(dsn, 2)
    await queue.disconnect()


class Producer:
    many = None

    def __init__(self, queue):
        self.queue = queue

    async def one(self, payload):
        await self.queue.enqueue("noop", **payload)

    async def close(self):
        await self.queue.disconnect()


async def producer(dsn, connections):
    # Its enqueue and its listener take a connection each.
    return Producer(await open_queue(dsn, max(2, connections)))


async def noop(context, **payload):
    record(payload)


async def work(dsn, slots, go):
    worker = Worker(await open_queue(dsn, POOL), functions=[noop], concurrency=slots or BEST_CONCURRENCY)
    await go()
    await worker.start()
