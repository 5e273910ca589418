"""`fencepost.enqueue(…)` and `fencepost.enqueue_jobs(…)`, as triggers and other languages call them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from fencepost.domain.ids import new_id
from fencepost.domain.job import Status, Unique, UniqueMode, UniqueUntil
from fencepost.errors import JobNotFound, KeyConflict
from fencepost.store.database import Database
from fencepost.store.enqueueing import encode_jobs, enqueue_sql, read_answer
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.migrate import migrate, prepare
from fencepost.store.queues import Queues
from fencepost.store.statements import qualify
from fencepost.store.steps import script, steps
from fencepost.store.workers import WorkerStore

from .support import Connection, claim, connect, contents, job, until, waits_for_a_lock

pytestmark = pytest.mark.anyio


async def enqueue(sql: Connection, arguments: str) -> UUID:
    """Call the function with SQL text for its arguments."""
    made = await sql.fetchval(f"select fencepost.enqueue({arguments})")
    assert isinstance(made, UUID)
    return made


@pytest.fixture
async def heard(database: Database, database_url: str) -> AsyncIterator[list[str]]:
    """What is notified on the schema's channel."""
    ear = await connect(database_url)
    found: list[str] = []
    await ear.add_listener(database.channel, lambda *arguments: found.append(arguments[3]))
    yield found
    await ear.close()


async def hears(heard: list[str], count: int) -> None:
    """Return once so many notifications have arrived."""

    async def enough() -> bool:
        return len(heard) >= count

    await until(enough)


async def test_a_type_is_enough(sql: Connection, jobs: Jobs, worker_store: WorkerStore) -> None:
    before = time.time()
    made = await enqueue(sql, "'send_email'")
    read = await jobs.get(made)
    assert (read.type, read.queue, read.priority, read.max_attempts, read.status) == (
        "send_email",
        "default",
        0,
        5,
        Status.PENDING,
    )
    assert bytes(read.payload) == b"{}"
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert before - 0.002 <= (made.int >> 80) / 1000 <= time.time() + 0.002
    [lease] = await claim(worker_store, 1)
    assert lease.id == made


async def test_every_argument_is_taken(sql: Connection, jobs: Jobs) -> None:
    made = await enqueue(
        sql,
        """type => 'send_email', payload => '{"to": "ada"}', queue => 'mail', priority => 7, max_attempts => 9,
           delay => '90 seconds', timeout => '1.5 s', expires => '1 hour', idempotency_key => 'k', unique_key => 'u',
           unique_until => 'started', unique_mode => 'latest', tags => array['a', 'b'], metadata => '{"tenant": 3}'""",
    )
    read = await jobs.get(made)
    assert (read.queue, read.priority, read.max_attempts, read.timeout_seconds) == ("mail", 7, 9, 1.5)
    assert read.run_at is not None
    assert read.expires_at is not None
    assert (read.run_at - read.created_at).total_seconds() == 90
    assert (read.expires_at - read.created_at).total_seconds() == 3600
    assert (read.idempotency_key, read.unique_key, read.tags) == ("k", "u", ["a", "b"])
    assert (json.loads(bytes(read.payload)), json.loads(bytes(read.metadata or b""))) == ({"to": "ada"}, {"tenant": 3})
    held = await sql.fetchrow("select * from fencepost.unique_keys")
    assert (held["type"], held["key"], held["until"], held["job_id"]) == ("send_email", "u", "started", made)
    at = await enqueue(sql, "'work', 'null', run_at => '2031-05-01T12:00:00+02'")
    read = await jobs.get(at)
    assert (read.run_at, bytes(read.payload)) == (datetime(2031, 5, 1, 10, tzinfo=UTC), b"null")


async def test_ids_ascend_with_time(sql: Connection) -> None:
    rows = await sql.fetch("select fencepost.new_id() as id from generate_series(1, 10000)")
    made = [row["id"] for row in rows]
    assert len(set(made)) == 10_000
    times = [one.int >> 80 for one in made]
    assert times == sorted(times)
    fractions = {one.int >> 64 & 0xFFF for one in made}
    assert max(fractions) > 0xC00, "the twelve bits beyond the millisecond are filled"


