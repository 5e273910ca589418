"""Every check: the state that it is about is made on a real server, and it sees that, and nothing else."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from chaos.world.places import make_folder
from fencepost.domain.ids import new_id
from fencepost.embedded import EmbeddedPostgres
from fencepost.errors import DatabaseUnavailable, InvalidSettings
from fencepost.settings import Secret, Settings
from fencepost.settings.pooler import Pooler
from fencepost.store.database import Database
from fencepost.store.doctor import examination, objects, server
from fencepost.store.doctor.examination import examine
from fencepost.store.doctor.findings import Finding, Limits, Severity, duration, named, worst
from fencepost.store.grants import Purpose
from fencepost.store.migrate import migrate, prepare
from fencepost.store.steps import steps
from tests import pgbouncer
from tests.conftest import with_database
from tests.store.support import waits_for_a_lock

from .conftest import Ward

pytestmark = pytest.mark.anyio

Spoil = Callable[[Ward], Awaitable[None]]
A_PENDING = "(select id from fencepost.pending limit 1)"
A_FINISHED = "(select id from fencepost.finished limit 1)"
OF_THE_FUTURE = "'f0000000-0000-7000-8000-000000000001'"


async def test_a_healthy_database_gives_no_finding(ward: Ward) -> None:
    found = await ward.findings()
    assert [(one.code, one.what) for one in found if one.severity is not Severity.OK] == []
    assert found[-1].what == "9 jobs = 7 pending + 1 leases + 1 finished, each in one place"
    assert len(found) == 18
    assert all(one.remedy is None for one in found)


async def test_a_reader_sees_as_much(ward: Ward) -> None:
    role = await ward.reader()
    found = await ward.findings()
    assert [(one.code, one.what) for one in found if one.severity is not Severity.OK] == []
    assert f"role {role} may do what a reader does" in {one.what for one in found}


async def test_nothing_is_changed_and_nothing_could_be(ward: Ward) -> None:
    tables = [row[0] for row in await ward.sql.fetch("select oid::regclass::text from pg_class where relkind = 'r'")]
    ours = [name for name in tables if name.startswith("fencepost.")]
    count = " union all ".join(f"select '{name}', count(*), max(xmin::text::bigint) from {name}" for name in ours)
    before = await ward.sql.fetch(count)
    await ward.findings()
    assert await ward.sql.fetch(count) == before


def sql(text: str, **limits: Any) -> Spoil:
    """A state that SQL makes."""

    async def spoil(ward: Ward) -> None:
        ward.limits |= limits
        await ward.execute(text)

    return spoil


def with_settings(**settings: Any) -> Spoil:
    """A state that is in the settings."""

    async def spoil(ward: Ward) -> None:
        ward.settings |= settings

    return spoil


async def _read_only(ward: Ward) -> None:
    role = await ward.reader()
    await ward.execute(f"alter role {role} set default_transaction_read_only = on")


async def _role_without_durability(ward: Ward) -> None:
    role = await ward.reader()
    await ward.execute(f"alter role {role} set synchronous_commit = off")


async def _another_role_without_durability(ward: Ward) -> None:
    url, role = ward.url, await ward.reader()
    ward.url = url
    await ward.execute(
        f"alter role {role} in database {await ward.sql.fetchval('select current_database()')} "
        "set synchronous_commit = off"
    )


async def _another_role_read_only(ward: Ward) -> None:
    url = ward.url
    for purpose in (Purpose.PRODUCER, Purpose.READER):
        await ward.execute(f"alter role {await ward.reader({purpose})} set default_transaction_read_only = TRUE")
        ward.url = url


async def _blind(ward: Ward) -> None:
    role = await ward.reader()
    await ward.execute(f"revoke pg_read_all_stats from {role}")


async def _closed(ward: Ward) -> None:
    role = await ward.reader()
    await ward.execute(f"revoke usage on schema fencepost from {role}")


async def _privilege_missing(ward: Ward) -> None:
    role = await ward.reader()
    await ward.execute(f"revoke execute on function fencepost.is_expired from {role}")


async def _no_worker(ward: Ward) -> None:
    ward.limits |= {"unserved_seconds": 0.0}
    await ward.execute("update fencepost.workers set heartbeat_at = now() - interval '1 hour'")
    await ward.execute("update fencepost.pending set run_at = now() - interval '1 minute' where run_at <= now()")


EXPIRE = "update fencepost.leases set started_at = now() - interval '1 h', locked_until = now() - interval '9 minutes'"
NEW_QUEUE = (
    "insert into fencepost.queues (name) values ('other');"
    "insert into fencepost.lanes select id, 0 from fencepost.queues where name = 'other';"
    f"insert into fencepost.jobs (id, queue_id, type, priority, payload, max_attempts, created_at) "
    f"select '{new_id()}', id, 'work', 0, '1', 1, now() from fencepost.queues where name = 'other';"
    "insert into fencepost.pending select j.id, j.queue_id, 0, 0, 0, now() - interval '5 minutes' "
    "from fencepost.jobs j join fencepost.queues q on q.id = j.queue_id where q.name = 'other';"
)

STATES: dict[str, Spoil] = {
    "server.read_only": _read_only,
    "server.role_read_only": _another_role_read_only,
    "durability.synchronous_commit": _role_without_durability,
    "durability.role_setting": _another_role_without_durability,
    "durability.unlogged": sql("alter table fencepost.workers set unlogged"),
    "pooler.listen_url": with_settings(listen_url=Secret("postgresql://127.0.0.1:1/nowhere")),
    "connections.too_few": with_settings(database_connections=40, processes=10),
    "connections.nearly_full": sql("select 1", used_connections=0.01),
    "vacuum.table_off": sql("alter table fencepost.leases set (autovacuum_enabled = false)"),
    "wraparound.old": sql("select 1", old_transactions=5),
    "visibility.limited": _blind,
    "schema.closed": _closed,
    "schema.missing": sql("drop schema fencepost cascade"),
    "schema.behind": sql("delete from fencepost.schema_version where number = 5"),
    "schema.changed": sql("update fencepost.schema_version set checksum = 'other' where number = 3"),
    "schema.newer": sql(
        "insert into fencepost.schema_version (number, name, checksum, breaking) values (99, 'future', '', true)"
    ),
    "privileges.missing": _privilege_missing,
    "partitions.late": with_settings(partition_days=60),
    "partitions.lost": sql(
        "insert into fencepost.partitions (starts_at, ends_at) values ('2020-01-06 00:00+00', '2020-01-09 00:00+00')"
    ),
    "partitions.unattached": sql(
        "do $$ begin execute 'alter table fencepost.attempts detach partition fencepost.' || "
        "(select min(relname) from pg_class where relname ~ '^attempts_[0-9]' and relkind = 'r'); end $$"
    ),
    "doctor.failed": sql(
        "alter table fencepost.job_types rename to told; create view fencepost.job_types as "
        "select t.* from fencepost.told t where 1 / (select count(*) - count(*) from fencepost.told) > 0"
    ),
    "partitions.detached": sql("create table fencepost.jobs_20200106t0000 (like fencepost.jobs)"),
    "partitions.unlisted": sql(
        "create table fencepost.attempts_20200106t0000 partition of fencepost.attempts for values "
        "from ('016f7825-6400-0000-0000-000000000000') to ('016f8798-8c00-0000-0000-000000000000')"
    ),
    "partitions.default": sql(
        f"insert into fencepost.jobs select {OF_THE_FUTURE}, queue_id, type, priority, payload, max_attempts, "
        "null, null, null, created_at from fencepost.jobs limit 1;"
        f"insert into fencepost.finished (id, queue_id, status, attempts, token, finished_at) "
        f"select {OF_THE_FUTURE}, queue_id, 'completed', 1, 1, now() from fencepost.jobs limit 1"
    ),
    "leases.unswept": sql(EXPIRE),
    "leases.no_worker": sql(f"{EXPIRE}; delete from fencepost.workers"),
    "queues.paused": sql("update fencepost.queues set paused_at = now()"),
    "queues.no_worker": _no_worker,
    "queues.unserved": sql(NEW_QUEUE),
    "types.undeclared": sql("delete from fencepost.job_types"),
    "audit.lost": sql(f"delete from fencepost.pending where id = {A_PENDING}"),
    "audit.twice": sql(
        "insert into fencepost.finished (id, queue_id, status, attempts, token, finished_at) "
        "select id, queue_id, 'completed', 1, 1, now() from fencepost.pending limit 1"
    ),
    "audit.stray": sql(
        "delete from fencepost.jobs where id = (select id from fencepost.leases);"
        "delete from fencepost.idempotency_keys where job_id = (select id from fencepost.leases)"
    ),
    "audit.unseen": sql(
        "with strayed as (insert into fencepost.jobs (id, queue_id, type, priority, payload, max_attempts, created_at) "
        f"values ('{new_id()}', 77, 'work', 0, '1', 1, now()) returning id, queue_id) "
        "insert into fencepost.pending select id, queue_id, 0, 0, 0, now() from strayed"
    ),
    "audit.attempts": sql(
        "insert into fencepost.attempts (id, queue_id, token, attempt, outcome, worker_id, started_at, ended_at) "
        f"values ('{new_id()}', 1, 1, 1, 'lost', '{new_id()}', now(), now())"
    ),
    "audit.keys": sql(
        "insert into fencepost.idempotency_keys (key, job_id, queue_id, schedule) "
        f"values ('nobody', '{new_id()}', 1, 'now')"
    ),
    "audit.unfinished": sql("select 1", audit_seconds=1e-6),
    "schema.broken": sql("alter table fencepost.job_types drop column declared_at"),
    "schema.incomplete": sql("drop index fencepost.pending_lane"),
}
"""States that last for as long as the database. The others are below, each in a test of its own."""


@pytest.mark.parametrize("code", STATES)
async def test_a_state_is_seen_and_no_other(ward: Ward, code: str) -> None:
    await STATES[code](ward)
    found = await ward.complaints()
    assert [one.code for one in found] == [code], found
    assert found[0].remedy
    assert found[0].what


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("table", ["unique_keys"]),
        ("table", ["finished_default"]),
        ("function", ["complete"]),
        ("function", ["enqueue", "enqueue_jobs"]),
    ],
)
async def test_what_somebody_dropped_is_missed(ward: Ward, kind: str, names: list[str]) -> None:
    await ward.execute(";".join(f"drop {kind} fencepost.{name}" for name in names))
    [found] = [one for one in await ward.complaints() if one.code == "schema.incomplete"]
    assert {f"{kind} {name}" for name in names} == set(found.what.partition(": ")[2].split(", "))


async def test_what_the_steps_make_is_what_a_new_schema_has(ward: Ward) -> None:
    """By their text: whatever it doesn't say (indexes of constraints and of partitions) has a name of PostgreSQL's."""
    rows = await ward.sql.fetch(
        "select case when c.relkind in ('r', 'p') then 'table' else 'index' end as kind, c.relname::text as name "
        "from pg_class c where c.relnamespace = 'fencepost'::regnamespace and c.relkind in ('r', 'p', 'i', 'I') "
        r"and c.relname !~ '_\d{8}t\d{4}' and c.relname <> 'schema_version' "
        "and not exists (select from pg_constraint k where k.conindid = c.oid) "
        "and not (c.relkind in ('i', 'I') and c.relispartition) "
        "union select 'function', p.proname from pg_proc p where p.pronamespace = 'fencepost'::regnamespace"
    )
    assert {(row["kind"], row["name"]) for row in rows} == set(objects.made([step.number for step in steps()]))


async def test_a_later_version_may_have_removed_what_this_one_knows(ward: Ward) -> None:
    await STATES["schema.newer"](ward)
    await STATES["schema.incomplete"](ward)
    assert "schema.incomplete" not in [one.code for one in await ward.complaints()]


@pytest.mark.parametrize(
    ("code", "severity"),
    [("schema.behind", Severity.ERROR), ("queues.paused", Severity.WARNING), ("audit.lost", Severity.ERROR)],
)
async def test_how_bad_it_is(ward: Ward, code: str, severity: Severity) -> None:
    await STATES[code](ward)
    assert worst(await ward.findings()) is severity


async def test_the_audit_names_the_jobs(ward: Ward) -> None:
    lost = {row["id"] for row in await ward.sql.fetch("delete from fencepost.pending returning id")}
    [found] = await ward.complaints()
    assert f"{len(lost)} jobs are in none of pending, leases and finished" in found.what
    assert sum(str(one) in found.what for one in lost) == 5
    assert found.what.endswith(", …")
    ward.quick = True
    assert await ward.complaints() == []


async def test_a_role_that_may_do_nothing_is_told_so_once(ward: Ward) -> None:
    role = await ward.reader()
    await ward.execute(f"revoke all on all tables in schema fencepost from {role}")
    await ward.execute(f"grant select on fencepost.schema_version to {role}")
    found = await ward.complaints()
    assert [one.code for one in found].count("privileges.missing") == 1
    refused = [one for one in found if one.code == "doctor.not_allowed"]
    assert {one.what.split()[0] for one in refused} == {"partitions", "leases", "queues", "types", "audit"}
    assert len(found) == 1 + len(refused)


async def test_a_worker_needs_no_more_to_be_well(ward: Ward) -> None:
    role = await ward.reader({Purpose.WORKER})
    assert await ward.complaints() == []
    await ward.execute(f"revoke delete on fencepost.pending from {role}")
    assert [one.code for one in await ward.complaints()] == ["privileges.missing"]


async def test_an_old_server(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LOWEST_SERVER", 990000)
    assert [one.code for one in await ward.complaints()] == ["server.version"]


@pytest.mark.parametrize("seconds", [-3600, 3600])
async def test_a_clock_that_is_wrong(ward: Ward, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """This machine's, as the program sees it."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + seconds)
    [found] = await ward.complaints()
    assert found.code == "clock.skew"
    assert ("ahead of" if seconds > 0 else "behind") in found.what
    assert "59m 5" in found.what or "1h" in found.what


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("fsync", "off", "durability.fsync"),
        ("full_page_writes", "off", "durability.full_page_writes"),
        ("autovacuum", "off", "vacuum.off"),
        ("track_counts", "off", "vacuum.off"),
    ],
)
async def test_settings_of_the_server(ward: Ward, name: str, value: str, code: str) -> None:
    await ward.set_server(**{name: value})
    try:
        assert [one.code for one in await ward.complaints()] == [code]
    finally:
        await ward.set_server(**{name: None})


