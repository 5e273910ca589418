"""What each role may do: enough for its purpose, by every statement there is, and not one privilege more."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from fencepost.domain.ids import new_id
from fencepost.errors import InvalidSettings, PrivilegeMissing, SchemaMismatch
from fencepost.settings import Settings
from fencepost.store import grants, migrate, statements
from fencepost.store.database import HOT_SESSION, Database
from fencepost.store.grants import GRANTS, Grant, Purpose, grants_of
from fencepost.store.jobs import Jobs
from fencepost.store.retention import Keep, Retention
from fencepost.store.sessions import SESSION
from fencepost.store.steps import script, steps
from fencepost.store.workers import WorkerStore
from fencepost.telemetry.events import Events
from fencepost.worker.pruner import Pruner

from .history import History
from .support import Connection, claim, connect, job

pytestmark = pytest.mark.anyio

FOLDER = Path(statements.__file__).parent / "sql"
PRODUCER, WORKER, READER = Purpose
WRITES = {WORKER}
READS = {WORKER, READER}
ANYBODY = {PRODUCER, WORKER, READER}

STATEMENTS: dict[str, set[Purpose]] = {
    "audit": READS,
    "bulk_cancel": WRITES,
    "bulk_delete": WRITES,
    "bulk_ended": READS,
    "bulk_live": READS,
    "bulk_named": READS,
    "bulk_retry": WRITES,
    "cancel": WRITES,
    "cancel_requests": READS,
    "claim": WRITES,
    "complete": WRITES,
    "completed": READS,
    "count_expired": READS,
    "declare_types": WRITES,
    "declared_types": READS,
    "doctor/audit_attempts": READS,
    "doctor/audit_counts": READS,
    "doctor/audit_keys": READS,
    "doctor/audit_places": READS,
    "doctor/clock": ANYBODY,
    "doctor/default_rows": READS,
    "doctor/expired_leases": READS,
    "doctor/locks": ANYBODY,
    "doctor/objects": ANYBODY,
    "doctor/partitions": READS,
    "doctor/partitions_ahead": READS,
    "doctor/prepared": ANYBODY,
    "doctor/privileges": ANYBODY,
    "doctor/queues": READS,
    "doctor/ranges": READS,
    "doctor/role": ANYBODY,
    "doctor/schema": ANYBODY,
    "doctor/server": ANYBODY,
    "doctor/sessions": ANYBODY,
    "doctor/setting_overrides": ANYBODY,
    "doctor/setting_source": ANYBODY,
    "doctor/slots": ANYBODY,
    "doctor/standbys": ANYBODY,
    "doctor/steps": ANYBODY,
    "doctor/synchronous_standbys": ANYBODY,
    "doctor/tables": ANYBODY,
    "doctor/undeclared_types": READS,
    "doctor/workers": READS,
    "drain_state": READS,
    "drop_range": WRITES,
    "due_queues": READS,
    "enqueue": WRITES,
    "enqueue_jobs": {PRODUCER, WORKER},
    "enqueue_one": WRITES,
    "enqueue_plain": WRITES,
    "ensure_lane": WRITES,
    "ensure_partitions": WRITES,
    "ensure_queue": WRITES,
    "extend": WRITES,
    "find_queue": READS,
    "first_pending": READS,
    "forget_workers": WRITES,
    "grantee": ANYBODY,
    "grantee_excess": ANYBODY,
    "job_queue": READS,
    "key_spans": READS,
    "leased_queues": READS,
    "leave_range": WRITES,
    "list_all": READS,
    "list_completed": READS,
    "list_pending": READS,
    "list_processing": READS,
    "list_unsuccessful": READS,
    "lock_lease": WRITES,
    "notify": ANYBODY,
    "pause_queue": WRITES,
    "progress": WRITES,
    "prune_jobs": WRITES,
    "prune_keys": WRITES,
    "prune_unique_keys": WRITES,
    "queue_name": READS,
    "queue_overview": READS,
    "read_attempts": READS,
    "read_jobs": READS,
    "recover": WRITES,
    "register_worker": WRITES,
    "retention_spans": READS,
    "retry": WRITES,
    "schema_contents": ANYBODY,
    "server_facts": ANYBODY,
    "server_process": set(),
    "server_progress": ANYBODY,
    "settle": WRITES,
    "survey_range": WRITES,
    "turn": WRITES,
    "unfinished": READS,
    "watch_range": WRITES,
    "written": READS,
}
"""Who may run which file of store/sql. A new statement needs a line here, and perhaps a grant."""

CALLS = {"select fencepost.enqueue('work')": {PRODUCER}}
"""What isn't a file of ours: what people call."""