REFUSED = [
    ("null", "type: must be 1 to 100 of the characters .* not null"),
    ("'a b'", "type: must be 1 to 100 of the characters .* not 'a b'"),
    ("'x', null", "payload: must not be null"),
    ("'x', queue => 'a/b'", "queue: must be 1 to 100 of the characters .* not 'a/b'"),
    ("'x', queue => ''", "queue: must be 1 to 100"),
    ("'x', queue => null", "queue: must be .* not null"),
    ("'x', queue => repeat('q', 101)", "queue: must be 1 to 100"),
    ("'x', queue => E'a\\n'", "queue: must be 1 to 100"),
    ("'x', priority => 101", "priority: must be a whole number from 0 to 100, not 101"),
    ("'x', priority => null", "priority: must be a whole number from 0 to 100, not null"),
    ("'x', max_attempts => 0", "max_attempts: must be a whole number from 1 to 100, not 0"),
    ("'x', run_at => '1969-12-31'", "run_at: must be between the years 1970 and 2099"),
    ("'x', run_at => 'infinity'", "run_at: must be between the years"),
    ("'x', run_at => now(), delay => '1 s'", "delay: can't be given together with run_at; use one of them"),
    ("'x', delay => '-1 s'", "delay: must be from 0 to ten years"),
    ("'x', delay => '3651 days'", "delay: must be from 0 to ten years"),
    ("'x', timeout => '0'", "timeout: must be from 1ms to 24h, not 00:00:00"),
    ("'x', timeout => '25 hours'", "timeout: must be from 1ms to 24h"),
    ("'x', expires => '0'", "expires: must be from 1ms to ten years"),
    ("'x', idempotency_key => ''", "idempotency_key: must be 1 to 255 printable ASCII characters, not ''"),
    ("'x', idempotency_key => ' k'", "idempotency_key: must be 1 to 255"),
    ("'x', idempotency_key => 'ké'", "idempotency_key: must be 1 to 255"),
    ("'x', idempotency_key => repeat('k', 256)", "idempotency_key: must be 1 to 255"),
    ("'x', unique_key => ''", "unique_key: must be 1 to 255 bytes of printable text, not ''"),
    ("'x', unique_key => repeat('é', 128)", "unique_key: must be 1 to 255 bytes of printable text, not 'é+'"),
    ("'x', unique_until => 'started'", "unique_until: needs a unique_key"),
    ("'x', unique_mode => 'skip'", "unique_mode: needs a unique_key"),
    ("'x', unique_period => '1 s'", "unique_period: needs a unique_key"),
    ("'x', unique_key => 'k', unique_until => 'never'", "unique_until: must be one of started, finished, period"),
    ("'x', unique_key => 'k', unique_until => 'period'", "unique_period: is needed with unique_until period"),
    (
        "'x', unique_key => 'k', unique_until => 'started', unique_period => '1 s'",
        "unique_period: can't be given together with unique_until started",
    ),
    ("'x', unique_key => 'k', unique_period => '0'", "unique_period: must be from 1ms to ten years"),
    ("'x', unique_key => 'k', unique_mode => 'x'", "unique_mode: must be one of skip, replace, earliest, latest"),
    ("'x', tags => array(select 't' || n from generate_series(1, 21) n)", "tags: must be at most 20, not 21"),
    ("'x', tags => array['']", "tags: must each be 1 to 100 bytes of printable text, not ''"),
    ("'x', tags => array[null]::text[]", "tags: must each be 1 to 100 bytes of printable text, not null"),
    ("'x', metadata => '[]'", "metadata: must be a JSON object"),
    ("'x', metadata => jsonb_build_object('a', repeat('x', 16384))", "metadata: takes .* bytes; the limit is 16,384"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "message"), REFUSED)
async def test_a_wrong_argument_is_named(sql: Connection, arguments: str, message: str) -> None:
    with pytest.raises(asyncpg.PostgresError, match=f"^{message}") as refused:
        await enqueue(sql, arguments)
    assert refused.value.sqlstate == "22023"
    assert all(not rows for rows in (await contents(sql)).values())


@pytest.mark.parametrize(
    "arguments",
    [
        "'x', tags => array(select 't' || n from generate_series(1, 20) n), metadata => null",
        "'x', tags => array_fill('t'::text, array[30])", "'x', tags => '{}'", "'x', metadata => '{}'",
        "'x', priority => 100, max_attempts => 100", "'x', delay => '3650 days'", "'x', delay => '0'",
        "'x', timeout => '24 hours'", "'x', unique_key => repeat('é', 127)",
        "'x', unique_key => 'k', unique_period => '1 ms'",
        "'x', idempotency_key => repeat('k', 255)", "repeat('t', 100), queue => repeat('q', 100)",
        "'x', expires => '10 years' - interval '5 days'",
    ],
)  # fmt: skip
async def test_the_limits_themselves_are_allowed(sql: Connection, jobs: Jobs, arguments: str) -> None:
    assert (await jobs.get(await enqueue(sql, arguments))).status is Status.PENDING