PLACES = {
    "role": "alter role {role}",
    "role-in-database": "alter role {role} in database {database}",
    "database": "alter database {database}",
    "all-roles": "alter role all",
    "server": "alter system",
}


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("default_transaction_read_only = on", "server.read_only"),
        ("synchronous_commit = off", "durability.synchronous_commit"),
    ],
)
async def test_the_remedy_is_for_the_place_that_sets_it(ward: Ward, setting: str, code: str, place: str) -> None:
    """And it works for whoever is given the same, statement by statement as psql sends what is pasted."""
    name = setting.split()[0]
    owner, role = ward.url, await ward.reader()
    where = PLACES[place].format(role=role, database=await ward.sql.fetchval("select current_database()"))
    await ward.execute(f"{where} set {setting}")
    await ward.execute("select pg_reload_conf()")
    mender = await asyncpg.connect(owner)
    try:
        async with asyncio.timeout(20):
            while not (found := await ward.complaints()):
                pass
        assert [one.code for one in found] == [code]
        for statement in (found[0].remedy or "").partition(": ")[2].rstrip(";").split("; "):
            await mender.execute(statement)
        async with asyncio.timeout(20):
            while await ward.complaints():
                pass
    finally:
        await ward.execute("set default_transaction_read_only = off")
        await ward.execute(f"{PLACES['all-roles']} reset {name}")
        await ward.execute(f"{PLACES['server']} reset {name}")
        await ward.execute("select pg_reload_conf()")
        await mender.close()


