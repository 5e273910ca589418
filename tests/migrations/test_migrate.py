"""Steps: once each however many run them, whole or not at all, and refused when they don't fit."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from typing import Any

import pytest

from fencepost.errors import DatabaseUnavailable, SchemaMismatch
from fencepost.store import migrate as migrations
from fencepost.store.database import Database
from fencepost.store.migrate import applied, migrate, prepare
from fencepost.store.partitions import PARTITIONS_AHEAD
from fencepost.store.steps import Step, check, script, steps
from tests.migrations.dump import PATH, schema_text

pytestmark = pytest.mark.anyio


async def test_the_committed_schema_is_what_the_migrations_make(empty_url: str, sql: Any) -> None:
    """
    Review a migration by its result.

    When this fails after a change that was meant: `FENCEPOST_UPDATE_SCHEMA=1 pytest tests/migrations -k committed`.
    """
    await migrate(Database(empty_url))
    found = await schema_text(sql)
    if os.environ.get("FENCEPOST_UPDATE_SCHEMA"):
        PATH.write_text(found, encoding="utf-8")
    assert found == PATH.read_text(encoding="utf-8")


def test_steps_are_numbered_without_gaps() -> None:
    assert [step.number for step in steps()] == list(range(1, len(steps()) + 1))
    assert len({step.name for step in steps()}) == len(steps())


def test_every_step_says_what_it_locks() -> None:
    for step in steps():
        head = step.source.split("\n\ncreate", 1)[0]
        assert head.startswith("--")
        assert "Locks: " in head


async def test_a_second_run_has_nothing_to_do(empty_url: str) -> None:
    database = Database(empty_url)
    assert await applied(database) == []
    assert await migrate(database) == steps()
    assert await migrate(database) == []
    recorded = await applied(database)
    assert [(one.number, one.name, one.checksum, one.breaking) for one in recorded] == [
        (step.number, step.name, hashlib.sha256(step.source.encode()).hexdigest(), step.breaking) for step in steps()
    ]


async def test_twenty_at_once_apply_each_step_once(empty_url: str, sql: Any) -> None:
    done = await asyncio.gather(*(migrate(Database(empty_url)) for _ in range(20)))
    assert sorted(step.number for one in done for step in one) == [step.number for step in steps()]
    assert await schema_text(sql) == PATH.read_text(encoding="utf-8")
    assert await sql.fetchval("select count(*) from pg_locks where locktype = 'advisory'") == 0


@pytest.mark.slow
async def test_six_processes_at_once(empty_url: str, sql: Any) -> None:
    """With partitions, as the command does it."""
    program = (
        "import asyncio, sys\n"
        "from fencepost.store.database import Database\n"
        "from fencepost.store.migrate import prepare\n"
        "async def main():\n"
        "    database = Database(sys.argv[1], connections=2)\n"
        "    await database.open()\n"
        "    print(len(await prepare(database, partition_days=3)))\n"
        "    await database.close()\n"
        "asyncio.run(main())\n"
    )
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, empty_url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        for _ in range(6)
    ]
    answers = [await process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * 6, answers
    assert sum(int(out) for out, _ in answers) == len(steps())
    assert await sql.fetchval("select count(*) from fencepost.partitions") >= PARTITIONS_AHEAD


@pytest.fixture
def slow_step(monkeypatch: pytest.MonkeyPatch) -> Step:
    """One more step, which takes long in the middle."""
    number = len(steps()) + 1
    source = (
        "-- A step that takes long. Locks: none.\n"
        "create table fencepost.half (n int);\nselect pg_sleep(20);\ncreate table fencepost.whole (n int);\n"
    )
    step = Step(number, "slow", source)
    known = [*steps(), step]
    monkeypatch.setattr(migrations, "steps", lambda: known)
    return step


async def test_a_killed_run_leaves_nothing_half_done_and_can_be_repeated(
    empty_url: str, sql: Any, slow_step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = asyncio.get_running_loop().create_task(migrate(Database(empty_url)))
    waiting = asyncio.get_running_loop().create_task(migrate(Database(empty_url)))
    async with asyncio.timeout(10):
        killed = False
        while not killed:
            killed = bool(
                await sql.fetchval(
                    "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
                    "and wait_event = 'PgSleep'"
                )
            )
    ended, _ = await asyncio.wait([running, waiting], timeout=10, return_when=asyncio.FIRST_COMPLETED)
    [victim] = ended
    with pytest.raises(DatabaseUnavailable):
        await victim
    assert await sql.fetchval("select to_regclass('fencepost.half') is null"), "rolled back, though DDL had run"
    # The other took the lock over and is in the same step by now: kill that one too, then repeat with a short step.
    [other] = {running, waiting} - {victim}
    other.cancel()
    await asyncio.wait([other])
    quick = Step(slow_step.number, slow_step.name, slow_step.source.replace("pg_sleep(20)", "pg_sleep(0)"))
    known = [*steps(), quick]
    monkeypatch.setattr(migrations, "steps", lambda: known)
    await sql.fetch(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = current_database() "
        "and pid <> pg_backend_pid()"
    )
    assert await migrate(Database(empty_url)) == [quick]
    assert await sql.fetchval("select to_regclass('fencepost.whole') is not null")
    assert [one.number for one in await applied(Database(empty_url))] == [step.number for step in known]


@pytest.mark.slow
async def test_a_table_that_somebody_locks_is_not_waited_for_long(
    empty_url: str, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for an exclusive lock holds up everybody behind it: step aside and try again."""
    await migrate(Database(empty_url))
    step = Step(len(steps()) + 1, "alter", "alter table fencepost.pending add column extra int;\n")
    known = [*steps(), step]
    monkeypatch.setattr(migrations, "steps", lambda: known)
    monkeypatch.setattr(migrations, "_ROUNDS", 1)
    holder = sql.transaction()
    await holder.start()
    await sql.execute("lock table fencepost.pending in row exclusive mode")
    began = asyncio.get_running_loop().time()
    with pytest.raises(DatabaseUnavailable, match="keeps a table locked"):
        await migrate(Database(empty_url))
    assert asyncio.get_running_loop().time() - began < 6
    await holder.rollback()
    assert await migrate(Database(empty_url)) == [step]


