"""A server whose settings a test may spoil, and a database on it that is in good health until then."""

from __future__ import annotations

import asyncio
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Collection, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending
from fencepost.embedded import EmbeddedPostgres
from fencepost.settings import Settings
from fencepost.store import grants
from fencepost.store.database import Database
from fencepost.store.doctor.examination import examine
from fencepost.store.doctor.findings import Finding, Limits, Severity
from fencepost.store.grants import Purpose
from fencepost.store.hints import Hints
from fencepost.store.job_types import JobTypes
from fencepost.store.jobs import Jobs
from fencepost.store.migrate import prepare
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore
from tests.conftest import with_database
from tests.store.support import Connection, claim, completed, ended, job, until

TEMPLATE = "clinic"
OPTIONS = {"max_prepared_transactions": "5", "max_connections": "60"}


@pytest.fixture(scope="session")
def clinic_url() -> Iterator[str]:
    """A server as it should be, unlike that of the other tests: it is durable. Has a template of a healthy database."""
    binaries = Path(os.environ["TEST_BINARIES"]) if "TEST_BINARIES" in os.environ else None
    with tempfile.TemporaryDirectory(prefix="fencepost-clinic-") as folder:
        Path(folder).chmod(0o711)
        with EmbeddedPostgres(Path(folder) / "data", binaries=binaries, options=OPTIONS) as server:
            asyncio.run(_build(server.dsn))
            yield server.dsn


async def _build(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(f"create database {TEMPLATE}")
    await connection.close()
    database = Database(with_database(url, TEMPLATE))
    await database.open()
    await prepare(database, partition_days=3)
    await _live(database)
    await database.close()


async def _live(database: Database) -> None:
    """Some jobs in every place, with keys and history, and a worker that is at it."""
    hints = Hints(database)
    queues = Queues(database, hints)
    jobs = Jobs(database, queues, hints)
    store = WorkerStore(database, uuid.uuid4())
    await jobs.enqueue([job(idempotency_key=f"key {n}", tags=("t",)) for n in range(6)])
    await jobs.enqueue([job(delay_seconds=86400.0, unique=None) for _ in range(3)])
    leases = await claim(store, await queues.id_of("default"), slots=3, lease_seconds=1e6)
    [one, two, _] = leases
    await store.settle(one.queue_id, [completed(one), ended(two, Ending.FAILED, Status.PENDING, delay_seconds=1e6)])
    # What is due is just due.
    await store.heartbeat(host="here", pid=1, version="0", slots=4)
    await JobTypes(database).declare(["work"])
    await hints.close()


class Ward:
    """A database of one test's own, and the doctor who looks at it."""

    def __init__(self, url: str, sql: Connection) -> None:
        self.url = url
        self.sql = sql
        self.limits: dict[str, Any] = {}
        self.settings: dict[str, Any] = {}
        self.quick = False

    async def execute(self, text: str) -> None:
        """Run SQL as the owner."""
        await self.sql.execute(text)

    async def findings(self) -> list[Finding]:
        """Everything, all that is well included."""
        settings = msgspec.structs.replace(Settings(), **self.settings)
        return (await examine(self.url, settings, quick=self.quick, limits=Limits(**self.limits))).findings

    async def complaints(self) -> list[Finding]:
        """What isn't well."""
        return [finding for finding in await self.findings() if finding.severity is not Severity.OK]

    async def set_server(self, **settings: str | None) -> None:
        """Change the server's settings; returns when they are in force. None resets one."""
        for name, value in settings.items():
            await self.sql.execute(
                f"alter system reset {name}" if value is None else f"alter system set {name} = '{value}'"
            )
        await self.sql.execute("select pg_reload_conf()")
        for name, value in settings.items():
            await until(lambda name=name, value=value: self._in_force(name, value))  # type: ignore[misc]

    async def _in_force(self, name: str, value: str | None) -> bool:
        row = await self.sql.fetchrow("select setting, boot_val, source from pg_settings where name = $1", name)
        return bool(row["setting"] == value if value is not None else row["source"] != "configuration file")

    async def reader(self, purposes: Collection[Purpose] = (Purpose.READER,)) -> str:
        """A role that may look, or what it is for, and see what others do; this doctor comes as it from now on."""
        role = f"reader_{uuid.uuid4().hex[:12]}"
        await self.execute(f"create role {role} login; grant pg_read_all_stats to {role}")
        database = Database(self.url, connections=2)
        await database.open()
        await grants.apply(database, role, purposes)
        await database.close()
        self.url = self.url.replace("//fencepost@", f"//{role}@")
        return role


@pytest.fixture
async def ward(clinic_url: str) -> AsyncIterator[Ward]:
    name = f"ward_{uuid.uuid4().hex[:12]}"
    owner = await asyncpg.connect(clinic_url)
    await owner.execute(f"create database {name} template {TEMPLATE}")
    url = with_database(clinic_url, name)
    sql = await asyncpg.connect(url)
    # As if it had all happened just now.
    await sql.execute(
        "update fencepost.workers set heartbeat_at = now(); update fencepost.job_types set declared_at = now();"
        "update fencepost.pending set run_at = now() where run_at < now()"
    )
    yield Ward(url, sql)
    await sql.close()
    await owner.execute(f"drop database {name} with (force)")
    for row in await owner.fetch("select rolname from pg_roles where rolname like 'reader\\_%'"):
        await owner.execute(f"drop owned by {row[0]}; drop role {row[0]}")
    await owner.close()