@pytest.fixture
async def roles(sql: Connection, database: Database) -> AsyncIterator[dict[Purpose, str]]:
    """A role for each purpose, as `fencepost grant` sets it."""
    made = {purpose: f"{purpose}_{new_id().hex[-12:]}" for purpose in Purpose}
    for purpose, role in made.items():
        await sql.execute(f"create role {role} login")
        await grants.apply(database, role, {purpose})
    yield made
    for role in made.values():
        await sql.execute(f"drop owned by {role}; drop role {role}")


async def attempt(sql: Connection, role: str, text: str, parameters: int = 0) -> str | None:
    """Run *text* as *role*, without arguments to speak of, and undo it; returns what the role lacked."""
    transaction = sql.transaction()
    await transaction.start()
    try:
        for name, value in {**SESSION, **HOT_SESSION}.items():
            await sql.execute("select set_config($1, $2, true)", name, value)
        await sql.execute(f"set local role {role}")
        await sql.fetch(text, *[None] * parameters)
    except asyncpg.InsufficientPrivilegeError as error:
        return str(error)
    except asyncpg.PostgresError:
        # It was allowed to find that these are no arguments.
        return None
    finally:
        await transaction.rollback()
    return None


def texts() -> dict[str, tuple[str, int, set[Purpose]]]:
    """All that a role may want to run: its text, how many parameters that has, and who may."""
    found: dict[str, tuple[str, int, set[Purpose]]] = {text: (text, 0, who) for text, who in CALLS.items()}
    for name, who in STATEMENTS.items():
        statement = statements.load(name, "fencepost")
        found[name] = (statement.text, len(statement.parameters), who)
    return found


def test_every_statement_is_in_the_table() -> None:
    assert sorted(STATEMENTS) == sorted(
        str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.rglob("*.sql")
    ), "say who may run it"


@pytest.mark.slow
async def test_each_role_may_run_its_statements_and_no_others(sql: Connection, roles: dict[Purpose, str]) -> None:
    for name, (text, parameters, who) in texts().items():
        allowed = {purpose for purpose in Purpose if await attempt(sql, roles[purpose], text, parameters) is None}
        assert allowed == who, name


@pytest.mark.slow
@pytest.mark.parametrize("purpose", list(Purpose))
async def test_no_privilege_is_granted_that_nothing_needs(
    sql: Connection, roles: dict[Purpose, str], purpose: Purpose
) -> None:
    role = roles[purpose]
    mine = {name: found for name, found in texts().items() if purpose in found[2]}
    for grant in GRANTS[purpose]:
        for word in grant.privileges:
            await sql.execute(f"revoke {word} on {grant.place('fencepost')} from {role}")
            lacking = [name for name, found in mine.items() if await attempt(sql, role, *found[:2])]
            assert lacking, f"{word} on {grant.name or 'the schema'} is never needed"
            await sql.execute(grant.sql(role, "fencepost"))


async def test_nothing_is_anybodys(sql: Connection) -> None:
    rows = await sql.fetch(
        """
        select 'schema' as what from pg_namespace n, aclexplode(n.nspacl) a
         where n.nspname = 'fencepost' and a.grantee = 0
        union all
        select c.relname from pg_class c, aclexplode(c.relacl) a
         where c.relnamespace = 'fencepost'::regnamespace and a.grantee = 0
        union all
        select p.proname from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
         where p.pronamespace = 'fencepost'::regnamespace and a.grantee = 0
        """
    )
    assert [row["what"] for row in rows] == []


async def test_what_acts_as_the_owner_looks_for_temporary_objects_last(sql: Connection) -> None:
    rows = await sql.fetch(
        "select proname as name, prosecdef as definer, proconfig as settings from pg_proc "
        "where pronamespace = 'fencepost'::regnamespace"
    )
    assert {row["name"] for row in rows if row["definer"]} == {
        "drop_range",
        "enqueue",
        "enqueue_jobs",
        "ensure_partitions",
        "watch_range",
    }
    for row in rows:
        paths = [one for one in row["settings"] or [] if one.startswith("search_path=")]
        # Those without any have the path of the function that calls them.
        assert paths == ["search_path=pg_catalog, pg_temp"] or (not paths and not row["definer"]), row["name"]