async def test_the_same_key_is_the_same_job_and_another_request_a_conflict(sql: Connection, jobs: Jobs) -> None:
    ask = "'work', '{{\"n\": {n}}}', idempotency_key => 'k', delay => '1 minute'"
    first = await enqueue(sql, ask.format(n=1))
    assert await enqueue(sql, ask.format(n="1.0")) == first
    async with sql.transaction():
        kept = await enqueue(sql, "'work'")
        savepoint = sql.transaction()
        await savepoint.start()
        with pytest.raises(asyncpg.PostgresError) as refused:
            await enqueue(sql, ask.format(n=2))
        await savepoint.rollback()
    assert refused.value.sqlstate == "FP001"
    assert str(refused.value) == (
        f"idempotency_key: 'k' already made job {first} from another request; use a new key for a new request"
    )
    assert (await jobs.get(kept)).status is Status.PENDING


ASKED: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    (", delay => '1.5 seconds'", {"delay_seconds": 1.5}),
    (", delay => '1 minute'", {"delay_seconds": 60.0}),
    (", delay => '1 microsecond'", {"delay_seconds": 1e-06}),
    (", run_at => '2031-05-01 12:00+02'", {"run_at": datetime(2031, 5, 1, 10, tzinfo=UTC)}),
    (", run_at => '2031-05-01 10:00:00.25Z'", {"run_at": datetime(2031, 5, 1, 10, 0, 0, 250_000, tzinfo=UTC)}),
    (", expires => '1 hour', timeout => '30 s'", {"expires_seconds": 3600.0, "timeout_seconds": 30.0}),
    (", tags => '{a,b}', metadata => '{\"a\": 1}'", {"tags": ("a", "b"), "metadata": b'{"a": 1}'}),
    (", unique_key => 'u'", {"unique": Unique(key="u")}),
    (
        ", unique_key => 'u', unique_period => '90 s', unique_mode => 'latest'",
        {"unique": Unique(key="u", until=UniqueUntil.PERIOD, period_seconds=90.0, mode=UniqueMode.LATEST)},
    ),
]


@pytest.mark.parametrize(("arguments", "fields"), ASKED)
async def test_a_key_may_be_repeated_from_sql_or_from_the_library(
    sql: Connection, jobs: Jobs, arguments: str, fields: dict[str, Any]
) -> None:
    """The same request is the same, whichever way it comes; and without the argument it is another."""
    first = await enqueue(sql, f"'work', idempotency_key => 'a'{arguments}")
    [again] = await jobs.enqueue([job(idempotency_key="a", max_attempts=5, **fields)])
    assert (again.id, again.effect) == (first, "replayed")
    if fields:
        with pytest.raises(KeyConflict):
            await jobs.enqueue([job(idempotency_key="a", max_attempts=5)])


async def test_unique_keys_do_what_they_do(sql: Connection, jobs: Jobs) -> None:
    first = await enqueue(sql, "'work', unique_key => 'u'")
    assert await enqueue(sql, "'work', unique_key => 'u'") == first
    third = await enqueue(sql, "'work', unique_key => 'u', unique_mode => 'replace'")
    assert third != first
    assert (await jobs.get(first)).status is Status.CANCELLED


async def test_the_job_is_there_when_the_transaction_commits(
    sql: Connection, jobs: Jobs, worker_store: WorkerStore, heard: list[str]
) -> None:
    transaction = sql.transaction()
    await transaction.start()
    rolled_back = await enqueue(sql, "'work', queue => 'new'")
    await transaction.rollback()
    with pytest.raises(JobNotFound):
        await jobs.get(rolled_back)
    async with sql.transaction():
        made = await enqueue(sql, "'work', queue => 'new'")
        assert await claim(worker_store, 1) == []
        assert heard == []
    queue_id = await sql.fetchval("select id from fencepost.queues where name = 'new'")
    await hears(heard, 1)
    assert heard == [f"due {queue_id}"]
    assert [lease.id for lease in await claim(worker_store, queue_id)] == [made]


