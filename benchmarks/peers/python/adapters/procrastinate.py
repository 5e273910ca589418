"""Procrastinate on psycopg's pool, woken by LISTEN."""

from __future__ import annotations

from importlib.metadata import version

import procrastinate
from meter import record

BEST_CONCURRENCY = 20
POOL = 10


def make_app(dsn, connections):
    connector = procrastinate.PsycopgConnector(conninfo=dsn, min_size=connections, max_size=connections)
    app = procrastinate.App(connector=connector)

    @app.task(name="noop", queue="bench")
    async def noop(**payload):
        record(payload)

    return app, noop


def describe(slots):
    return {
        "version": version("procrastinate"),
        "settings": {
            "concurrency": slots or BEST_CONCURRENCY,
            "pool": POOL,
            "listen": "on",
            "driver": f"psycopg {version('psycopg')}",
        },
        "left": "select count(*) from procrastinate_jobs where status in ('todo', 'doing')",
    }


async def install(dsn):
    app, _ = make_app(dsn, 1)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


class Producer:
    def __init__(self, app, task):
        self.app = app
        self.task = task

    async def one(self, payload):
        await self.task.defer_async(**payload)

    async def many(self, payloads):
        await self.task.batch_defer_async(*payloads)

    async def close(self):
        await self.app.close_async()


async def producer(dsn, connections):
    app, task = make_app(dsn, connections)
    await app.open_async()
    return Producer(app, task)


async def work(dsn, slots, go):
    app, _ = make_app(dsn, POOL)
    async with app.open_async():
        await go()
        await app.run_worker_async(queues=["bench"], concurrency=slots or BEST_CONCURRENCY, wait=True)
