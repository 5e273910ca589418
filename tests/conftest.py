"""
One PostgreSQL for each process of the run, one database a test.

The server is `TEST_DATABASE_URL` where that is set, else an embedded one of our own in
a temporary folder, from the programs in `TEST_BINARIES` or those that fencepost finds.
A migrated template is made once; each test that touches the database gets a clone of it
(about 40 ms), so tests may commit and never see each other.

With `TEST_POOLER` (`session` or `transaction`) every Database goes through a PgBouncer in
front of that server, unless its test is marked `direct`; what tests do to the tables from
outside goes to the server itself. `python -m tests.pooled` runs the tests that matter so.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import hypothesis
import pytest

from chaos.world.places import make_folder
from fencepost.embedded import EmbeddedPostgres
from fencepost.settings.pooler import Pooler
from fencepost.store.database import HOT_SESSION, Database
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.listing import Listing
from fencepost.store.migrate import prepare
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore
from tests import pgbouncer

# The same examples in every run; EXPLORE=1 draws new ones. None has a time of its own, nor has drawing them: a machine
# that stands still for 0.2 seconds would fail whatever is drawn just then.
hypothesis.settings.register_profile(
    "same",
    derandomize=not os.environ.get("EXPLORE"),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("same")

TEMPLATE = f"fencepost_template_{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"


def pytest_configure() -> None:
    """What tests stop by a signal would inherit that it is ignored: under nohup, or in the background of a shell."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


POOLER = Pooler(os.environ.get("TEST_POOLER", "none"))
"""What the tests of this run go through."""
POOL_SIZE = {Pooler.SESSION: 60, Pooler.TRANSACTION: 4}
"""How many of the server's connections a database gets: few enough for transactions to change places all the time."""

QUICK = {"fsync": "off", "max_connections": "200"}
"""No test here depends on surviving a power cut, and the machine's disk isn't what is tested."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every coroutine test runs under anyio's plugin."""
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.add_marker(pytest.mark.anyio)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The server's URL; the role may create databases."""
    given = os.environ.get("TEST_DATABASE_URL")
    if given:
        yield given
        return
    binaries = Path(os.environ["TEST_BINARIES"]) if "TEST_BINARIES" in os.environ else None
    # Not pytest's own folder: that is closed to all but root, and as root the server runs under another account.
    # In memory where there is room: a database a test is four hundred files a test.
    folder = make_folder("fencepost-tests-")
    try:
        with EmbeddedPostgres(folder / "data", binaries=binaries, options=QUICK) as server:
            yield server.dsn
    finally:
        shutil.rmtree(folder, ignore_errors=True)


collect_ignore = [] if pgbouncer.is_installed() else ["pooler"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What is left out must be seen."""
    if collect_ignore:
        terminalreporter.write_line(f"NOT RUN: tests/pooler. {pgbouncer.MISSING}")


@pytest.fixture(scope="session")
def bouncer(server_url: str) -> Iterator[pgbouncer.PgBouncer | None]:
    """The pooler of this run, if it has one."""
    if POOLER is Pooler.NONE:
        yield None
        return
    with pgbouncer.running(server_url, POOLER, pool_size=POOL_SIZE[POOLER]) as bouncer:
        yield bouncer


@pytest.fixture(autouse=POOLER is not Pooler.NONE)
def through_the_pooler(
    request: pytest.FixtureRequest, bouncer: pgbouncer.PgBouncer | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have every Database that is made without saying otherwise go through the run's pooler."""
    if bouncer is None or request.node.get_closest_marker("direct") is not None:
        return
    make, server = Database.__init__, urlsplit(bouncer.server_url).query

    def pooled(self: Database, dsn: str, **options: Any) -> None:
        if "pooler" not in options and urlsplit(dsn).query == server:
            options |= {"pooler": POOLER, "listen_dsn": dsn if POOLER is Pooler.TRANSACTION else None}
            dsn = bouncer.url(dsn)
        make(self, dsn, **options)

    monkeypatch.setattr(Database, "__init__", pooled)


def with_database(url: str, name: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(url)._replace(path="/" + name))


async def _run(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def template_url(server_url: str) -> str:
    async def build() -> None:
        await _run(server_url, f"drop database if exists {TEMPLATE}", f"create database {TEMPLATE}")
        database = Database(with_database(server_url, TEMPLATE))
        await database.open()
        await prepare(database, partition_days=3)
        await database.close()

    asyncio.run(build())
    return with_database(server_url, TEMPLATE)


@pytest.fixture
def empty_url(server_url: str) -> Iterator[str]:
    """A database without our schema."""
    name = f"fencepost_{uuid.uuid4().hex[:12]}"
    asyncio.run(_run(server_url, f"create database {name}"))
    yield with_database(server_url, name)
    asyncio.run(_run(server_url, f"drop database {name} with (force)"))


@pytest.fixture
def database_url(server_url: str, template_url: str) -> Iterator[str]:
    """A database of the test's own, with the current schema and no jobs."""
    name = f"fencepost_{uuid.uuid4().hex[:12]}"
    asyncio.run(_run(server_url, f"create database {name} template {TEMPLATE}"))
    yield with_database(server_url, name)
    asyncio.run(_run(server_url, f"drop database {name} with (force)"))


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """An open pool, as the API has it."""
    database = Database(database_url)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def hot_database(database_url: str) -> AsyncIterator[Database]:
    """An open pool, as a worker has it."""
    database = Database(database_url, session=HOT_SESSION)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def hints(database: Database) -> AsyncIterator[Hints]:
    hints = Hints(database)
    yield hints
    await hints.close()


@pytest.fixture
def queues(database: Database, hints: Hints) -> Queues:
    return Queues(database, hints)


@pytest.fixture
def jobs(database: Database, queues: Queues, hints: Hints) -> Jobs:
    return Jobs(database, queues, hints)


@pytest.fixture
def listing(database: Database, queues: Queues) -> Listing:
    return Listing(database, queues)


@pytest.fixture
def worker_store(hot_database: Database) -> WorkerStore:
    return WorkerStore(hot_database, uuid.uuid4())