async def test_temporary_types_and_the_callers_path_are_not_used(
    sql: Connection, roles: dict[Purpose, str], database_url: str
) -> None:
    """A domain whose check runs the caller's code, under every name that our functions look up."""
    role = roles[PRODUCER]
    await sql.execute(f"create schema {role} authorization {role}; grant temporary on database {_name(sql)} to {role}")
    stranger = await connect(database_url)
    try:
        await stranger.execute(f"set session authorization {role}; create table {role}.seen (name text)")
        await stranger.execute(
            f"create function {role}.spy(v pg_catalog.text) returns pg_catalog.bool language plpgsql as "
            f"$$ begin insert into {role}.seen values (current_user); return true; end $$"
        )
        for name in ("uuid", "text", "jsonb", "timestamptz", "int4", "int2", "int8", "float8", "bool"):
            await stranger.execute(
                f"create domain pg_temp.{name} as pg_catalog.{name} check ({role}.spy(cast(value as pg_catalog.text)))"
            )
        await stranger.execute(
            f"create function {role}.jsonb_build_object(variadic pg_catalog.text[]) returns pg_catalog.jsonb "
            f"language sql as $$ insert into {role}.seen values (current_user); select null::pg_catalog.jsonb $$;"
            "create temporary table jobs (id pg_catalog.uuid); create temporary table pending (id pg_catalog.uuid);"
            f"set search_path = pg_temp, {role}, pg_catalog, fencepost"
        )
        await stranger.fetchval("select fencepost.enqueue('work', unique_key => 'u', idempotency_key => 'k')")
        await stranger.fetchval("select fencepost.enqueue('work', unique_key => 'u', unique_mode => 'replace')")
        assert await stranger.fetch(f"select distinct name from {role}.seen where name <> '{role}'") == []
        assert await sql.fetchval("select count(*) from fencepost.jobs") == 2
    finally:
        await stranger.close()
        await sql.execute(f"drop schema {role} cascade")


def _name(sql: Connection) -> str:
    return str(sql._params.database)


async def test_a_role_with_two_purposes_has_both_and_each_object_once(
    sql: Connection, roles: dict[Purpose, str], database: Database
) -> None:
    role = roles[PRODUCER]
    both = grants_of({PRODUCER, READER})
    assert len({(grant.kind, grant.name) for grant in both}) == len(both)
    await grants.apply(database, role, {PRODUCER, READER})
    assert await attempt(sql, role, "select fencepost.enqueue('work')") is None
    assert await attempt(sql, role, "select payload from fencepost.jobs") is None
    assert await attempt(sql, role, "delete from fencepost.jobs")


async def test_granting_takes_away_what_is_too_much_and_can_be_repeated(
    sql: Connection, roles: dict[Purpose, str], database: Database
) -> None:
    role = roles[READER]
    await sql.execute(
        f"grant all on all tables in schema fencepost to {role}; grant create on schema fencepost to {role}"
    )
    before = await _held(sql, role)
    await grants.apply(database, role, {READER})
    once = await _held(sql, role)
    await grants.apply(database, role, {READER})
    assert once == await _held(sql, role) == _listed(GRANTS[READER]) < before
    await grants.apply(database, role, set())
    assert await _held(sql, role) == set()


async def test_what_a_grant_can_not_take_away_is_told(
    sql: Connection, roles: dict[Purpose, str], database: Database
) -> None:
    """What everybody may, what another role lends, and what tables that are made later will be given."""
    role, other = roles[PRODUCER], roles[READER]
    assert await grants.apply(database, role, {PRODUCER}) == []
    await sql.execute("grant select on fencepost.workers to public")
    assert await grants.apply(database, role, {PRODUCER}) == ["select on workers"]
    await sql.execute("revoke select on fencepost.workers from public")
    await sql.execute(f"alter default privileges in schema fencepost grant select on tables to {role}")
    try:
        assert await grants.apply(database, role, {PRODUCER}) == ["select on tables made later"]
    finally:
        await sql.execute(f"alter default privileges in schema fencepost revoke select on tables from {role}")
    await sql.execute(f"grant {other} to {role}")
    more = await grants.apply(database, role, {PRODUCER})
    assert "select on jobs" in more
    assert "select on schema_version" not in more
    assert not [one for one in more if not one.startswith("select on ")]


