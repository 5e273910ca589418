"""PgQueuer on asyncpg, one manager a process."""

from __future__ import annotations

import json
from datetime import timedelta
from importlib.metadata import version

import asyncpg
from meter import record
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

BEST_BATCH = 500


def describe(slots):
    return {
        "version": version("pgqueuer"),
        "settings": {
            "batch_size": slots or BEST_BATCH,
            "managers": 1,
            "durability": "durable",
            "driver": f"asyncpg {version('asyncpg')}",
        },
        "left": "select count(*) from pgqueuer",
    }


async def install(dsn):
    connection = await asyncpg.connect(dsn)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


class Producer:
    def __init__(self, source, driver):
        self.source = source
        self.queries = Queries(driver)

    async def one(self, payload):
        await self.queries.enqueue("noop", json.dumps(payload).encode())

    async def many(self, payloads):
        texts = [json.dumps(payload).encode() for payload in payloads]
        await self.queries.enqueue(["noop"] * len(texts), texts, [0] * len(texts))

    async def close(self):
        await self.source.close()


async def producer(dsn, connections):
    if connections == 1:
        connection = await asyncpg.connect(dsn)
        return Producer(connection, AsyncpgDriver(connection))
    pool = await asyncpg.create_pool(dsn, min_size=connections, max_size=connections)
    return Producer(pool, AsyncpgPoolDriver(pool))


async def work(dsn, slots, go):
    manager = PgQueuer(AsyncpgDriver(await asyncpg.connect(dsn)))

    @manager.entrypoint("noop")
    async def noop(job):
        record(json.loads(job.payload))

    await go()
    await manager.run(batch_size=slots or BEST_BATCH, dequeue_timeout=timedelta(seconds=30))
