"""Which kind of connection somebody has passed."""

from __future__ import annotations

from typing import Any

from fencepost.errors import WrongConnection
from fencepost.transactions.adapters import Adapter, Asyncpg, Django, Psycopg, PsycopgAsync, SqlAlchemy, SqlAlchemyAsync

_KNOWN = (
    "pass an asyncpg or psycopg 3 connection, a SQLAlchemy connection or session (sync or async), or Django's "
    "connection"
)
_ADAPTERS: dict[tuple[str, str], type[Adapter]] = {
    ("asyncpg", "Connection"): Asyncpg,
    ("asyncpg", "PoolConnectionProxy"): Asyncpg,
    ("psycopg", "Connection"): Psycopg,
    ("psycopg", "AsyncConnection"): PsycopgAsync,
    ("sqlalchemy", "Connection"): SqlAlchemy,
    ("sqlalchemy", "Session"): SqlAlchemy,
    ("sqlalchemy", "scoped_session"): SqlAlchemy,
    ("sqlalchemy", "AsyncConnection"): SqlAlchemyAsync,
    ("sqlalchemy", "AsyncSession"): SqlAlchemyAsync,
    ("sqlalchemy", "async_scoped_session"): SqlAlchemyAsync,
    ("django", "BaseDatabaseWrapper"): Django,
}
_ADVICE: dict[tuple[str, str], str] = {
    ("asyncpg", "Pool"): "a pool has no transaction of yours: take a connection with `async with pool.acquire()`",
    ("asyncpg", "Transaction"): "pass the connection that the transaction is of",
    ("psycopg", "BaseCursor"): "pass the cursor's connection, `cursor.connection`",
    ("psycopg", "Transaction"): "pass the connection that the transaction is of",
    ("psycopg", "AsyncTransaction"): "pass the connection that the transaction is of",
    ("psycopg_pool", "BasePool"): "a pool has no transaction of yours: take a connection with `pool.connection()`",
    ("psycopg2", "connection"): "psycopg2 isn't known here; psycopg 3 is, also through SQLAlchemy or Django",
    ("psycopg2", "cursor"): "psycopg2 isn't known here; psycopg 3 is, also through SQLAlchemy or Django",
    ("sqlalchemy", "Engine"): "an engine has no transaction of yours: use `with engine.begin() as connection`",
    (
        "sqlalchemy",
        "AsyncEngine",
    ): "an engine has no transaction of yours: use `async with engine.begin() as …`",
    ("sqlalchemy", "sessionmaker"): "call it, and pass the session",
    ("sqlalchemy", "async_sessionmaker"): "call it, and pass the session",
    ("sqlalchemy", "SessionTransaction"): "pass the session",
    ("sqlalchemy", "RootTransaction"): "pass the connection",
    ("django", "CursorWrapper"): "pass the connection, `django.db.connection`",
    ("django", "ConnectionHandler"): "name the database: `connections['default']`",
}


def adapt(connection: Any) -> Adapter:
    """
    Find out how to run a statement in *connection*, without importing its driver.

    Raises WrongConnection, saying which can be used, for one that isn't known or doesn't lead to PostgreSQL.
    """
    if isinstance(connection, Adapter):
        return connection
    connection = _unwrapped(connection)
    names = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(connection).__mro__]
    adapter = next((_ADAPTERS[name] for name in names if name in _ADAPTERS), None)
    if adapter is None:
        advice = next((_ADVICE[name] for name in names if name in _ADVICE), _KNOWN)
        kind = type(connection)
        raise WrongConnection(f"{kind.__module__}.{kind.__qualname__} can't be used here; {advice}")
    found = adapter(connection)
    _check_postgresql(found, connection)
    return found


def _unwrapped(connection: Any) -> Any:
    """What Django's `connection` stands for: the connection of this thread."""
    if (type(connection).__module__, type(connection).__name__) == ("django.utils.connection", "ConnectionProxy"):
        return connection._connections[connection._alias]
    return connection


def _check_postgresql(adapter: Adapter, connection: Any) -> None:
    """Raise WrongConnection for a connection of the right kind to another database."""
    vendor = "postgresql"
    if isinstance(adapter, Django):
        vendor = connection.vendor
    elif isinstance(adapter, SqlAlchemy | SqlAlchemyAsync):
        vendor = _dialect(connection) or vendor
    if vendor != "postgresql":
        raise WrongConnection(f"{adapter.kind} to {vendor} can't be used here: the jobs are in PostgreSQL")


def _dialect(connection: Any) -> str | None:
    """The name of a SQLAlchemy connection's dialect; None when it isn't bound to a database yet."""
    dialect = getattr(connection, "dialect", None)
    if dialect is None:
        bind = getattr(connection, "bind", None)
        dialect = getattr(bind, "dialect", None)
    name = getattr(dialect, "name", None)
    return name if isinstance(name, str) else None