def _listed(granted: tuple[Grant, ...]) -> set[tuple[str, str]]:
    return {(grant.name.split("(")[0], word) for grant in granted for word in grant.privileges}


async def _held(sql: Connection, role: str) -> set[tuple[str, str]]:
    """What the role has on objects of the schema."""
    rows = await sql.fetch(
        """
        select x.name, lower(a.privilege_type) as word
          from (
            select '' as name, nspacl as acl from pg_namespace where nspname = 'fencepost'
            union all
            select relname, relacl from pg_class where relnamespace = 'fencepost'::regnamespace
            union all
            select proname, proacl from pg_proc where pronamespace = 'fencepost'::regnamespace
          ) x, aclexplode(x.acl) a
         where a.grantee = cast(cast($1 as text) as regrole)
        """,
        role,
    )
    return {(row["name"], row["word"]) for row in rows}


async def test_a_producer_can_not_stand_in_for_anothers_job(
    sql: Connection, roles: dict[Purpose, str], jobs: Jobs, worker_store: WorkerStore, database_url: str
) -> None:
    """It can't have a second job under an id, lie about a token, or put a job where nobody looks."""
    [known] = await jobs.enqueue([job()])
    [lease] = await claim(worker_store, 1)
    stranger = await connect(database_url)
    try:
        await stranger.execute(f"set session authorization {roles[PRODUCER]}")

        async def send(**fields: Any) -> Any:
            one = {"id": str(new_id()), "type": "work", "payload": 1, "max_attempts": 1, "queue": "other", **fields}
            return await stranger.fetchval("select fencepost.enqueue_jobs($1)", json.dumps([one]))

        with pytest.raises(asyncpg.UniqueViolationError, match="there is a job with this id already"):
            await send(id=str(known.id))
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="queue_id: name the queue instead"):
            await send(queue_id=77)
        assert await send(token=99, attempts=7, status="completed", lease_token=99)
        for refused in (
            "select fencepost.store_jobs('[]', null, now(), null)",
            f'select fencepost.complete(\'{{"id": "{lease.id}", "queue_id": 1, "token": {lease.token}}}\')',
            "insert into fencepost.pending values (gen_random_uuid(), 1, 0, 0, 0, now())",
            "select payload from fencepost.jobs",
            "select result from fencepost.finished",
            "update fencepost.leases set token = token + 1",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await stranger.execute(refused)
    finally:
        await stranger.close()
    assert {row["token"] for row in await sql.fetch("select token from fencepost.pending")} == {0}
    assert (await jobs.audit())["jobs"] == 2


async def test_a_producer_stores_only_what_the_api_would_take(
    sql: Connection, roles: dict[Purpose, str], database_url: str
) -> None:
    """Else a row of its own could keep a page from being read, or a queue's claims busy with lanes nobody uses."""
    stranger = await connect(database_url)
    try:
        await stranger.execute(f"set session authorization {roles[PRODUCER]}")
        good = {"type": "work", "payload": 1, "max_attempts": 1, "queue": "here"}
        hold = {"key": "u", "until": "finished"}

        async def send(*many: dict[str, Any]) -> Any:
            records = [{"id": str(new_id()), **good, **one} for one in many]
            return json.loads(await stranger.fetchval("select fencepost.enqueue_jobs($1)", json.dumps(records)))

        await send({"unique": hold})
        # What enqueue's limits let through, they let through here.
        await stranger.fetchval(
            "select fencepost.enqueue('work', delay => '10 years', expires => '10 years', timeout => '24 h', "
            "priority => 100, max_attempts => 100, unique_key => 'p', unique_period => '10 years', tags => '{a,b}', "
            "metadata => '{}', idempotency_key => 'k', queue => 'here')"
        )
        for field, fields in (
            ("expires_at", {"expires_at": "0044-03-15 BC"}),
            ("expires_at", {"expires_at": "-infinity"}),
            ("interval", {"timeout_seconds": "NaN"}),
            ("interval", {"timeout_seconds": "Infinity"}),
            ("timeout", {"timeout_seconds": 1e6}),
            ("run_at", {"run_at": "infinity"}),
            ("delay", {"delay_microseconds": 87_661 * 3_600_000_000}),
            ("delay", {"delay_microseconds": -1}),
            ("expires", {"expires_microseconds": 87_661 * 3_600_000_000}),
            ("unique_period", {"unique": {**hold, "until": "period", "period_microseconds": 0}}),
            ("tags", {"tags": "{{a,b},{c,d}}"}),
            ("tags", {"tags": "{NULL}"}),
            ("tags", {"tags": [None]}),
            ("tags", {"tags": [["a"]]}),
            ("tags", {"tags": ["x" * 101]}),
            ("metadata", {"metadata": [1]}),
            ("type", {"type": "x" * 101}),
            ("queue", {"queue": "a\nb"}),
            ("priority", {"priority": 30000, "unique": hold}),
            ("idempotency_key", {"idempotency_key": "\n", "schedule": "now"}),
            ("unique_mode", {"unique": {**hold, "mode": "whichever"}}),
        ):
            with pytest.raises((asyncpg.InvalidParameterValueError, asyncpg.DataError), match=field):
                await send(fields)
    finally:
        await stranger.close()
    assert await sql.fetchval("select count(*) from fencepost.jobs") == 2
    assert await sql.fetchval("select count(*) from fencepost.lanes") == 2


async def test_a_producer_can_not_free_anothers_idempotency_key(
    sql: Connection, roles: dict[Purpose, str], jobs: Jobs, database_url: str
) -> None:
    """By two jobs of one id: what is told by the id would be true of both."""
    [theirs] = await jobs.enqueue([job(idempotency_key="k")])
    for table in ("jobs", "pending"):
        # As after retention, which keeps keys for longer where it is told to.
        await sql.execute(f"delete from fencepost.{table}")
    stranger = await connect(database_url)
    try:
        await stranger.execute(f"set session authorization {roles[PRODUCER]}")
        await stranger.fetchval("select fencepost.enqueue('work', unique_key => 'u')")
        fresh, hold = str(new_id()), {"unique": {"key": "u", "until": "finished"}}
        base = {"type": "work", "payload": 1, "max_attempts": 1, "queue": "default", "schedule": "now"}
        for which in (str(theirs.id), fresh):
            two = [
                {**base, "id": which, "idempotency_key": "k", **hold},
                {**base, "id": which, "idempotency_key": "other", "queue": "elsewhere"},
            ]
            for sent in (two, two[1:]) if which != fresh else (two,):
                with pytest.raises(asyncpg.UniqueViolationError, match="there is a job with this id already"):
                    await stranger.fetchval("select fencepost.enqueue_jobs($1)", json.dumps(sent))
    finally:
        await stranger.close()
    assert await sql.fetch("select key, job_id from fencepost.idempotency_keys") == [("k", theirs.id)]


async def test_whoever_acts_as_another_role_is_taken_for_that_one(
    sql: Connection, roles: dict[Purpose, str], database_url: str
) -> None:
    """Inside a function that acts as the owner only the role that was set tells who called it."""
    text = "select fencepost.enqueue_jobs($1)"
    record = {"type": "work", "payload": 1, "max_attempts": 1}
    await sql.fetchval("select fencepost.enqueue('work')")
    by_id = {**record, "queue_id": await sql.fetchval("select id from fencepost.queues")}
    both = f"both_{new_id().hex[-12:]}"
    await sql.execute(f"create role {both} noinherit login; grant {roles[PRODUCER]}, {roles[WORKER]} to {both}")
    stranger = await connect(database_url)
    try:
        await stranger.execute(f"set session authorization {both}; set role {roles[WORKER]}")
        await stranger.fetchval(text, json.dumps([{**by_id, "id": str(new_id())}]))
        await stranger.execute(f"set role {roles[PRODUCER]}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="queue_id: name the queue instead"):
            await stranger.fetchval(text, json.dumps([{**by_id, "id": str(new_id())}]))
    finally:
        await stranger.close()
        await sql.execute(f"drop role {both}")


async def test_a_queue_or_lane_that_is_not_there_is_refused(sql: Connection, jobs: Jobs) -> None:
    """A job in it would be accepted, and nobody would ever look there."""
    await jobs.enqueue([job()])
    known = await sql.fetchval("select id from fencepost.queues")
    text = "select fencepost.enqueue_jobs($1)"
    for place in ({"queue_id": known + 77}, {"queue_id": known, "priority": 3}):
        records = [
            {"id": str(new_id()), "type": "work", "payload": 1, "max_attempts": 1, **one}
            for one in ({"queue_id": known}, place)
        ]
        with pytest.raises(asyncpg.InvalidParameterValueError, match="queue_id: there is no queue"):
            await sql.fetchval(text, json.dumps(records))
        await sql.fetchval(text, json.dumps(records[:1]))
    assert await sql.fetchval("select count(*) from fencepost.pending") == 3


async def test_new_partitions_need_no_grant(sql: Connection, roles: dict[Purpose, str]) -> None:
    await sql.execute(f"set role {roles[WORKER]}")
    assert await sql.fetchval("select fencepost.ensure_partitions(interval '1 day', 12)") > 0
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await sql.execute("create table fencepost.mine (n int)")
    for width, ahead in (("1 microsecond", 5), ("1 day", 100_000), ("1000000 days", 1)):
        with pytest.raises(asyncpg.InvalidParameterValueError, match="width: must be from a day to ten years"):
            await sql.fetchval(f"select fencepost.ensure_partitions(interval '{width}', {ahead})")
    await sql.execute("reset role")
    owners = await sql.fetch("select distinct relowner from pg_class where relnamespace = 'fencepost'::regnamespace")
    assert len(owners) == 1


async def test_a_worker_prunes_without_owning_anything(
    sql: Connection, roles: dict[Purpose, str], database_url: str
) -> None:
    """A range is surveyed and dropped with its partitions, what must stay moved out, and another walked through."""
    history = History(sql)
    await history.begin()
    start = await history.range(days=20)
    gone = await history.ended(days=19, count=50, attempts=2, key="k")
    kept = await history.ended("dead_letter", days=19, ended=1, attempts=1)
    outside = await history.ended(days=40, count=3)
    database = Database(database_url, session={"role": roles[WORKER]}, connections=5)
    await database.open()
    try:
        store = WorkerStore(database, new_id())
        keep = Keep.of(Settings())
        report = await Pruner(Retention(database, keep), events=Events(), rest=0).run()
        await store.ensure_partitions(partition_days=3)
        await store.heartbeat(host="here", pid=1, version="0", slots=1)
        await store.forget(silence_seconds=60)
    finally:
        await database.close()
    assert (report.jobs, report.ranges, report.moved, report.left) == (53, 1, 1, 0)
    assert await history.left([*gone, *outside, *kept]) == set(kept)
    assert start not in await history.ranges()
    await history.whole()


async def test_who_can_not_be_granted_anything(sql: Connection, database: Database, empty_url: str) -> None:
    with pytest.raises(InvalidSettings, match="there is no role 'nobody'; have it made first"):
        await grants.apply(database, "nobody", {WORKER})
    with pytest.raises(InvalidSettings, match="may do everything already"):
        await grants.apply(database, await sql.fetchval("select current_user"), {WORKER})
    with pytest.raises(SchemaMismatch, match="there is no schema 'fencepost' of fencepost's"):
        await grants.apply(Database(empty_url), "nobody", {WORKER})
    with pytest.raises(InvalidSettings, match="ROLE must be"):
        grants.statements("", {WORKER}, "fencepost")


async def test_only_the_owner_grants(roles: dict[Purpose, str], database_url: str) -> None:
    database = Database(database_url, session={"role": roles[WORKER]}, connections=2)
    await database.open()
    try:
        with pytest.raises(PrivilegeMissing, match="only that role may grant"):
            await grants.apply(database, roles[READER], {WORKER})
    finally:
        await database.close()


async def test_whoever_could_use_the_functions_before_still_can(empty_url: str, monkeypatch: Any) -> None:
    """Step 5 takes execution from everybody, and gives it to those who had any use for it."""
    known = steps()
    monkeypatch.setattr(migrate, "steps", lambda: known[:4])
    await migrate.migrate(Database(empty_url))
    old, looks, outsider = (f"{word}_{new_id().hex[-12:]}" for word in ("old", "looks", "outsider"))
    sql = await connect(empty_url)
    try:
        await sql.execute(
            f"create role {old}; create role {looks}; create role {outsider};"
            f"grant usage on schema fencepost to {old}, {looks};"
            f"grant select, insert on fencepost.queues, fencepost.lanes, fencepost.jobs to {old};"
            f"grant select, insert, update, delete on fencepost.pending to {old};"
            f"grant select, insert, update, delete on fencepost.idempotency_keys, fencepost.unique_keys to {old};"
            f"grant select on fencepost.jobs to {looks}"
        )
        assert await attempt(sql, old, "select fencepost.enqueue('work')") is None
        monkeypatch.undo()
        assert await migrate.migrate(Database(empty_url)) == known[4:]
        assert await attempt(sql, old, "select fencepost.enqueue('work')") is None
        assert await attempt(sql, old, "select fencepost.enqueue_jobs('[]')") is None
        assert await attempt(sql, old, "select fencepost.ensure_partitions('1 day', 1)")
        assert await attempt(sql, looks, "select fencepost.enqueue('work')"), "it could not store jobs before either"
        assert await attempt(sql, looks, "select fencepost.first_id_at(now())") is None
        assert await attempt(sql, outsider, "select fencepost.first_id_at(now())")
    finally:
        for role in (old, looks, outsider):
            await sql.execute(f"drop owned by {role}; drop role {role}")
        await sql.close()


async def test_everybody_who_could_use_the_functions_before_still_can(empty_url: str, monkeypatch: Any) -> None:
    """Rights that were PUBLIC's stay PUBLIC's."""
    sql = await _at_step_four(empty_url, monkeypatch)
    anybody = f"anybody_{new_id().hex[-12:]}"
    try:
        await sql.execute(
            f"create role {anybody}; grant usage on schema fencepost to public;"
            "grant select, insert, update, delete on all tables in schema fencepost to public"
        )
        assert await attempt(sql, anybody, "select fencepost.enqueue('work')") is None
        monkeypatch.undo()
        await migrate.migrate(Database(empty_url))
        assert await attempt(sql, anybody, "select fencepost.enqueue('work')") is None
        assert await attempt(sql, anybody, "select fencepost.first_id_at(now())") is None
        assert await attempt(sql, anybody, "select fencepost.drop_range(now(), 1, 1)")
    finally:
        await sql.execute(f"drop owned by {anybody}; drop role {anybody}")
        await sql.close()


async def test_what_was_harmless_to_hand_out_is_taken_back(empty_url: str, monkeypatch: Any) -> None:
    """Execution by default privileges let nobody do anything while functions had their callers' rights."""
    known = steps()
    monkeypatch.setattr(migrate, "steps", lambda: known[:4])
    looks, friend = (f"{word}_{new_id().hex[-12:]}" for word in ("looks", "friend"))
    sql = await connect(empty_url)
    try:
        await sql.execute(f"create role {looks}; create role {friend}; create schema fencepost")
        await sql.execute(
            f"alter default privileges in schema fencepost grant execute on functions to {looks} with grant option"
        )
        await migrate.migrate(Database(empty_url))
        await sql.execute(
            f"grant usage on schema fencepost to {looks}, {friend}; set role {looks};"
            f"grant execute on function fencepost.watch_range to {friend}; reset role"
        )
        monkeypatch.undo()
        await migrate.migrate(Database(empty_url))
        for call in ("enqueue('work')", "enqueue_jobs('[]')", "watch_range(now())", "drop_range(now(), 1, 1)"):
            for role in (looks, friend):
                assert await attempt(sql, role, f"select fencepost.{call}"), call
        assert await attempt(sql, looks, "select fencepost.first_id_at(now())") is None
    finally:
        for role in (looks, friend):
            await sql.execute(f"drop owned by {role}; drop role {role}")
        await sql.close()


async def test_a_migration_calls_no_function_of_somebody_elses(empty_url: str, monkeypatch: Any) -> None:
    """One in `public` whose arguments fit better than PostgreSQL's would run with the rights of who migrates."""
    sql = await _at_step_four(empty_url, monkeypatch)
    try:
        await sql.execute("grant usage on schema fencepost to public; create table public.seen (what text)")
        for arguments in ("text, regprocedure", "text, regprocedure, text", "text, regprocedure, name"):
            await sql.execute(
                f"create function public.format({arguments}) returns text language plpgsql as "
                "$$ begin insert into public.seen values (current_user); return 'select 1'; end $$"
            )
        monkeypatch.undo()
        # As `migrate --print` is run: by a session that looks in public.
        for missing in script("fencepost").split("begin;\n")[-len(steps()[4:]) :]:
            await sql.execute(missing.removesuffix("commit;\n"))
        assert await sql.fetch("select * from public.seen") == []
        assert await migrate.migrate(Database(empty_url)) == []
    finally:
        await sql.close()


async def _at_step_four(empty_url: str, monkeypatch: Any) -> Connection:
    known = steps()
    monkeypatch.setattr(migrate, "steps", lambda: known[:4])
    await migrate.migrate(Database(empty_url))
    return await connect(empty_url)
