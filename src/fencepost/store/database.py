"""
The seam to the driver.

Everything that knows asyncpg is here (and in `connecting.py`, `sessions.py`, `querying.py`, `listener.py`,
`migrate.py`, `pooling.py` and `failures.py`): the pool, and the statements that go through it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, cast

import asyncpg

from fencepost.settings import Settings
from fencepost.settings.pooler import Pooler
from fencepost.store import pooling, sessions, statements
from fencepost.store.connecting import connect
from fencepost.store.failures import UNAVAILABLE, is_broken, prepared, reaching, translated
from fencepost.store.lines import Lines
from fencepost.store.patience import Patience
from fencepost.store.querying import Row, Separately, Session
from fencepost.store.sessions import PATIENCE_SECONDS, SESSION, Sessions, taken

ACQUIRE_SECONDS = 5.0
"""Longest wait for a free connection; after that the caller is told, rather than queued for ever."""
LINES = 2
"""How many connections are kept for single statements, where there are enough of them."""

HOT_SESSION = {
    # The hot tables look empty to ANALYZE and are full of dead rows: only index scans driven by the
    # parameters stay fast there.
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
}
"""What a worker's sessions add."""


class Querier(Protocol):
    """What runs a statement: the pool, or one transaction of it."""

    async def fetch(self, name: str, /, **values: object) -> list[Row]:
        """Run `sql/<name>.sql` and return its rows."""
        ...


class Connection(Querier, Protocol):
    """One connection, held for several statements."""

    async def execute(self, sql: str, *arguments: object) -> None:
        """Run SQL text; with *arguments* for `$1`, `$2`, … it is prepared once and kept."""
        ...