async def test_a_setting_of_the_address_is_named_there(ward: Ward) -> None:
    ward.url += ("&" if "?" in ward.url else "?") + "default_transaction_read_only=on"
    [found] = await ward.complaints()
    assert (found.code, found.remedy) == (
        "server.read_only",
        "leave default_transaction_read_only out of DATABASE_URL",
    )


@pytest.mark.parametrize("value", ["0", "'FALSE'", "no"])
async def test_autovacuum_is_off_in_whatever_word(ward: Ward, value: str) -> None:
    await ward.execute(f"alter table fencepost.leases set (autovacuum_enabled = {value})")
    assert [one.code for one in await ward.complaints()] == ["vacuum.table_off"]
    await ward.execute("alter table fencepost.leases set (autovacuum_enabled = on)")
    assert await ward.complaints() == []


async def test_commits_that_wait_for_a_standby_that_is_not_there(ward: Ward) -> None:
    await ward.execute("set synchronous_commit = local")
    await ward.set_server(synchronous_standby_names="nobody")
    try:
        assert [one.code for one in await ward.complaints()] == ["durability.no_standby"]
    finally:
        await ward.set_server(synchronous_standby_names=None)


@asynccontextmanager
async def another_session(ward: Ward) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(ward.url, server_settings={"application_name": "the culprit"})
    try:
        yield connection
    finally:
        connection.terminate()


