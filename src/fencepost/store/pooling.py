"""
What a pooler takes away, and how it is found out that there is one.

Behind a pooler in transaction mode two statements of ours may run on two connections of the
server's, unless they are in one transaction. So nothing that belongs to a session can be
relied on: no setting, no prepared statement, no LISTEN, no lock of a session. `opening`
makes a transaction that brings its settings along, in one round trip.

A pooler answers for the server at the start, so the process number that it gives out is one of
its own: that is how it is told from a server. Which kind it is shows in whose connections two
clients are given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import asyncpg

from fencepost.errors import DatabaseUnavailable, InvalidSettings
from fencepost.settings.pooler import Pooler
from fencepost.store.connecting import connect
from fencepost.store.failures import LEFT_BEHIND, first_line, translated

__all__ = [
    "Pooler",
    "beginning",
    "check_direct",
    "check_listening",
    "check_session",
    "check_together",
    "corrections",
    "detect",
    "explained",
    "opening",
    "session_settings",
]

ROUNDS = 10
"""How often two clients are compared; a pooler in transaction mode gives both the same connection at once."""
PATIENCE_SECONDS = 3.0
"""How long the second client is waited for: one that gets no connection at all competes for whole sessions."""
_COMPARED = ("search_path", "jit", "enable_seqscan", "plan_cache_mode")
"""Settings that PostgreSQL shows as they were given, and that a role hardly has by itself."""
_MISTAKES = ("does not exist", "no such database", "no such user", "authentication failed")
"""A pooler says these in its own way, without the codes that PostgreSQL has for them."""
_ADVICE = (
    "set DATABASE_POOLER=transaction (or session, for a pooler or proxy that keeps one of the server's connections for "
    "each client), or connect to PostgreSQL itself"
)


def session_settings(settings: Mapping[str, str]) -> str:
    """SQL that gives a session its settings, for as long as it lasts."""
    return _setting(settings, is_local=False)


def _setting(settings: Mapping[str, str], *, is_local: bool) -> str:
    # Names are ours. `set` would take a list for one name when it is quoted.
    calls = ", ".join(
        f"pg_catalog.set_config('{name}', {_literal(value)}, {str(is_local).lower()})"
        for name, value in settings.items()
    )
    return f"select {calls}"


def _literal(value: str) -> str:
    """The same whatever the role's standard_conforming_strings is."""
    return "E'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def corrections(*, is_local: bool = False) -> str:
    """
    SQL that undoes what a role, a database or a server may have set against us, for the session or the transaction.

    `transaction_timeout`, which older servers don't know and would refuse at the start, would cut off what is meant to
    take longer. With `synchronous_commit = off` a crash loses what was acknowledged: jobs, and claims, whose lease
    tokens would be given out again. What else it may be says how many servers are waited for, and is left as it is.
    """
    local = str(is_local).lower()
    return (
        f"select pg_catalog.set_config('transaction_timeout', '0', {local}) "
        "where pg_catalog.current_setting('transaction_timeout', true) <> '0'; "
        f"select pg_catalog.set_config('synchronous_commit', 'local', {local}) "
        "where pg_catalog.current_setting('synchronous_commit') = 'off'"
    )


def beginning(*, snapshot: bool = False) -> str:
    """SQL that begins a transaction; with *snapshot* all its statements read the same state, and none writes."""
    return f"begin isolation level {'repeatable read, read only' if snapshot else 'read committed'}"


def opening(settings: Mapping[str, str], *, snapshot: bool = False) -> str:
    """SQL that begins a transaction with these settings, in one message, so on one connection."""
    return f"{beginning(snapshot=snapshot)}; {_setting(settings, is_local=True)}; {corrections(is_local=True)}"


async def detect(dsn: str) -> Pooler:
    """
    What *dsn* leads through, by how it behaves: nothing is asked of the pooler's administration.

    Opens two connections and changes nothing. Under a full pooler it may take some seconds, and a pooler in
    transaction mode that nobody else uses is told from one in session mode at the first look. Raises
    DatabaseUnavailable.
    """
    with translated():
        connection = await _plain(dsn)
        try:
            return await _behind(dsn, connection)
        finally:
            connection.terminate()


KEEPS_NO_SESSION = (
    "DATABASE_LISTEN_URL leads to a pooler that changes connections between transactions, where notifications "
    "get lost; give the address of PostgreSQL itself, or leave it out"
)


async def check_direct(dsn: str, connection: Any, settings: Mapping[str, str]) -> None:
    """
    Raise InvalidSettings when *connection*, which was to start with *settings*, leads to a pooler.

    A proxy that answers for the server but passes the settings on, and keeps a session for each client, is as good as
    none.
    """
    process, lost = await _compared(connection, settings)
    is_pooled = process != connection.get_server_pid()
    if is_pooled and (lost or not await _keeps_its_session(dsn, connection)):
        raise InvalidSettings(f"DATABASE_URL leads to a pooler, and DATABASE_POOLER says that there is none; {_ADVICE}")
    if lost:
        raise InvalidSettings(
            f"DATABASE_URL: the settings that our connections start with ({', '.join(lost)}) don't reach PostgreSQL; "
            f"a pooler between may drop them: {_ADVICE}"
        )