async def test_a_step_that_was_changed_after_it_was_applied_is_refused(empty_url: str, sql: Any) -> None:
    await migrate(Database(empty_url))
    await sql.execute("update fencepost.schema_version set checksum = 'another'")
    with pytest.raises(SchemaMismatch, match=r"step 1 .* checksum differs"):
        await migrate(Database(empty_url))


@pytest.mark.parametrize("breaking", [False, True])
async def test_a_newer_schema(empty_url: str, sql: Any, breaking: bool) -> None:
    await migrate(Database(empty_url))
    await sql.execute(
        "insert into fencepost.schema_version (number, name, checksum, breaking) values (9999, 'future', 'x', $1)",
        breaking,
    )
    if breaking:
        with pytest.raises(SchemaMismatch, match=r"step 9999 .* upgrade this process"):
            await migrate(Database(empty_url))
    else:
        assert await migrate(Database(empty_url)) == []
    found = await applied(Database(empty_url))
    assert (found[-1].number, found[-1].breaking) == (9999, breaking)


def test_a_breaking_step_says_so_in_its_first_line() -> None:
    assert Step(2, "x", "-- breaking\nselect 1").breaking
    assert not Step(2, "x", "-- Adds a column.\n-- breaking\nselect 1").breaking
    check([Step(1, "x", "a")], [])


@pytest.mark.parametrize("schema", ["fencepost", "Job Queue", 'a"b'])
async def test_the_printed_script_makes_the_same_schema(empty_url: str, sql: Any, schema: str) -> None:
    await sql.execute(script(schema))
    assert await schema_text(sql, schema) == PATH.read_text(encoding="utf-8")
    assert await migrate(Database(empty_url, schema=schema)) == [], "and it is recorded as applied"
    database = Database(empty_url, schema=schema, connections=2)
    await database.open()
    await prepare(database, partition_days=3)
    await database.close()


async def test_an_old_server_is_refused(empty_url: str, monkeypatch: pytest.MonkeyPatch, sql: Any) -> None:
    monkeypatch.setattr(migrations, "LOWEST_SERVER", 990000)
    with pytest.raises(SchemaMismatch, match="fencepost needs 14 or newer"):
        await migrate(Database(empty_url))
    assert await sql.fetchval("select to_regnamespace('fencepost') is null")


async def test_a_role_that_may_not_create_a_schema_can_use_one_that_is_there(empty_url: str, sql: Any) -> None:
    """`create schema if not exists` would ask for the right even where nothing is to be made."""
    await sql.execute("create schema fencepost")
    assert await migrate(Database(empty_url)) == steps()
