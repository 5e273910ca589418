"""The SQLAlchemy example."""

from __future__ import annotations

import signal
from collections import Counter
from functools import partial

import asyncpg
import pytest

from tests.processes.support import QUICK
from tests.worker.support import wait_until

from .support import Program, count, run, worker


@pytest.mark.slow
async def test_jobs_of_every_kind_of_connection_run_once_and_those_of_savepoints_never(database_url: str) -> None:
    said = run("sqlalchemy_shop.py", DATABASE_URL=database_url).stdout.splitlines()
    assert said == [
        "Ada paid 12.50 to Shop",
        "order 1 is on its way",
        "Bob paid 5.25 to Shop",
        "order 2 is on its way",
        "Ada 87.50",
        "Bob 14.75",
        "Shop 17.75",
    ]
    connection = await asyncpg.connect(database_url)
    try:
        rows = await connection.fetch(
            "select j.type, f.status from fencepost.jobs j left join fencepost.finished f using (id)"
        )
    finally:
        await connection.close()
    assert Counter(map(tuple, rows)) == {("pay", "completed"): 2, ("ship", "completed"): 2}


PAYING = """
import asyncio
from decimal import Decimal
from sqlalchemy import insert
from sqlalchemy_shop import Account, Base, app, create_async_engine, pay, URL

async def main():
    engine = create_async_engine(URL)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await connection.execute(insert(Account).values(owner="Ada", balance=100))
        await connection.execute(insert(Account).values(owner="Shop", balance=0))
        await pay.within(connection).enqueue_many([pay.call("Ada", "Shop", Decimal("0.01")) for _ in range(800)])
    await engine.dispose()

asyncio.run(main())
"""


@pytest.mark.slow
async def test_money_moves_once_however_often_workers_are_killed(database_url: str) -> None:
    run("-c", PAYING, DATABASE_URL=database_url)

    def paying() -> Program:
        return worker("sqlalchemy_shop:app", DATABASE_URL=database_url, MAX_ATTEMPTS="100", WORKERS="8", **QUICK)

    async def ended(*, more_than: int) -> bool:
        return await count(database_url, "fencepost.finished") > more_than

    for _ in range(5):
        finished = await count(database_url, "fencepost.finished")
        with paying() as program:
            # Few, since many more may have been made until this is seen: some have to be left for the last.
            await wait_until(partial(ended, more_than=finished + 20), 20, "the next payments")
            program.process.send_signal(signal.SIGKILL)
    assert 0 < await count(database_url, "fencepost.finished where status = 'completed'") < 800
    with paying():
        await wait_until(lambda: ended(more_than=799), 60, "the last payments")
    connection = await asyncpg.connect(database_url)
    try:
        assert await connection.fetchval("select count(*) from fencepost.finished where status = 'completed'") == 800
        balances = dict(map(tuple, await connection.fetch("select owner, cast(balance as text) from accounts")))
    finally:
        await connection.close()
    assert balances == {"Ada": "92.00", "Shop": "8.00"}
