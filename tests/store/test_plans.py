"""
The plans of the hot statements, in the state that makes planners go wrong.

The tables were analysed while they held nothing but dead rows, and then filled, while a
transaction elsewhere keeps vacuum away: to the planner everything looks empty, so a scan
of a whole table, or of a whole queue's index, seems to cost nothing.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec
import pytest

from fencepost.store import statements
from fencepost.store.database import HOT_SESSION
from fencepost.store.jobs import Jobs
from fencepost.store.queues import Queues
from fencepost.store.sessions import SESSION
from fencepost.store.workers import WorkerStore
from fencepost.worker.cursors import Cursors
from tests.conftest import TEMPLATE, with_database

from .support import Connection, connect, job

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LIVE = 50_000
DEAD = 100_000
BUFFERS = 1_500
"""What a statement over ten jobs may touch. A walk over one of the filled tables touches thousands."""

GENERIC = {"plan_cache_mode": "force_generic_plan"}
"""What the driver's prepared statements come to after a few calls."""

TINY = {"queues", "lanes", "workers"}

NEEDED = {
    "pending_lane": ("queue_id =", "priority ="),
    "leases_expiry": ("queue_id =", "locked_until"),
    # Each partition's copy of finished_unsuccessful has a name of its own.
    "status_id": ("status =", "id "),
    "idempotency_keys_job": ("job_id =",),
    "idempotency_keys": ("key =",),
    "unique_keys": ("type =", "key ="),
}
"""What a scan of an index must be bounded by; every other index is a primary key that begins with the id."""

_FILL = """
create table sample (id uuid, kind text, n int);
insert into sample
select (first.half || substr(gen_random_uuid()::text, 16))::uuid, (array['pending', 'leases', 'finished'])[1 + n % 3], n
  from (select substr(fencepost.first_id_at(now())::text, 1, 14) || '7' as half offset 0) first,
       generate_series(1, {rows}) n;
insert into fencepost.jobs
select id, 1 + n % 2, 'work', n % 7 / 6 * 5, '{{"n": 1}}', 5, null, null, null, now(), 'key-' || n from sample;
insert into fencepost.pending
select id, 1 + n % 2, n % 7 / 6 * 5, 0, 1, clock_timestamp() from sample where kind = 'pending';
insert into fencepost.leases
select id, 1 + n % 2, n % 7 / 6 * 5, 1, 2, gen_random_uuid(), now() - interval '1 hour',
       now() + (n - 30) * interval '1 second'
  from sample where kind = 'leases';
insert into fencepost.finished
select id, 1 + n % 2, (array['completed', 'dead_letter'])[1 + n / 3 % 2], 1, 2, now(), now() from sample
 where kind = 'finished';
insert into fencepost.attempts
select id, 1 + n % 2, 1, 1, 'failed', gen_random_uuid(), now(), now(), 'E', 'e', null from sample;
insert into fencepost.idempotency_keys select 'key-' || n, id, 1 + n % 2, 'now' from sample;
insert into fencepost.unique_keys select 'work', 'key-' || n, id, 1 + n % 2, 'finished' from sample;
"""


async def _spoil(url: str) -> None:
    """Fill the tables with dead rows, let them be analysed, then fill them with live ones."""
    sql = await connect(url)
    partitioned = ("jobs", "finished", "attempts")
    parts = await sql.fetch(
        "select c.oid::regclass::text as name from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname = 'fencepost' and c.relkind = 'r'"
    )
    for part in parts:
        await sql.execute(f"alter table {part['name']} set (autovacuum_enabled = off)")
    await sql.execute("insert into fencepost.queues (name) values ('one'), ('two')")
    await sql.execute("insert into fencepost.lanes values (1, 0), (1, 5), (2, 0), (2, 5)")
    await sql.execute(_FILL.format(rows=3 * DEAD))
    await sql.execute(
        "".join(
            f"delete from fencepost.{table};"
            for table in ("pending", "leases", "idempotency_keys", "unique_keys", *partitioned)
        )
        + "drop table sample; analyze;"
    )
    await sql.execute(_FILL.format(rows=3 * LIVE))
    await sql.close()


class Spoilt:
    """The spoilt database, and some ids in it."""

    def __init__(self, url: str, runner: asyncio.Runner) -> None:
        self.url = url
        self.runner = runner
        self.samples: dict[str, list[uuid.UUID]] = {}

    async def look(self) -> None:
        sql = await connect(self.url)
        for kind in ("pending", "leases", "finished"):
            rows = await sql.fetch(f"select id from fencepost.{kind} where queue_id = 1 order by id desc limit 10")
            self.samples[kind] = [row["id"] for row in rows]
        await sql.close()