async def test_a_session_that_is_idle_in_a_transaction(ward: Ward) -> None:
    ward.limits |= {"idle_seconds": 0.0}
    async with another_session(ward) as session:
        await session.execute("begin; select pg_current_xact_id()")
        pid = session.get_server_pid()
        [found] = await ward.complaints()
    assert found.code == "transactions.idle"
    assert f"session {pid} (the culprit, role fencepost" in found.what
    assert "pg_current_xact_id" in found.what
    assert found.remedy == f"as a superuser: select pg_terminate_backend({pid});"


async def test_who_may_end_a_session_that_is_no_superusers(ward: Ward) -> None:
    ward.limits |= {"idle_seconds": 0.0}
    owner, role = ward.url, await ward.reader()
    ward.url, theirs = owner, ward.url
    session = await asyncpg.connect(theirs)
    await session.execute("begin; select count(*) from fencepost.jobs")
    [found] = await ward.complaints()
    pid = session.get_server_pid()
    assert (
        found.remedy == f"as {role}, a member of pg_signal_backend or a superuser: select pg_terminate_backend({pid});"
    )
    session.terminate()


@pytest.mark.slow
async def test_a_long_transaction(ward: Ward) -> None:
    ward.limits |= {"busy_seconds": 0.0}
    async with another_session(ward) as session:
        running = asyncio.create_task(session.execute("select pg_sleep(600)"))
        async with asyncio.timeout(20):
            while not (found := await ward.complaints()):
                await asyncio.wait([running], timeout=0.01)
        assert [one.code for one in found] == ["transactions.long"]
        assert "the culprit" in found[0].what
        session.terminate()
        await asyncio.wait([running])
        running.exception()


