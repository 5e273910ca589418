"""fencepost as a service uses it: the parts of the library, in its own environment."""

from __future__ import annotations

import asyncio
import logging
from importlib.metadata import version

import msgspec
from meter import record

from fencepost.app import Fencepost
from fencepost.domain.ids import new_id
from fencepost.domain.job import NewJob
from fencepost.settings import Settings
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.migrate import prepare
from fencepost.store.queues import Queues
from fencepost.telemetry.events import Events
from fencepost.worker.worker import Worker

BEST_SLOTS = 500
DEFAULTS = Settings()

logging.getLogger("fencepost").setLevel(logging.WARNING)


def describe(slots):
    return {
        "version": version("fencepost"),
        "settings": {
            "workers": slots or BEST_SLOTS,
            "driver": f"asyncpg {version('asyncpg')}",
            "history": "kept",
            "leases": "fenced",
            "logs": "warnings",
        },
        "left": "select (select count(*) from fencepost.pending) + (select count(*) from fencepost.leases)",
    }


async def install(dsn):
    database = Database(dsn)
    await database.open()
    await prepare(database, partition_days=DEFAULTS.partition_days)
    await database.close()


def job(payload):
    return NewJob(id=new_id(), type="noop", payload=msgspec.json.encode(payload), max_attempts=DEFAULTS.max_attempts)


class Producer:
    def __init__(self, database):
        self.database = database
        self.hints = Hints(database)
        self.jobs = Jobs(database, Queues(database, self.hints), self.hints)

    async def one(self, payload):
        await self.jobs.enqueue([job(payload)])

    async def many(self, payloads):
        await self.jobs.enqueue([job(payload) for payload in payloads])

    async def close(self):
        await self.hints.close()
        await self.database.close()


async def producer(dsn, connections):
    database = Database(dsn, connections=DEFAULTS.database_connections)
    await database.open()
    return Producer(database)


async def work(dsn, slots, go):
    app = Fencepost()

    async def noop(context, payload):
        record(payload)

    app.register("noop", noop)
    worker = Worker(dsn, app.types, Settings(workers=slots or BEST_SLOTS), Events())
    await go()
    await worker.start()
    await asyncio.Event().wait()
