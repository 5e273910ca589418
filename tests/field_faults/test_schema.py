"""Numbers beyond 32 bits, and ids beyond what a float holds."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from fencepost.domain.context import Context
from fencepost.domain.job import Status
from tests.api.support import created
from tests.worker.support import Bench

pytestmark = pytest.mark.anyio

NARROW = """
    select c.relname || '.' || a.attname
      from pg_attribute a
      join pg_class c on c.oid = a.attrelid
      join pg_namespace n on n.oid = c.relnamespace
     where n.nspname = 'fencepost' and c.relkind in ('r', 'p') and not c.relispartition
       and a.attnum > 0 and a.atttypid in ('int2'::regtype, 'int4'::regtype)
     order by 1
"""
BOUNDED = {
    # Queues are named by people, and never removed.
    "queue_id", "id",
    # 0 to 100, each of them, by checks and by the limits of every door.
    "priority", "max_attempts", "attempt", "attempts",
    # Of a worker's machine; and the steps of the migrations.
    "pid", "slots", "number",
}  # fmt: skip


async def test_nothing_that_counts_jobs_is_narrow(bench: Bench) -> None:
    """Ids are UUIDs, tokens 64 bits wide. What is narrower counts queues, attempts at one job, or machines' things."""
    narrow = [row[0].split(".") for row in await bench.sql(NARROW)]
    assert [".".join(names) for names in narrow if names[1] not in BOUNDED] == []
    assert {table for table, column in narrow if column == "id"} == {"queues"}
    sequences = await bench.sql("select c.relname from pg_sequence join pg_class c on c.oid = seqrelid")
    assert [row[0] for row in sequences] == ["queues_id_seq"]


async def test_the_last_queues_there_can_be_work(bench: Bench, api: httpx2.AsyncClient) -> None:
    await bench.sql("alter table fencepost.queues alter column id restart with 2147483644")

    @bench.job("echo")
    async def echo(context: Context, payload: Any) -> Any:
        return payload

    ids = [await bench.enqueue("echo", 9_007_199_254_740_993, queue=f"q{number}") for number in range(3)]
    await bench.sql("update fencepost.pending set token = 9007199254740993")
    await bench.start()
    for ended in await bench.finished(*ids):
        assert (ended.status, ended.lease_token) == (Status.COMPLETED, 9_007_199_254_740_994)
        shown = (await api.get(f"/jobs/{ended.id}")).json()
        assert (shown["lease_token"], shown["result"]) == (9_007_199_254_740_994, 9_007_199_254_740_993)
    assert await bench.queue_id("q2") == 2_147_483_646
    assert (await created(api, queue="q2"))["queue"] == "q2"