async def check_session(dsn: str, connection: Any) -> None:
    """Raise InvalidSettings when *connection*, made through *dsn*, isn't the same session from one use to the next."""
    if await _behind(dsn, connection) is Pooler.TRANSACTION:
        raise InvalidSettings(
            "DATABASE_POOLER is session, but the pooler that DATABASE_URL leads to changes connections between "
            "transactions; set DATABASE_POOLER=transaction, or pool_mode = session for this database in the pooler"
        )


async def check_listening(dsn: str, connection: Any) -> None:
    """Raise InvalidSettings when *connection*, made through *dsn* to listen, isn't one session: it may hear nothing."""
    if await _behind(dsn, connection) is Pooler.TRANSACTION:
        raise InvalidSettings(KEEPS_NO_SESSION)


async def check_together(listening: Any, working: Any) -> None:
    """Raise InvalidSettings when the one connection hears nothing of the other: they are of two databases."""
    heard, told = await _place(listening), await _place(working)
    if heard != told:
        raise InvalidSettings(
            f"DATABASE_LISTEN_URL leads to another database ({heard[0]}) than DATABASE_URL ({told[0]}), or to another "
            "server, where none of our hints are heard; give another address of the same one, or leave it out"
        )


@contextmanager
def explained() -> Iterator[None]:
    """At the start: turn a pooler's refusals, which no waiting changes, into InvalidSettings that name the setting."""
    try:
        yield
    except DatabaseUnavailable as error:
        meant = _meaning(error.__cause__)
        if meant is None:
            raise
        raise InvalidSettings(meant) from error


def _meaning(error: BaseException | None) -> str | None:
    if not isinstance(error, asyncpg.PostgresError):
        return None
    said = first_line(error)
    if isinstance(error, LEFT_BEHIND):
        return f"DATABASE_URL leads to a pooler that gives statements to other connections ({said}); {_ADVICE}"
    if "startup parameter" in said:
        return f"DATABASE_URL leads to a pooler, which refuses the settings of our connections ({said}); {_ADVICE}"
    if isinstance(error, asyncpg.ProtocolViolationError) and any(mistake in said for mistake in _MISTAKES):
        return f"DATABASE_URL: {said}"
    if "statement pooling" in said:
        return (
            f"DATABASE_URL leads to a pooler that allows no transactions ({said}); give this database "
            "pool_mode = transaction there"
        )
    return None


async def _plain(dsn: str) -> Any:
    options: dict[str, Any] = {
        "timeout": 5.0,
        "command_timeout": 2 * PATIENCE_SECONDS,
        "statement_cache_size": 0,
        "target_session_attrs": "any",
        "server_settings": {"application_name": "fencepost"},
    }
    return await connect(dsn, **options)


async def _behind(dsn: str, connection: Any) -> Pooler:
    """What *connection*, made through *dsn*, leads through."""
    if await _process(connection) == connection.get_server_pid():
        return Pooler.NONE
    return Pooler.SESSION if await _keeps_its_session(dsn, connection) else Pooler.TRANSACTION


async def _process(connection: Any) -> int:
    """The server's process behind the connection, at this moment."""
    return int(await connection.fetchval("select pg_catalog.pg_backend_pid()"))


async def _place(connection: Any) -> tuple[str, datetime]:
    """The database that it leads to, and what tells its server from others."""
    name, started_at = await connection.fetchrow(
        "select pg_catalog.current_database(), pg_catalog.pg_postmaster_start_time()"
    )
    return name, started_at


async def _compared(connection: Any, settings: Mapping[str, str]) -> tuple[int, list[str]]:
    """The server's process, and which of the settings that can be compared the session doesn't have."""
    names = [name for name in _COMPARED if name in settings]
    columns = ", ".join(f"pg_catalog.current_setting('{name}')" for name in names)
    process, *values = await connection.fetchrow(f"select pg_catalog.pg_backend_pid(), {columns}")
    return int(process), [name for name, value in zip(names, values, strict=True) if value != settings[name]]


async def _keeps_its_session(dsn: str, connection: Any) -> bool:
    """
    Whether *connection*, which a pooler answers, has one of the server's to itself.

    In transaction mode the one that it used last is the next client's. With others about it may get another one
    each time, which shows as well.
    """
    own = await _process(connection)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            other = await _plain(dsn)
            try:
                for _ in range(ROUNDS):
                    if await _process(other) == own or await _process(connection) != own:
                        return False
            finally:
                other.terminate()
    except (TimeoutError, asyncpg.PostgresConnectionError):
        # A second session isn't to be had: the pool is full, and in session mode it stays so.
        seen = {await _process(connection) for _ in range(ROUNDS)}
        return seen == {own}
    return True
