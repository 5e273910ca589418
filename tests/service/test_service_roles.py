"""The service with roles that own nothing: what each can do, and what is said when one lacks something."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import asyncpg
import psycopg
import pytest

from fencepost.app import Fencepost
from fencepost.errors import PrivilegeMissing, SchemaMismatch
from fencepost.settings import Settings
from fencepost.store import grants
from fencepost.store.database import Database
from fencepost.store.grants import Purpose
from fencepost.store.migrate import prepare
from tests.service.support import Service, wait_until

Login = Callable[..., str]
QUICK = {"RECOVERY_INTERVAL": "200ms", "POLL_INTERVAL": "100ms"}


@pytest.fixture
def login(database_url: str) -> Iterator[Login]:
    """Makes a role for some purposes; returns the address that it uses."""
    made: list[str] = []

    def make(*purposes: Purpose) -> str:
        role = f"app_{uuid.uuid4().hex[:12]}"
        _run(database_url, f"create role {role} login")
        made.append(role)
        _grant(database_url, role, *purposes)
        return database_url.replace("//fencepost@", f"//{role}@")

    yield make
    for role in made:
        _run(database_url, f"drop owned by {role}; drop role {role}")


def _run(url: str, text: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(text)


def _grant(url: str, role: str, *purposes: Purpose) -> None:
    async def run() -> None:
        database = Database(url, connections=2)
        await database.open()
        await grants.apply(database, role, purposes)
        await database.close()

    asyncio.run(run())


def _role(url: str) -> str:
    return url.split("//")[1].split("@")[0]


def test_a_worker_serves_everything_and_owns_nothing(database_url: str, login: Login) -> None:
    with Service("--workers", "2", DATABASE_URL=login(Purpose.WORKER), **QUICK) as service:
        done = service.post({"type": "sleep", "payload": {"duration": "1ms"}}, **{"Idempotency-Key": "k"})["id"]
        assert service.wait_for(done, "completed")["status"] == "completed"
        dead = service.post({"type": "fail_test", "max_attempts": 1})["id"]
        service.wait_for(dead, "dead_letter")
        assert service.call("POST", f"/jobs/{dead}/retry").status == 200
        service.wait_for(dead, "dead_letter")
        later = service.post({"type": "sleep", "payload": {"duration": "1h"}, "delay": "1h"})["id"]
        assert service.call("POST", f"/jobs/{later}/cancel").status == 200
        assert service.call("POST", "/queues/default/pause").status == 200
        assert service.call("POST", "/queues/default/resume").status == 200
        assert service.call("GET", "/jobs").status == 200
        assert service.call("GET", "/queues").status == 200
        assert service.call("GET", "/metrics").status == 200
        assert service.call("GET", "/readyz").status == 200
        assert "permission" not in "".join(service.logged)


@pytest.mark.parametrize("command", ["serve", "worker"])
@pytest.mark.parametrize("purpose", [Purpose.PRODUCER, Purpose.READER])
def test_a_role_for_something_else_does_not_start(login: Login, command: str, purpose: Purpose) -> None:
    ended = _fencepost(command, DATABASE_URL=login(purpose), HTTP_ADDR="127.0.0.1:0")
    assert ended.returncode == 4, ended.stderr
    assert "permission denied for function ensure_partitions" in ended.stderr
    assert "fencepost grant" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_role_that_was_granted_nothing_is_told_what_to_run(login: Login) -> None:
    url = login()
    ended = _fencepost("worker", DATABASE_URL=url)
    assert ended.returncode == 4
    assert f"run `fencepost grant {_role(url)} --to worker` as its owner, 'fencepost'" in ended.stderr


@pytest.mark.parametrize("command", ["serve", "worker", "migrate"])
def test_a_schema_that_is_behind_is_the_owners_to_change(database_url: str, login: Login, command: str) -> None:
    url = login(Purpose.WORKER)
    _run(database_url, "delete from fencepost.schema_version where number = 5")
    ended = _fencepost(command, DATABASE_URL=url, HTTP_ADDR="127.0.0.1:0")
    assert ended.returncode == 4
    assert ended.stderr.strip().endswith(
        f"the schema 'fencepost' lacks step 5 (roles), and the role '{_role(url)}' may not change it; "
        "run `fencepost migrate` as its owner, 'fencepost'"
    )


def test_a_database_without_a_schema(empty_url: str, login: Login) -> None:
    role = _role(login(Purpose.WORKER))
    ended = _fencepost("worker", DATABASE_URL=empty_url.replace("//fencepost@", f"//{role}@"))
    assert ended.returncode == 4
    assert "there is no schema 'fencepost' in this database, and the role" in ended.stderr


@pytest.mark.slow
def test_a_privilege_that_goes_missing_is_named_and_what_runs_goes_on_when_it_is_back(
    database_url: str, login: Login
) -> None:
    url = login(Purpose.WORKER)
    with Service("--workers", "2", DATABASE_URL=url, **QUICK) as service:
        _run(database_url, f"revoke all on fencepost.leases from {_role(url)}")
        job = service.post({"type": "sleep", "payload": {"duration": "1ms"}})["id"]
        refused = service.call("POST", f"/jobs/{job}/cancel")
        assert (refused.status, refused.headers["x-error-code"]) == (503, "privilege_missing")
        assert "permission denied for table leases" in refused.body["error"]
        wait_until(
            lambda: any("permission denied" in line for line in list(service.logged)), 20, "the worker to say so"
        )
        assert service.process.poll() is None
        _grant(database_url, _role(url), Purpose.WORKER)
        service.wait_for(job, "completed")
        logged = [json.loads(line) for line in service.logged]
        assert [line for line in logged if "exception" in line or "traceback" in str(line).lower()] == []


async def test_the_library_enqueues_as_a_producer(database_url: str, login: Login) -> None:
    """Alone, many at a time, with keys, and in a caller's transaction; it reads nothing."""
    url = await asyncio.to_thread(login, Purpose.PRODUCER)
    app = Fencepost(url, settings=Settings())

    @app.job
    async def greet(name: str) -> None: ...

    async with app:
        one = await greet.enqueue("Ada")
        again = [await greet.options(idempotency_key="k").enqueue("Bob") for _ in range(2)]
        many = await app.enqueue_many([greet.call(str(n)) for n in range(50)])
        connection = await asyncpg.connect(url)
        async with connection.transaction():
            within = await greet.within(connection).enqueue("Eve")
        await connection.close()
        with pytest.raises(PrivilegeMissing, match="permission denied"):
            await one.get()
    assert again[0].id == again[1].id
    assert len({one.id, again[0].id, within.id, *(handle.id for handle in many)}) == 53
    owner = await asyncpg.connect(database_url)
    assert await owner.fetchval("select count(*) from fencepost.pending") == 53
    await owner.close()


async def test_the_schema_is_left_alone_by_who_may_not_change_it(empty_url: str, login: Login) -> None:
    role = _role(await asyncio.to_thread(login, Purpose.WORKER))
    owner = Database(empty_url, connections=2)
    await owner.open()
    await prepare(owner, partition_days=3)
    await grants.apply(owner, role, {Purpose.WORKER})
    worker = Database(empty_url.replace("//fencepost@", f"//{role}@"), connections=2)
    await worker.open()
    assert await prepare(worker, partition_days=3) == []
    await owner.execute("delete from fencepost.schema_version where number = 5")
    with pytest.raises(SchemaMismatch, match="as its owner"):
        await prepare(worker, partition_days=3)
    await worker.close()
    await owner.execute(f"drop owned by {role}")
    await owner.close()


def _fencepost(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fencepost", *words],
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
