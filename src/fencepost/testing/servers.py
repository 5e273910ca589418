"""A server for a run of tests, a migrated template on it, and a clone of that for each test."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from fencepost.embedded import EmbeddedPostgres
from fencepost.settings import from_environment
from fencepost.store.database import Database
from fencepost.store.migrate import prepare
from fencepost.testing import clock

T = TypeVar("T")

QUICK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "200"}
"""No test has to survive a power cut."""


@contextmanager
def server() -> Iterator[str]:
    """
    The address of a PostgreSQL for tests, whose role may create databases.

    That of FENCEPOST_TEST_DATABASE_URL, or else an embedded one in a temporary folder.
    """
    given = os.environ.get("FENCEPOST_TEST_DATABASE_URL")
    if given:
        yield given
        return
    # Not pytest's own folder: that is closed to all but root, and as root the server runs under another account.
    with tempfile.TemporaryDirectory(prefix="fencepost-tests-") as folder:
        Path(folder).chmod(0o711)
        with EmbeddedPostgres(Path(folder) / "data", options=QUICK) as embedded:
            yield embedded.dsn


class Databases:
    """Databases on one server: each is as good as new, and gone afterwards."""

    def __init__(self, server_url: str) -> None:
        self._server = server_url
        self._template: str | None = None

    @contextmanager
    def new(self) -> Iterator[str]:
        """The address of a database of its own, with the schema and no jobs: a clone, so it takes some 40 ms."""
        template = self._template = self._template or self._make_template()
        name = _new_name()
        self._run(f"create database {name} template {template}")
        try:
            yield _with_database(self._server, name)
        finally:
            self._run(f"drop database if exists {name} with (force)")

    def close(self) -> None:
        """Drop the template."""
        if self._template is not None:
            self._run(f"drop database if exists {self._template} with (force)")
            self._template = None

    def _make_template(self) -> str:
        name = _new_name()
        self._run(f"create database {name}")
        settings = from_environment()

        async def migrate() -> None:
            database = Database(_with_database(self._server, name), schema=settings.schema, connections=2, lines=0)
            try:
                await database.open()
                await prepare(database, partition_days=settings.partition_days)
                await clock.install(database)
            finally:
                await database.close()

        apart(migrate)
        return name

    def _run(self, sql: str) -> None:
        async def run() -> None:
            database = Database(self._server, connections=1, lines=0)
            try:
                await database.open()
                await database.execute(sql)
            finally:
                await database.close()

        apart(run)


def apart(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function in a loop of another thread, so that the caller's thread may have one or not."""
    found: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            found.append(asyncio.run(work()))
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
            raised.append(error)

    thread = threading.Thread(target=run, name="fencepost-tests")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return found[0]


def _new_name() -> str:
    return f"fencepost_test_{uuid.uuid4().hex[:16]}"


def _with_database(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path="/" + name))
