"""
One statement, with one text in and one text out, in each driver's own way.

A caller's settings mustn't matter: row factories, codecs for JSON, loaders and cursors'
classes. So the parameter is cast from text and the value to text by the statement, and
each adapter takes the plainest way there is to run it. What the driver raises passes
through: the transaction is the caller's, and so are its errors.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, ClassVar

from fencepost.errors import WrongConnection

_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")


class Adapter:
    """How to run a statement of ours in one connection."""

    kind: ClassVar[str]
    """What it is, in words."""
    is_async: ClassVar[bool]

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def in_transaction(self) -> bool | None:
        """Whether a transaction is open in it; None when that can't be told."""
        return None

    async def has_transaction(self) -> bool | None:
        """As `in_transaction`; what is told by the driver underneath counts too."""
        return self.in_transaction

    def has_transaction_sync(self) -> bool | None:
        """The same for a sync connection."""
        return self.in_transaction

    async def fetch_value(self, sql: str, text: str) -> str:
        """Run *sql*, whose one parameter, spelled `:name`, is *text*; return its one value. Raises WrongConnection."""
        raise WrongConnection(f"{self.kind} is not async: use enqueue_sync, or complete_in_sync, without await")

    def fetch_value_sync(self, sql: str, text: str) -> str:
        """The same for a sync connection. Raises WrongConnection."""
        raise WrongConnection(f"{self.kind} is async: use `await ….enqueue(…)`, or `await ….complete_in(…)`")


class Asyncpg(Adapter):
    """asyncpg's connection, and what its pool gives out."""

    kind = "an asyncpg connection"
    is_async = True

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open in it."""
        return bool(self._connection.is_in_transaction())

    async def fetch_value(self, sql: str, text: str) -> str:
        """Run the statement; its value is text whatever codecs are set for JSON."""
        return str(await self._connection.fetchval(_PARAMETER.sub("$1", sql), text))


class Psycopg(Adapter):
    """psycopg's connection."""

    kind = "a psycopg connection"
    is_async = False

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open in it."""
        return int(self._connection.info.transaction_status) in _OPEN_STATUSES

    def fetch_value_sync(self, sql: str, text: str) -> str:
        """Run the statement in a plain cursor, whichever class the connection's own are of."""
        from psycopg import Cursor, rows

        with Cursor(self._connection, row_factory=rows.tuple_row) as cursor:
            cursor.execute(_percent(sql), [text])
            return _only(cursor.fetchone())


class PsycopgAsync(Adapter):
    """psycopg's async connection."""

    kind = "an async psycopg connection"
    is_async = True

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open in it."""
        return int(self._connection.info.transaction_status) in _OPEN_STATUSES

    async def fetch_value(self, sql: str, text: str) -> str:
        """Run the statement in a plain cursor, whichever class the connection's own are of."""
        from psycopg import AsyncCursor, rows

        async with AsyncCursor(self._connection, row_factory=rows.tuple_row) as cursor:
            await cursor.execute(_percent(sql), [text])
            return _only(await cursor.fetchone())


class SqlAlchemy(Adapter):
    """SQLAlchemy's connection or session."""

    kind = "a SQLAlchemy connection or session"
    is_async = False

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open in it. A session opens one with its first statement."""
        return bool(_current(self._connection).in_transaction())

    def has_transaction_sync(self) -> bool:
        """Whether one is open in the driver's connection, too, or will be with the next statement."""
        return self.in_transaction and not _commits_by_itself(_sync_connection(_current(self._connection)))

    def fetch_value_sync(self, sql: str, text: str) -> str:
        """Run the statement."""
        return str(self._connection.execute(_text_clause(sql), _parameters(sql, text)).scalar_one())


class SqlAlchemyAsync(Adapter):
    """SQLAlchemy's async connection or session."""

    kind = "an async SQLAlchemy connection or session"
    is_async = True

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open in it. A session opens one with its first statement."""
        return bool(_current(self._connection).in_transaction())

    async def has_transaction(self) -> bool:
        """Whether one is open in the driver's connection, too, or will be with the next statement."""
        if not self.in_transaction:
            return False
        connection = _current(self._connection)
        if not hasattr(connection, "sync_connection"):
            # A session's, which has one from its first statement on.
            connection = await connection.connection()
        return not await connection.run_sync(_commits_by_itself)

    async def fetch_value(self, sql: str, text: str) -> str:
        """Run the statement."""
        result = await self._connection.execute(_text_clause(sql), _parameters(sql, text))
        return str(result.scalar_one())


class Django(Adapter):
    """Django's connection to one database."""

    kind = "a Django connection"
    is_async = False

    @property
    def in_transaction(self) -> bool:
        """Whether it is inside of an atomic block."""
        return bool(self._connection.in_atomic_block)

    def fetch_value_sync(self, sql: str, text: str) -> str:
        """Run the statement in a cursor of its own."""
        with self._connection.cursor() as cursor:
            cursor.execute(_percent(sql), [text])
            return _only(cursor.fetchone())


_OPEN_STATUSES = (1, 2, 3)
"""libpq's ACTIVE, INTRANS and INERROR."""


def _percent(sql: str) -> str:
    """The statement with `%s` for its parameter."""
    return _PARAMETER.sub("%s", sql.replace("%", "%%"))


def _only(row: Any) -> str:
    return str(row[0])


def _current(connection: Any) -> Any:
    """The session that a scoped one stands for here; anything else itself."""
    return connection.registry() if hasattr(connection, "registry") else connection


def _sync_connection(connection_or_session: Any) -> Any:
    """SQLAlchemy's connection: of a session, which has one from its first statement on."""
    connection = connection_or_session.connection
    # A session's method; a connection's attribute is the driver's connection.
    return connection() if inspect.ismethod(connection) else connection_or_session


def _commits_by_itself(connection: Any) -> bool:
    """
    Whether SQLAlchemy's connection is in autocommit.

    Then its own transactions are nothing to the server. The driver is asked: it isn't only the isolation level that
    brings this about.
    """
    return bool(connection.connection.dbapi_connection.autocommit)


def _text_clause(sql: str) -> Any:
    # Whoever has such a connection has imported this.
    from sqlalchemy import text

    return text(sql)


def _parameters(sql: str, text: str) -> dict[str, str]:
    [name] = _PARAMETER.findall(sql)
    return {name: text}
