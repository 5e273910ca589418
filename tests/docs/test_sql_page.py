"""The SQL of the page about SQL, run as written and in its order."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from chaos.world.places import make_folder
from fencepost.embedded import EmbeddedPostgres
from fencepost.store.database import Database
from fencepost.store.migrate import prepare
from tests.conftest import QUICK
from tests.docs.test_examples import ROOT, blocks

pytestmark = pytest.mark.anyio

PAGE = "docs/how-to/sql.md"


@pytest.fixture
async def page(database_url: str) -> AsyncIterator[Any]:
    """A database in which everything on the page was run, block after block."""
    connection = await asyncpg.connect(database_url)
    try:
        for block in blocks(PAGE, "sql"):
            await connection.execute(block)
        yield connection
    finally:
        await connection.execute("reset role")
        await connection.execute("drop owned by producer; drop role producer")
        await connection.close()


async def test_the_triggers_do_what_the_page_says(page: Any) -> None:
    jobs = await page.fetch(
        "select j.type, j.payload, j.queue_id, j.idempotency_key, p.run_at - j.created_at as waits "
        "from fencepost.jobs j join fencepost.pending p using (id, queue_id) order by j.created_at, j.id"
    )
    assert [job["type"] for job in jobs] == ["send_email", "send_email", "send_email", "index_order", "send_email"]
    plain, full, confirmation, index, unannounced = jobs
    assert json.loads(plain["payload"]) == json.loads(full["payload"]) == {"to": "ada@example.org"}
    assert full["waits"].total_seconds() == 90
    assert confirmation["idempotency_key"] == "order-1"
    assert json.loads(confirmation["payload"]) == {"to": "ada@example.org", "order": 1}
    assert json.loads(index["payload"]) == {"order": 1}
    assert index["waits"].total_seconds() > 2, "moved by the second update"
    assert json.loads(unannounced["payload"]) == {"to": "ada@example.org"}


async def test_an_order_that_is_rolled_back_leaves_no_job(page: Any) -> None:
    before = await page.fetchval("select count(*) from fencepost.jobs")
    transaction = page.transaction()
    await transaction.start()
    await page.execute("insert into orders (email) values ('bob@example.org')")
    assert await page.fetchval("select count(*) from fencepost.jobs") == before + 2
    await transaction.rollback()
    assert await page.fetchval("select count(*) from fencepost.jobs") == before


@pytest.fixture
def preparing_url() -> Iterator[str]:
    """A server that takes two-phase commit, which the others of the run don't."""
    folder = make_folder("fencepost-prepares-")
    try:
        with EmbeddedPostgres(folder / "data", options={**QUICK, "max_prepared_transactions": "2"}) as server:
            yield server.dsn
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.direct
async def test_what_wakes_nobody_can_be_prepared(preparing_url: str) -> None:
    [call] = [block for block in blocks(PAGE, "sql") if "wake => false" in block]
    database = Database(preparing_url)
    await database.open()
    await prepare(database, partition_days=3)
    await database.close()
    connection = await asyncpg.connect(preparing_url)
    for stored in (call, "select fencepost.enqueue('send_email', delay => '61 seconds')"):
        await connection.execute(f"begin; {stored}")
        await connection.execute("prepare transaction 'x'")
        await connection.execute("commit prepared 'x'")
    await connection.execute("begin; select fencepost.enqueue('send_email')")
    with pytest.raises(asyncpg.FeatureNotSupportedError, match="NOTIFY"):
        await connection.execute("prepare transaction 'x'")
    assert await connection.fetchval("select count(*) from fencepost.pending") == 2
    await connection.close()


async def test_a_role_can_do_what_the_page_says_and_no_more(page: Any) -> None:
    await page.execute("set role producer")
    assert await page.fetchval("select fencepost.enqueue('send_email', unique_key => 'u', unique_mode => 'replace')")
    for refused in ("delete from fencepost.pending", "select from fencepost.jobs", "select fencepost.complete('{}')"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await page.execute(refused)


async def test_every_argument_is_in_the_table(page: Any) -> None:
    text = await page.fetchval(
        "select pg_get_function_arguments(oid) from pg_proc where proname = 'enqueue' "
        "and pronamespace = cast('fencepost' as regnamespace)"
    )
    taken = [argument.split()[0].strip('"') for argument in text.split(", ")]
    rows = (ROOT / PAGE).read_text(encoding="utf-8")
    assert [name for name in taken if f"\n| `{name} " not in rows] == []
    assert len(taken) == 16