@pytest.fixture(scope="module")
def spoilt(server_url: str, template_url: str) -> Iterator[Spoilt]:
    name = f"fencepost_{uuid.uuid4().hex[:12]}"
    with asyncio.Runner() as runner:

        async def begin() -> tuple[Connection, Connection]:
            server = await connect(server_url)
            await server.execute(f"create database {name} template {TEMPLATE}")
            pin = await connect(with_database(server_url, name))
            await pin.execute("begin isolation level repeatable read")
            await pin.fetchval("select count(*) from fencepost.jobs")
            await _spoil(with_database(server_url, name))
            return server, pin

        server, pin = runner.run(begin())
        database = Spoilt(with_database(server_url, name), runner)
        runner.run(database.look())
        yield database

        async def end() -> None:
            await pin.close()
            await server.execute(f"drop database {name} with (force)")
            await server.close()

        runner.run(end())


def _text(value: object) -> str:
    """A value as a literal, for EXECUTE."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return "'{" + ",".join("null" if item is None else f'"{item}"' for item in value) + "}'"
    return "'" + str(value).replace("'", "''") + "'"


@asynccontextmanager
async def _prepared(url: str, name: str, session: dict[str, str]) -> AsyncIterator[tuple[Connection, Any]]:
    """A session with the statement prepared, and a function that explains it with values."""
    connection = await asyncpg.connect(url, server_settings={**SESSION, **session})
    statement = statements.load(name, "fencepost")
    await connection.execute(f"prepare explained as {statement.text}")

    async def explain(values: dict[str, object], *, analyze: bool = False) -> dict[str, Any]:
        listed = ", ".join(_text(value) for value in statement.arguments(values))
        call = f"execute explained({listed})" if listed else "execute explained"
        options = "analyze, buffers, format json" if analyze else "format json"
        transaction = connection.transaction()
        await transaction.start()
        try:
            plan: dict[str, Any] = json.loads(await connection.fetchval(f"explain ({options}) {call}"))[0]["Plan"]
            return plan
        finally:
            await transaction.rollback()

    try:
        yield connection, explain
    finally:
        await connection.close()


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


def _faults(plan: dict[str, Any]) -> list[str]:
    """What in a plan would read more than the rows it was asked for."""
    found = []
    for node in _nodes(plan):
        kind, table, index = node["Node Type"], node.get("Relation Name", ""), node.get("Index Name", "")
        if kind == "Seq Scan" and table not in TINY:
            found.append(f"{kind} {table}")
        if kind in ("Index Scan", "Index Only Scan", "Bitmap Index Scan") and table not in TINY:
            condition = node.get("Index Cond", "")
            needed = next((needed for name, needed in NEEDED.items() if name in index), ("id ",))
            if not all(part in condition for part in needed):
                found.append(f"{kind} {table} by {index} on {condition or 'nothing'}")
    return found


LANES = {"cursors": json.dumps({lane: ["now", str(uuid.UUID(int=0))] for lane in (0, 5)})}
HINTED = {"channel": "c", "hint": "due 1"}


def _statements(samples: dict[str, list[uuid.UUID]]) -> dict[str, tuple[bool, dict[str, object]]]:
    """Every hot statement: whether workers run it, and what with."""
    pending, leased, finished = samples["pending"], samples["leases"], samples["finished"]
    record = {
        "id": str(uuid.uuid4()), "queue": "one", "queue_id": 1, "type": "work", "priority": 0, "payload": {},
        "max_attempts": 3, "idempotency_key": "key-5", "schedule": "now",
    }  # fmt: skip
    page: dict[str, object] = {
        "before": uuid.UUID(int=(1 << 128) - 1), "not_before": uuid.UUID(int=0), "scan_rows": 100, "page_rows": 11,
        "type": None, "queue_id": None, "tag": None,
    }  # fmt: skip
    ended = {"ids": finished, "low": min(finished), "high": max(finished)}
    ends = {
        "ids": leased,
        "tokens": [2] * len(leased),
        "details": json.dumps({f"{one} 2": {"ending": "failed", "status": "pending"} for one in leased[::2]}),
    }
    worker: dict[str, dict[str, object]] = {
        "claim": {
            **LANES, "queue_id": 1, "slots": 10, "worker_id": uuid.UUID(int=1), "lease_seconds": 60,
            "aging_seconds": 60, "contended": False,
        },
        "settle": {"queue_id": 1, **ends},
        "turn": {
            **LANES, "queue_id": 1, "slots": 10, "worker_id": uuid.UUID(int=1), "lease_seconds": 60,
            "aging_seconds": 60, "contended": False, **ends,
        },
        "extend": {"queue_id": 1, "ids": leased, "tokens": [2] * 10, "lease_seconds": 60},
        "recover": {"queue_id": 1, "after": "now", "max_rows": 10, "spared": 0},
        "due_queues": {
            "cursors": json.dumps({lane: ["now", str(uuid.UUID(int=0))] for lane in ("1:0", "1:5", "2:0", "2:5")})
        },
        "first_pending": {**LANES, "queue_id": 1},
        "cancel_requests": {"queue_id": 1, "ids": leased},
        "progress": {
            "queue_id": 1,
            "ids": leased,
            "tokens": [2] * 10,
            "progress": json.dumps({f"{one} 2": {"fraction": 0.5} for one in leased}),
        },
        "completed": {"queue_id": 1, "ids": finished, "tokens": [2] * 10},
        "lock_lease": {"queue_id": 1, "id": leased[0], "token": 2},
        "written": {"queue_id": 1, "id": finished[0], "token": 2, "ending": "failed"},
    }  # fmt: skip
    api: dict[str, dict[str, object]] = {
        "enqueue": {"jobs": json.dumps([record]), "whole": True, **HINTED},
        "enqueue_plain": {"jobs": json.dumps([record]), **HINTED},
        "enqueue_jobs": {"jobs": json.dumps([record])},
        "enqueue_one": {
            "id": uuid.uuid4(),
            "queue": "one",
            "queue_id": 1,
            "type": "work",
            "priority": 0,
            "payload": "{}",
            "max_attempts": 3,
            "timeout_seconds": None,
            "run_at": None,
            "delay_microseconds": None,
            "request_id": None,
            "tags": None,
            "metadata": None,
            "trace_context": None,
            "expires_at": None,
            "expires_microseconds": None,
            **HINTED,
        },
        "read_jobs": {"ids": [*pending[:3], *leased[:3], *finished[:3]], "payloads": True},
        "read_attempts": {"id": pending[0], "queue_id": 1},
        "job_queue": {"id": pending[0]},
        "cancel": {"id": pending[0], "queue_id": 1, **HINTED},
        "retry": {"id": finished[0], "queue_id": 1, **HINTED},
        "list_all": page,
        "list_pending": page,
        "list_processing": page,
        "list_completed": page,
        "list_unsuccessful": {**page, "status": "dead_letter"},
        "bulk_live": page,
        "bulk_ended": page,
        "bulk_named": {
            "ids": [*pending[:3], *leased[:3], *finished[:3]], "before": uuid.UUID(int=(1 << 128) - 1),
            "not_before": uuid.UUID(int=0), "type": None, "queue_id": None, "tag": None,
        },
        "bulk_retry": {**ended, "spread_seconds": 60},
        "bulk_cancel": {
            "ids": [*pending[:5], *leased[:5]], "hints": ["cancel"] * 10, "channel": "x", "pending": True,
            "processing": True,
        },
        "bulk_delete": {**ended, "status": None},
    }  # fmt: skip
    return {
        **{name: (True, values) for name, values in worker.items()},
        **{name: (False, values) for name, values in api.items()},
    }


HOT = list(_statements({kind: [uuid.UUID(int=0)] * 10 for kind in ("pending", "leases", "finished")}))


@pytest.mark.parametrize("name", HOT)
def test_a_hot_statement_reads_only_what_it_was_asked_for(spoilt: Spoilt, name: str) -> None:
    by_worker, values = _statements(spoilt.samples)[name]
    session = HOT_SESSION if by_worker else GENERIC

    async def explain() -> tuple[dict[str, Any], dict[str, Any]]:
        async with _prepared(spoilt.url, name, session) as (_, explained):
            # Whatever plans a function makes of its own are made in its first call.
            await explained(values, analyze=True)
            return await explained(values), await explained(values, analyze=True)

    plan, measured = spoilt.runner.run(explain())
    assert not _faults(plan)
    buffers = measured["Shared Hit Blocks"] + measured["Shared Read Blocks"]
    assert buffers < BUFFERS, f"{buffers} buffers for ten jobs"


@pytest.mark.parametrize("name", ["claim", "recover", "due_queues", "list_unsuccessful"])
def test_ordered_scans_use_their_index(spoilt: Spoilt, name: str) -> None:
    by_worker, values = _statements(spoilt.samples)[name]
    index, table = {
        "claim": ("pending_lane", "pending"),
        "recover": ("leases_expiry", "leases"),
        "due_queues": ("pending_lane", "pending"),
        "list_unsuccessful": ("status_id", "finished"),
    }[name]

    async def explain() -> dict[str, Any]:
        async with _prepared(spoilt.url, name, HOT_SESSION if by_worker else GENERIC) as (_, explained):
            plan: dict[str, Any] = await explained(values)
            return plan

    used = {node["Index Name"] for node in _nodes(spoilt.runner.run(explain())) if "Index Name" in node}
    assert any(index in one for one in used), used
    assert table in index or any(table in one for one in used)


async def test_claims_stay_flat_under_a_pinned_snapshot(
    jobs: Jobs, worker_store: WorkerStore, database_url: str, sql: Connection
) -> None:
    for _ in range(4):
        await jobs.enqueue([job() for _ in range(5_000)])
    pin = await connect(database_url)
    await pin.execute("begin isolation level repeatable read")
    await pin.fetchval("select count(*) from fencepost.pending")
    await sql.execute("analyze")

    cursors = Cursors()

    async def take(slots: int) -> int:
        starts = cursors.starts()
        claimed = await worker_store.claim(1, slots=slots, cursors=starts, lease_seconds=60, aging_seconds=60)
        cursors.claimed(starts, claimed)
        return len(claimed.leases)

    async with _prepared(database_url, "claim", HOT_SESSION) as (_, explain):

        async def buffers() -> int:
            """What one claim of ten reads, with this dispatcher's cursor."""
            starts = cursors.starts()
            plan = await explain(
                {
                    "queue_id": 1, "slots": 10, "worker_id": uuid.UUID(int=1), "lease_seconds": 60,
                    "aging_seconds": 60, "contended": False,
                    "cursors": json.dumps({lane: [at.run_at.isoformat(), str(at.id)] for lane, at in starts.items()}),
                },
                analyze=True,
            )  # fmt: skip
            return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

        for _ in range(10):
            await take(10)
        at_the_beginning = await buffers()
        taken = 100
        while taken < 19_900:
            taken += await take(min(100, 19_900 - taken))
        at_the_end = await buffers()
        assert await take(1_000) == 100
    assert at_the_end <= 2 * at_the_beginning, (at_the_beginning, at_the_end)
    await pin.close()