async def test_a_prepared_transaction(ward: Ward) -> None:
    ward.limits |= {"prepared_seconds": 0.0}
    await ward.execute("begin; create table x (n int); prepare transaction 'it''s me'")
    try:
        [found] = await ward.complaints()
        assert (found.code, "it's me" in found.what) == ("transactions.prepared", True)
        assert "rollback prepared 'it''s me'" in (found.remedy or "")
    finally:
        await ward.execute("rollback prepared 'it''s me'")


async def test_a_slot_that_nobody_reads(ward: Ward) -> None:
    await ward.execute("select pg_create_physical_replication_slot('forgotten', true)")
    try:
        [found] = await ward.complaints()
        assert (found.code, "'forgotten'" in found.what) == ("transactions.slot", True)
    finally:
        await ward.execute("select pg_drop_replication_slot('forgotten')")


async def test_a_full_queue_of_notifications(ward: Ward) -> None:
    ward.limits |= {"full_queue": 0.0005}
    async with another_session(ward) as session:
        await session.execute("listen anything")
        await session.execute("begin; select 1")
        await ward.execute(
            "do $$ begin for n in 1 .. 1500 loop perform pg_notify('x', n || repeat('x', 7000)); end loop; end $$"
        )
        assert [one.code for one in await ward.complaints()] == ["notifications.filling"]


@pytest.mark.slow
async def test_a_table_that_somebody_has_locked_is_not_waited_for_long(ward: Ward) -> None:
    async with another_session(ward) as session:
        await session.execute("begin; lock table fencepost.job_types in access exclusive mode")
        async with asyncio.timeout(20):
            assert [one.code for one in await ward.complaints()] == ["doctor.unfinished"]


@asynccontextmanager
async def waiting_for(ward: Ward, lock: str) -> AsyncIterator[int]:
    """Somebody holds *lock* on the leases, and somebody else wants to read them; who holds it."""
    async with another_session(ward) as holder, another_session(ward) as other:
        await holder.execute(f"begin; lock table fencepost.leases in {lock} mode")
        waiter = asyncio.create_task(other.execute("begin; lock table fencepost.leases in access exclusive mode"))
        await waits_for_a_lock(ward.sql)
        yield holder.get_server_pid()
        other.terminate()
        await asyncio.wait([waiter])
        waiter.exception()