async def test_only_what_is_due_soon_wakes_anybody(sql: Connection, heard: list[str]) -> None:
    await enqueue(sql, "'work', queue => 'later', delay => '1 hour'")
    await enqueue(sql, "'work', queue => 'later', unique_key => 'u', delay => '1 hour'")
    await enqueue(sql, "'work', queue => 'later', unique_key => 'u'")
    await enqueue(sql, "'work', queue => 'soon', delay => '5 seconds'")
    await enqueue(sql, "'work', queue => 'soon', unique_key => 'u', unique_mode => 'earliest'")
    ids = {row["name"]: row["id"] for row in await sql.fetch("select name, id from fencepost.queues")}
    await sql.execute("select pg_notify($1, 'end')", "fencepost:fencepost")
    await hears(heard, 3)
    assert heard == [f"due {ids['soon']}", f"due {ids['later']}", "end"]


async def test_a_new_queue_in_two_transactions_at_once(sql: Connection, database_url: str, jobs: Jobs) -> None:
    """The second waits for the first, which made the queue; whichever way that ends, both jobs have their queue."""
    for number, commit in enumerate([True, False]):
        other = await connect(database_url)
        transaction = sql.transaction()
        await transaction.start()
        first = await enqueue(sql, f"'work', queue => 'new-{number}', priority => 5")
        waiting = asyncio.ensure_future(enqueue(other, f"'work', queue => 'new-{number}', priority => 5"))
        watch = await connect(database_url)
        await waits_for_a_lock(watch)
        await watch.close()
        await (transaction.commit() if commit else transaction.rollback())
        second = await waiting
        await other.close()
        assert (await jobs.get(second)).queue == f"new-{number}"
        if commit:
            assert (await jobs.get(first)).priority == 5


async def test_a_job_in_a_lane_that_its_own_transaction_makes_is_found(
    sql: Connection, worker_store: WorkerStore, jobs: Jobs
) -> None:
    await jobs.enqueue([job()])
    assert len(await claim(worker_store, 1)) == 1
    made = await enqueue(sql, "'work', priority => 9")
    assert [lease.id for lease in await claim(worker_store, 1)] == [made]


@pytest.mark.parametrize("schema", ["Job Queue", 'a"b', "select"])
async def test_a_schema_of_another_name(empty_url: str, schema: str) -> None:
    database = Database(empty_url, schema=schema, connections=3)
    await database.open()
    await prepare(database, partition_days=3)
    sql = await connect(empty_url)
    heard: list[str] = []
    try:
        await sql.add_listener(database.channel, lambda *arguments: heard.append(arguments[3]))
        hints = Hints(database)
        jobs = Jobs(database, Queues(database, hints), hints)
        ask = qualify(
            "select fencepost.enqueue('work', unique_key => 'u', idempotency_key => 'k', unique_mode => $1)", schema
        )
        first = await sql.fetchval(ask, "replace")
        assert await sql.fetchval(ask, "replace") == first
        with pytest.raises(asyncpg.PostgresError, match="already made job"):
            await sql.fetchval(ask, "skip")
        made = job(unique=Unique(key="u", mode=UniqueMode.REPLACE))
        text = await sql.fetchval(enqueue_sql(schema).replace(":jobs", "$1"), encode_jobs([made]))
        assert read_answer(text, [made])[0].effect == "replaced"
        assert (await jobs.get(first)).status is Status.CANCELLED
        [stored] = await jobs.enqueue([job(unique=Unique(key="u"))])
        assert (stored.id, stored.effect) == (made.id, "skipped")
        await hears(heard, 2)
        assert heard[0] == "due 1"
        await hints.close()
        assert not await sql.fetchval("select exists (select from pg_namespace where nspname = 'fencepost')")
    finally:
        await sql.close()
        await database.close()


async def test_the_callers_settings_do_not_matter(sql: Connection, jobs: Jobs) -> None:
    """Tables of the caller's with the same names, another time zone, another style of dates."""
    await sql.execute(
        "create table public.jobs (id int); create table public.pending (id int); set search_path = public; "
        "set timezone = 'Asia/Kathmandu'; set datestyle = 'SQL, DMY'; set intervalstyle = 'sql_standard'"
    )
    made = await enqueue(sql, "'work', run_at => '2031-05-01T12:00:00Z', idempotency_key => 'k'")
    [again] = await jobs.enqueue(
        [job(idempotency_key="k", max_attempts=5, run_at=datetime(2031, 5, 1, 12, tzinfo=UTC))]
    )
    assert (again.id, again.effect) == (made, "replayed")
    assert (await jobs.get(made)).run_at == datetime(2031, 5, 1, 12, tzinfo=UTC)
    one = job()
    [stored] = read_answer(
        await sql.fetchval(enqueue_sql("fencepost").replace(":jobs", "$1"), encode_jobs([one])), [one]
    )
    assert stored.created_at == (await jobs.get(one.id)).created_at


