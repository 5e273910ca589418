"""Chancy with its executor for async functions."""

from __future__ import annotations

import logging
from importlib.metadata import version

from chancy import Chancy, Queue, Worker, job
from meter import record

BEST_CONCURRENCY = 50
POOL = 10

logging.getLogger("chancy").setLevel(logging.WARNING)


@job(queue="bench")
async def noop(*, n: int, t: int | None = None):
    record({"n": n} if t is None else {"n": n, "t": t})


def describe(slots):
    return {
        "version": version("chancy"),
        "settings": {
            "concurrency": slots or BEST_CONCURRENCY,
            "pool": POOL,
            "eager_polling": True,
            "driver": f"psycopg {version('psycopg')}",
        },
        "left": "select count(*) from chancy_jobs where state not in ('succeeded', 'failed', 'expired')",
    }


def make_app(dsn, connections):
    return Chancy(dsn, max_connection_pool_size=connections, log=logging.getLogger("chancy"))


async def declare(app, concurrency):
    queue = Queue("bench", concurrency=concurrency, executor=Chancy.Executor.Async, eager_polling=True)
    await app.declare(queue, upsert=True)


async def install(dsn):
    async with make_app(dsn, 2) as app:
        await app.migrate()
        await declare(app, BEST_CONCURRENCY)


class Producer:
    def __init__(self, app):
        self.app = app

    async def one(self, payload):
        await self.app.push(noop.job.with_kwargs(**payload))

    async def many(self, payloads):
        async for _ in self.app.push_many([noop.job.with_kwargs(**payload) for payload in payloads]):
            pass

    async def close(self):
        await self.app.pool.close()


async def producer(dsn, connections):
    app = make_app(dsn, connections)
    await app.pool.open()
    return Producer(app)


async def work(dsn, slots, go):
    async with make_app(dsn, POOL) as app:
        await declare(app, slots or BEST_CONCURRENCY)
        await go()
        async with Worker(app) as worker:
            await worker.wait_for_shutdown()