@pytest.mark.slow
async def test_who_holds_what_others_wait_for(ward: Ward) -> None:
    ward.quick = True
    ward.limits |= {"blocked_seconds": 0.0}
    async with waiting_for(ward, "access exclusive") as pid:
        found = await ward.complaints()
    assert [one.code for one in found] == ["locks.held", *["doctor.unfinished"] * 2]
    assert found[0].severity is Severity.ERROR
    assert found[0].what.startswith(f"session {pid} (the culprit, role fencepost, ")
    assert "holds a lock on leases, and others wait for it (1), the first for " in found[0].what
    assert "It is idle in transaction, " in found[0].what
    assert found[0].what.endswith("Its last statement: begin; lock table fencepost.leases in access exclusive mode")
    assert found[0].remedy == f"as a superuser: select pg_terminate_backend({pid});"


async def locks_alone(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    monkeypatch.setattr(examination, "CHECKS", [one for one in examination.CHECKS if one.name == "locks"])
    ward.quick = True
    return await ward.complaints()


async def test_a_wait_that_has_just_begun_is_a_warning(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    ward.limits |= {"blocked_seconds": 3600.0}
    async with waiting_for(ward, "access share"):
        [found] = await locks_alone(ward, monkeypatch)
    assert (found.code, found.severity) == ("locks.held", Severity.WARNING)


async def test_a_lock_that_lets_nobody_in_is_told_before_anybody_comes(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    ward.limits |= {"blocked_seconds": 0.0}
    async with another_session(ward) as session:
        await session.execute("begin; lock table fencepost.pending in share mode")
        [found] = await locks_alone(ward, monkeypatch)
        assert (found.code, found.severity) == ("locks.held", Severity.ERROR)
        assert "pending, and nobody who needs it can have it" in found.what
        await session.execute("rollback; begin; lock table fencepost.pending in row exclusive mode")
        assert await locks_alone(ward, monkeypatch) == []


async def test_who_holds_a_lock_is_named_to_whoever_may_see_little(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    ward.limits |= {"blocked_seconds": 0.0}
    owner = ward.url
    await _blind(ward)
    theirs, ward.url = ward.url, owner
    async with waiting_for(ward, "access exclusive") as pid:
        ward.url = theirs
        [found] = await locks_alone(ward, monkeypatch)
    assert found.what.startswith(f"session {pid} (the culprit, role fencepost, ")
    assert "in a transaction" not in found.what


async def test_a_prepared_transaction_that_holds_a_lock(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    ward.limits |= {"blocked_seconds": 0.0}
    await ward.execute("begin; lock table fencepost.leases in access exclusive mode; prepare transaction 'forgotten'")
    try:
        async with another_session(ward) as other:
            waiter = asyncio.create_task(other.execute("select count(*) from fencepost.leases"))
            await waits_for_a_lock(ward.sql)
            [found] = await locks_alone(ward, monkeypatch)
            assert found.what.startswith("a prepared transaction holds a lock on leases")
            other.terminate()
            await asyncio.wait([waiter])
            waiter.exception()
    finally:
        await ward.execute("rollback prepared 'forgotten'")


async def test_no_partitions(clinic_url: str) -> None:
    name = f"bare_{uuid.uuid4().hex[:12]}"
    owner = await asyncpg.connect(clinic_url)
    await owner.execute(f"create database {name}")
    try:
        url = with_database(clinic_url, name)
        await migrate(Database(url))
        found = (await examine(url, Settings())).findings
        assert [one.code for one in found if one.severity is not Severity.OK] == ["partitions.none"]
    finally:
        await owner.execute(f"drop database {name} with (force)")
        await owner.close()


async def _first_range(ward: Ward) -> tuple[str, str]:
    """That of this moment: how its tables' names end, and when it begins, as SQL."""
    row = await ward.sql.fetchrow(
        "select fencepost.part_suffix(min(starts_at)) as suffix, quote_literal(min(starts_at)) as start "
        "from fencepost.partitions"
    )
    return row["suffix"], row["start"]


async def test_a_later_range_does_not_hide_that_this_moment_has_none(clinic_url: str) -> None:
    name = f"bare_{uuid.uuid4().hex[:12]}"
    owner = await asyncpg.connect(clinic_url)
    await owner.execute(f"create database {name}")
    try:
        url = with_database(clinic_url, name)
        await _migrated(url)
        sql = await asyncpg.connect(url)
        await sql.fetchval("select fencepost.ensure_partitions(interval '3 days', 3)")
        ward = Ward(url, sql)
        suffix, start = await _first_range(ward)
        await sql.execute(
            f"drop table fencepost.jobs{suffix}, fencepost.finished{suffix}, fencepost.attempts{suffix};"
            f"delete from fencepost.partitions where starts_at = {start}"
        )
        assert [one.code for one in await ward.complaints()] == ["partitions.none"]
        await _migrated(url)
        assert await ward.complaints() == []
        await sql.close()
    finally:
        await owner.execute(f"drop database {name} with (force)")
        await owner.close()


async def test_the_last_partition_is_the_one_before_the_first_gap(ward: Ward) -> None:
    await ward.execute(
        "select fencepost.ensure_partitions(interval '3 days', 5);"
        "create temporary table seen as select fencepost.part_suffix(starts_at) as suffix, starts_at "
        "from fencepost.partitions order by starts_at offset 1 limit 1;"
        "do $$ declare t text; begin foreach t in array array['jobs', 'finished', 'attempts'] loop "
        "execute 'drop table fencepost.' || t || (select suffix from seen); end loop; end $$;"
        "delete from fencepost.partitions where starts_at = (select starts_at from seen)"
    )
    ward.settings["partition_days"] = 8
    assert [one.code for one in await ward.complaints()] == ["partitions.late"]


def _statements(found: Finding) -> str:
    """The SQL of a remedy, word for word."""
    remedy = found.remedy or ""
    assert remedy.endswith(" commit;")
    return remedy[remedy.index("begin;") :]


@pytest.mark.parametrize("tables", [("jobs",), ("finished",), ("attempts", "finished", "jobs")])
async def test_what_was_detached_is_attached_by_the_remedy_with_rows_that_came_since(
    ward: Ward, tables: tuple[str, ...]
) -> None:
    suffix, start = await _first_range(ward)
    held = await ward.sql.fetch("select id from fencepost.jobs order by 1")
    for table in tables:
        await ward.execute(f"alter table fencepost.{table} detach partition fencepost.{table}{suffix}")
    await ward.execute("select fencepost.enqueue('work')")
    await ward.execute(
        "with i as (delete from fencepost.leases returning *) insert into fencepost.finished "
        "select id, queue_id, 'completed', attempt, token, started_at, now() from i"
    )
    # A survey that was made meanwhile saw nothing of what is in there.
    await ward.execute(
        f"select fencepost.watch_range({start}); update fencepost.partitions "
        f"set surveyed_to = fencepost.first_id_at(ends_at), expired = 7 where starts_at = {start}"
    )
    found = await ward.complaints()
    assert found[0].code == "partitions.unattached"
    assert {one.code for one in found[1:]} <= {"audit.stray", "audit.lost", "audit.attempts", "audit.keys"}
    assert {one.remedy for one in found[1:]} == {"see to partitions.unattached first, and look again"}
    await ward.execute(_statements(found[0]))
    assert await ward.complaints() == []
    assert {row["id"] for row in held} < {row["id"] for row in await ward.sql.fetch("select id from fencepost.jobs")}
    for table in tables:
        assert await ward.sql.fetchval(f"select count(*) from fencepost.{table}_default") == 0
    assert await ward.sql.fetchval(
        f"select surveyed_to is null and expired = 0 from fencepost.partitions where starts_at = {start}"
    ) is ("finished" in tables)
    assert await ward.sql.fetchval(f"select fencepost.watch_range({start})"), "and it can be surveyed again"


@pytest.mark.parametrize("lost", [("jobs",), ("attempts", "finished", "jobs")])
async def test_what_is_gone_is_made_anew_by_the_remedy(ward: Ward, lost: tuple[str, ...]) -> None:
    suffix, start = await _first_range(ward)
    await ward.execute(f"select fencepost.watch_range({start})")
    for table in lost:
        await ward.execute(f"drop table fencepost.{table}{suffix}")
    await ward.execute("select fencepost.enqueue('work')")
    found = await ward.complaints()
    assert found[0].code == "partitions.lost"
    assert {one.remedy for one in found[1:]} == {"see to partitions.lost first, and look again"}
    await ward.execute(_statements(found[0]))
    assert {one.code for one in await ward.complaints()} <= {"audit.stray", "audit.attempts", "audit.keys"}
    for table in lost:
        assert await ward.sql.fetchval(f"select count(*) from fencepost.{table}_default") == 0
    assert await ward.sql.fetchval("select count(*) from fencepost.jobs") == 1
    assert await ward.sql.fetchval(f"select fencepost.watch_range({start})")


@pytest.mark.slow
async def test_poolers(ward: Ward) -> None:
    direct = ward.url
    with pgbouncer.running(direct, "transaction") as pooler:
        ward.url = pooler.url(direct)
        assert [one.code for one in await ward.complaints()] == ["pooler.mode"]
        ward.settings["database_pooler"] = Pooler.TRANSACTION
        assert [one.code for one in await ward.complaints()] == ["pooler.no_listen"]
    ward.url = direct
    assert [(one.code, one.severity) for one in await ward.complaints()] == [("pooler.mode", Severity.WARNING)]


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = make_folder("fencepost-standby-")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
async def test_a_standby_and_what_it_keeps_from_vacuum(folder: Path) -> None:
    """A standby by the copy of a folder; it says to the primary what its oldest query sees."""
    first, second = folder / "primary", folder / "standby"
    with EmbeddedPostgres(first) as primary:
        await _migrated(primary.dsn)
    _copied(first, second)
    with EmbeddedPostgres(first) as primary:
        sql = await asyncpg.connect(primary.dsn)
        host = await sql.fetchval("select current_setting('unix_socket_directories')")
        options = {
            "primary_conninfo": f"host={host} user=fencepost application_name=mirror",
            "hot_standby_feedback": "on",
            "wal_receiver_status_interval": "1",
        }
        with EmbeddedPostgres(second, options=options) as standby:
            assert await _codes(standby.dsn) == ["server.recovery"]
            both = standby.dsn.replace("&port=", f",{host}&port=")
            assert await _codes(both) == []
            nobody = standby.dsn.replace("&port=", f",{folder}&port=")
            assert await _codes(nobody) == ["server.recovery"]
            query = await asyncpg.connect(standby.dsn)
            await query.execute("begin isolation level repeatable read; select count(*) from fencepost.jobs")
            async with asyncio.timeout(60):
                while (codes := await _codes(primary.dsn, pinned_transactions=3)) == []:
                    await sql.execute("select pg_current_xact_id()")
            assert codes == ["transactions.standby"]
            query.terminate()
        await sql.close()


def _copied(first: Path, second: Path) -> None:
    """A standby of a server that doesn't run."""
    subprocess.run(["cp", "-a", first, second], check=True)
    subprocess.run(["cp", "-a", second / "postgres/PG_VERSION", second / "postgres/standby.signal"], check=True)


async def _migrated(url: str) -> None:
    database = Database(url, connections=2)
    await database.open()
    await prepare(database, partition_days=3)
    await database.close()


async def _codes(url: str, **limits: Any) -> list[str]:
    found = (await examine(url, Settings(), limits=Limits(**limits))).findings
    return [one.code for one in found if one.severity is not Severity.OK]


async def test_no_server_and_no_address() -> None:
    with pytest.raises(DatabaseUnavailable) as caught:
        await examine("postgresql://nobody@127.0.0.1:1/nothing", Settings())
    found = server.unreachable(caught.value)
    assert (found.code, found.what) == ("server.unreachable", caught.value.for_operator())
    with pytest.raises(InvalidSettings, match="DATABASE_URL"):
        await examine("no address", Settings())


def test_words() -> None:
    assert [duration(one) for one in (0.25, 59.6, 3599, 90000, 259200)] == ["250ms", "1m", "59m 59s", "1d 1h", "3d"]
    assert named([1, 2, 3], most=2) == "1, 2, …"
    assert worst([]) is Severity.OK
    assert worst([Finding("a", Severity.WARNING, "x")]) is Severity.WARNING