async def test_jobs_that_cannot_run_cost_a_claim_nothing(
    jobs: Jobs, queues: Queues, worker_store: WorkerStore, database_url: str, sql: Connection
) -> None:
    """Scheduled ones in the same lane, ready ones in a queue that nobody serves, dead and finished ones."""
    async with _prepared(database_url, "claim", HOT_SESSION) as (_, explain):

        async def buffers() -> int:
            values = {
                "queue_id": 1, "slots": 10, "worker_id": uuid.UUID(int=1), "lease_seconds": 60,
                "aging_seconds": 60, "contended": False,
                "cursors": "{}",
            }  # fmt: skip
            plan = await explain(values, analyze=True)
            return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

        await queues.ensure("default", 0)
        await jobs.enqueue([job() for _ in range(10)])
        alone = await buffers()
        for _ in range(4):
            await jobs.enqueue([job(delay_seconds=86_400.0) for _ in range(5_000)])
        await jobs.enqueue([job(queue="unserved") for _ in range(5_000)])
        await sql.execute("analyze")
        assert await buffers() <= 2 * alone


def test_the_figures_of_a_claim_without_cursors_show_what_they_are_for(spoilt: Spoilt) -> None:
    """The dead entries are there: a claim from the beginning of its lanes reads them."""

    async def explain() -> int:
        async with _prepared(spoilt.url, "claim", HOT_SESSION) as (_, explained):
            _, values = _statements(spoilt.samples)["claim"]
            values = {**values, "cursors": "{}"}
            plan = await explained(values, analyze=True)
            return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    assert spoilt.runner.run(explain()) > 3 * BUFFERS


def test_parameters_of_the_explained_statements_are_complete() -> None:
    """Every statement that a dispatcher, a settler or a producer runs is in the list above."""
    asked = _statements({kind: [uuid.UUID(int=0)] * 10 for kind in ("pending", "leases", "finished")})
    for name, (_, values) in asked.items():
        assert msgspec.structs.asdict(statements.load(name, "fencepost"))["parameters"]
        statements.load(name, "fencepost").arguments(values)