@pytest.mark.parametrize("level", ["read_committed", "repeatable_read", "serializable"])
async def test_any_isolation_level(sql: Connection, jobs: Jobs, level: str) -> None:
    async with sql.transaction(isolation=level):
        first = await enqueue(sql, "'work', unique_key => 'u', idempotency_key => 'k', queue => 'new'")
        assert await enqueue(sql, "'work', unique_key => 'u'") == first
        assert await enqueue(sql, "'work', unique_key => 'u', idempotency_key => 'k', queue => 'new'") == first
    assert (await jobs.audit())["jobs"] == 1


def test_the_printed_script_holds_the_functions_for_its_schema() -> None:
    text = script("app")
    assert 'create function "app".enqueue(' in text
    assert "fencepost.enqueue_jobs" not in text.replace('"app".', "")


async def test_a_schema_with_jobs_in_it_gets_the_new_columns(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there stays as it is, and nothing is rewritten."""
    from fencepost.store import migrate as migrations

    everything = steps()
    database = Database(empty_url, connections=3)
    await database.open()
    sql = await connect(empty_url)
    try:
        monkeypatch.setattr(migrations, "steps", lambda: everything[:2])
        await prepare(database, partition_days=3)
        await sql.execute(
            "insert into fencepost.queues (name) values ('default'); insert into fencepost.lanes values (1, 0); "
            "insert into fencepost.jobs (id, queue_id, type, priority, payload, max_attempts, created_at) "
            "select gen_random_uuid(), 1, 'old', 0, '{}', 3, now() from generate_series(1, 100)"
        )
        files = "select relname, pg_relation_filenode(oid) from pg_class where relname like 'jobs%' order by relname"
        before = await sql.fetch(files)
        monkeypatch.setattr(migrations, "steps", lambda: everything)
        assert [step.number for step in await migrate(database)] == [step.number for step in everything[2:]]
        assert await sql.fetch(files) == before
        assert await sql.fetchval("select count(*) from fencepost.jobs where tags is null and metadata is null") == 100
    finally:
        await sql.close()
        await database.close()


async def test_what_a_worker_could_not_read_is_refused(sql: Connection, jobs: Jobs) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match="tags: must be an array of one dimension, not 2"):
        await enqueue(sql, "'work', tags => array[['a', 'b'], ['c', 'd']]")
    bad: tuple[tuple[dict[str, Any], str], ...] = (
        ({"tags": [["a", "b"], ["c", "d"]]}, "tags: must be an array of texts"),
        ({"tags": ["a", None]}, "tags: must be an array of texts"),
        ({"metadata": [1]}, "metadata: must be a JSON object"),
        ({"metadata": "text"}, "metadata: must be a JSON object"),
    )
    for fields, message in bad:
        request = [{"id": str(new_id()), "type": "work", "queue": "default", "max_attempts": 3, **fields}]
        with pytest.raises(asyncpg.InvalidParameterValueError, match=message):
            await sql.fetchval("select fencepost.enqueue_jobs($1::text::jsonb)", json.dumps(request))
    assert (await jobs.audit())["jobs"] == 0
    good: dict[str, Any] = {"tags": ["a"], "metadata": {"a": [1, None]}}
    for fields in (good, {"tags": None, "metadata": None}, {"tags": []}):
        request = [{"id": str(new_id()), "type": "work", "queue": "default", "max_attempts": 3, **fields}]
        await sql.fetchval("select fencepost.enqueue_jobs($1::text::jsonb)", json.dumps(request))
    assert (await jobs.audit())["jobs"] == 3


@pytest.mark.parametrize("key", [{}, {"unique": {"key": "k", "until": "finished", "mode": "earliest"}}])
async def test_a_time_that_no_client_can_read_is_the_last_that_one_can(
    sql: Connection, jobs: Jobs, key: dict[str, Any]
) -> None:
    made = new_id()
    request = {"id": str(made), "type": "work", "queue": "default", "max_attempts": 3, **key}
    times = {"run_at": "20000-01-01", "expires_at": "20000-01-01"}
    await sql.fetchval("select fencepost.enqueue_jobs($1::text::jsonb)", json.dumps([request | times]))
    read = await jobs.get(made)
    assert read.run_at == read.expires_at == datetime(9999, 1, 1, tzinfo=UTC)