class Database:
    """
    A pool of connections to one PostgreSQL, for one event loop.

    Every method raises DatabaseUnavailable when the server can't be reached, answers
    too late, refuses writes or asks for another try, and SchemaMismatch when our schema isn't there.
    The pool mends itself: a broken connection is dropped and a new one made when it is needed.

    *connections* is the most it opens; *lines* of them are kept for single statements, which
    then cost half as much (see lines.py). *pooler* is what *dsn* leads through; *listen_dsn* leads
    to the same database without one (see pooling.py).
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "fencepost",
        connections: int = 10,
        lines: int | None = None,
        session: Mapping[str, str] | None = None,
        pooler: Pooler = Pooler.NONE,
        listen_dsn: str | None = None,
    ) -> None:
        self.dsn = dsn
        self.schema = schema
        self.pooler = Pooler(pooler)
        self.listen_dsn = listen_dsn
        statements.quote_schema(schema)
        lines = min(LINES, connections // 5) if lines is None else lines
        # What they save is a small part of a statement that takes a transaction of its own.
        lines = 0 if self.pooler is Pooler.TRANSACTION else lines
        self._connections = connections - lines
        self.patience = Patience(max(1, connections // 2), wait_seconds=ACQUIRE_SECONDS)
        """For statements that may wait for other transactions' locks."""
        # They have a timer for all their statements.
        self._lines = Lines(lambda: self.connect(command_timeout=None), count=lines, patience_seconds=PATIENCE_SECONDS)
        self._sessions = Sessions(dsn, {**SESSION, **(session or {})}, self.pooler)
        self._pool: Any = None

    @classmethod
    def of(
        cls,
        settings: Settings,
        dsn: str,
        *,
        connections: int = 10,
        lines: int | None = None,
        session: Mapping[str, str] | None = None,
    ) -> Database:
        """The database at *dsn*, reached as the settings say."""
        return cls(
            dsn,
            schema=settings.schema,
            connections=connections,
            lines=lines,
            session=session,
            pooler=settings.database_pooler,
            listen_dsn=None if settings.listen_url is None else settings.listen_url.reveal(),
        )

    @property
    def channel(self) -> str:
        """The notification channel of this schema: two schemas of one database never hear each other."""
        return f"fencepost:{self.schema}"

    @property
    def can_listen(self) -> bool:
        """Whether notifications reach this process: not through a pooler that keeps no sessions."""
        return self.pooler is not Pooler.TRANSACTION or self.listen_dsn is not None

    @property
    def is_open(self) -> bool:
        """Whether `open` has succeeded. Says nothing about the server right now; `ping` does."""
        return self._pool is not None

    @property
    def connection_count(self) -> int:
        """How many connections it has open."""
        return 0 if self._pool is None else int(self._pool.get_size()) + self._lines.open_count

    async def open(self) -> None:
        """
        Connect once, to see that it works.

        Raises DatabaseUnavailable, and InvalidSettings for what waiting won't change: a URL
        that isn't one, a role or a database that the server doesn't know.
        """
        with pooling.explained(), translated(), reaching():
            self._pool = await self._make_pool()

    async def _make_pool(self) -> Any:
        pool = await asyncpg.create_pool(
            self.dsn,
            # A floor is restored by the driver itself, which logs a trace at each try while the database is away.
            min_size=0,
            max_size=self._connections,
            max_inactive_connection_lifetime=300,
            # Its type names every option of the driver's.
            connect=cast("Any", connect),
            init=self._sessions.make_ready,
            **self._sessions.options(),
        )
        try:
            # Nobody else holds one yet, and connecting has a time of its own.
            async with pool.acquire() as connection:
                if self.pooler is Pooler.NONE:
                    await pooling.check_direct(self.dsn, connection, self._sessions.settings)
                elif self.pooler is Pooler.SESSION:
                    await pooling.check_session(self.dsn, connection)
        except BaseException:
            pool.terminate()
            raise
        return pool

    async def reopen(self) -> None:
        """
        Give up every connection, whatever it is doing, and connect anew: those there are have gone silent.

        Who waits in one hears of an outage. Raises as `open` does.
        """
        old = self._pool
        self._lines.cut()
        if old is not None:
            old.terminate()
        with pooling.explained(), translated(), reaching():
            new = await self._make_pool()
        if self._pool is old:
            self._pool = new
        else:
            # Closed meanwhile, or reopened.
            new.terminate()

    async def connect(
        self, session: Mapping[str, str] | None = None, *, command_timeout: float | None = PATIENCE_SECONDS
    ) -> Any:
        """
        A connection that is not the pool's, with *session* on top of the usual settings. Raises the driver's errors.

        In transaction mode they are there only in `begun`.
        """
        return await self._sessions.connect(session, command_timeout=command_timeout)

    async def connect_to_listen(self) -> Any:
        """
        A connection for LISTEN: by the way that is meant for it, if there is one.

        Raises the driver's errors, DatabaseUnavailable, and InvalidSettings when that way keeps no sessions or leads
        elsewhere.
        """
        if self.listen_dsn is None:
            return await self.connect()
        # Not beside one of the pool's connections, which may all be busy.
        return await sessions.connect_to_listen(self.listen_dsn, beside=self._sessions)

    async def close(self) -> None:
        """Close every connection; waits a moment for those in use, then cuts them. Safe to call twice."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(5):
                await self._lines.close()
                await pool.close()
        except (TimeoutError, *UNAVAILABLE):
            self._lines.cut()
            pool.terminate()

    async def fetch(self, name: str, /, **values: object) -> list[Row]:
        """Run one statement in a transaction of its own and return its rows."""
        if not self._lines or self._pool is None:
            async with self.connection() as session:
                return await session.fetch(name, **values)
        statement = statements.load(name, self.schema)
        with translated(), prepared(self.schema):
            return await self._lines.fetch(statement.text, statement.arguments(values), is_broken=is_broken)

    @asynccontextmanager
    async def transaction(self, *, snapshot: bool = False) -> AsyncIterator[Querier]:
        """Several statements in one transaction; with *snapshot*, all reading the same state."""
        async with self._acquire() as connection, self.begun(connection, snapshot=snapshot):
            yield Session(connection, self.schema)

    def begun(
        self, connection: Any, *, snapshot: bool = False, session: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[None]:
        """A transaction on one connection, with *session* on top of the usual settings in transaction mode."""
        return self._sessions.begun(connection, snapshot=snapshot, session=session)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """One connection, where every statement commits by itself; end what you begin before giving it back."""
        async with self._acquire() as connection:
            if self.pooler is Pooler.TRANSACTION:
                yield Separately(connection, self.schema, self.begun)
            else:
                yield Session(connection, self.schema)

    async def execute(self, sql: str) -> None:
        """Run SQL text of ours that isn't a hot statement: `select 1`, a migration's step in tests."""
        async with self.connection() as session:
            await session.execute(sql)

    async def execute_alone(self, sql: str) -> None:
        """
        Run one statement that can't be inside of a transaction: `vacuum`, `create database`.

        In transaction mode it has none of our settings.
        """
        async with self._acquire() as connection:
            # In one message, so on one connection.
            await connection.execute(sql)

    async def ping(self) -> None:
        """Ask the server for a sign of life, within two seconds. Raises DatabaseUnavailable."""
        with translated():
            async with asyncio.timeout(2):
                await self.execute_alone("select 1")

    @asynccontextmanager
    async def _acquire(self) -> AsyncIterator[Any]:
        with translated():
            if self._pool is None:
                raise asyncpg.InterfaceError("the pool is not open")
            async with taken(self._pool, within_seconds=ACQUIRE_SECONDS) as connection:
                yield connection
