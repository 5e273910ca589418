"""Oban for Python, with the JSON functions that its own command line installs."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

import orjson
from meter import record
from oban import Oban
from oban import worker as oban_worker
from oban.schema import install as install_schema
from psycopg.types.json import set_json_dumps, set_json_loads

BEST_LIMIT = 100
POOL = 10

set_json_dumps(orjson.dumps)
set_json_loads(orjson.loads)


@oban_worker(queue="default", max_attempts=5)
class Noop:
    async def process(self, job):
        record(job.args)


def describe(slots):
    return {
        "version": version("oban"),
        "settings": {
            "limit": slots or BEST_LIMIT,
            "pool": f"1 to {POOL}",
            "json": "orjson",
            "driver": f"psycopg {version('psycopg')}",
        },
        "left": "select count(*) from oban_jobs where state <> 'completed'",
    }


async def install(dsn):
    pool = await Oban.create_pool(dsn=dsn, min_size=1, max_size=2)
    await install_schema(pool)
    await pool.close()


class Producer:
    def __init__(self, pool):
        self.pool = pool
        self.oban = Oban(pool=pool, leadership=False)

    async def one(self, payload):
        await self.oban.enqueue(Noop.new(payload))

    async def many(self, payloads):
        await self.oban.enqueue_many([Noop.new(payload) for payload in payloads])

    async def close(self):
        await self.pool.close()


async def producer(dsn, connections):
    return Producer(await Oban.create_pool(dsn=dsn, min_size=1, max_size=connections))


async def work(dsn, slots, go):
    pool = await Oban.create_pool(dsn=dsn, min_size=1, max_size=POOL)
    await go()
    async with Oban(pool=pool, queues={"default": slots or BEST_LIMIT}):
        await asyncio.Event().wait()
