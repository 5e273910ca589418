"""
One connection: how it is made, what it has set, and how a transaction on it begins and ends.

Where a session is ours it keeps its settings from the start on. Behind a pooler in transaction
mode no session is, so there each transaction brings them along (see pooling.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg

from fencepost.errors import DatabaseUnavailable, InvalidSettings
from fencepost.settings.pooler import Pooler
from fencepost.store import pooling, statements
from fencepost.store.connecting import connect
from fencepost.store.failures import LEFT_BEHIND, NO_WRITES, UNAVAILABLE, first_line, is_broken

STATEMENT_SECONDS = 30.0
PATIENCE_SECONDS = STATEMENT_SECONDS + 5
"""How long an answer is waited for: a little longer than the server works on it."""
CONNECT_SECONDS = 5.0
"""How long a connection may take to be made, and then again to be made ready."""
ROLLBACK_SECONDS = 5.0
"""How long a rollback is waited for: there is nothing left to gain on that connection."""

SESSION = {
    # Ours whatever the role's or the database's defaults are.
    "search_path": "pg_catalog",
    "timezone": "UTC",
    "statement_timeout": f"{STATEMENT_SECONDS:g}s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "10s",
    "idle_session_timeout": "0",
    "default_transaction_isolation": "read committed",
    "jit": "off",
    # A partition that nothing was filed in yet looks quick to scan, and the plan is kept while it fills.
    "enable_seqscan": "off",
    # Planning each call afresh costs more than running it, and no plan of ours depends on a value.
    "plan_cache_mode": "force_generic_plan",
}
"""What every session of ours has set."""


def look_first(schema: str) -> None:
    """
    Have every session that this process opens from now on look for functions in *schema* before PostgreSQL's own.

    For tests, which put a clock of theirs there. In a database without such a schema it changes nothing.
    """
    SESSION["search_path"] = f"{statements.quote_schema(schema)}, pg_catalog"


class OurConnection(asyncpg.Connection):
    """A connection of the driver's without what it does when a pool takes one back."""

    def get_reset_query(self) -> str:
        """Nothing: the sessions' settings are start-up parameters, so there is nothing to reset; it saves a trip."""
        return ""


class Sessions:
    """Makes connections to *dsn*, which leads through *pooler*, with *settings*; and begins transactions on them."""

    def __init__(self, dsn: str, settings: Mapping[str, str], pooler: Pooler) -> None:
        self._dsn = dsn
        self._settings = dict(settings)
        self._pooler = pooler

    @property
    def settings(self) -> Mapping[str, str]:
        """What a session has set."""
        return self._settings

    def options(self, settings: Mapping[str, str] | None = None) -> dict[str, Any]:
        """What a connection is made with. A pooler would refuse settings, or drop them."""
        is_direct = self._pooler is Pooler.NONE
        started = {**(self._settings if settings is None else settings)} if is_direct else {}
        options = {
            "server_settings": {"application_name": "fencepost", **started},
            "timeout": CONNECT_SECONDS,
            "command_timeout": PATIENCE_SECONDS,
            # Where the driver can't be told by the server it asks, in a statement of no transaction.
            "target_session_attrs": "read-write" if is_direct else "any",
            "connection_class": OurConnection,
        }
        return options | ({"statement_cache_size": 0} if self._pooler is Pooler.TRANSACTION else {})

    async def make_ready(self, connection: Any, settings: Mapping[str, str] | None = None) -> None:
        """
        Do what a connection that was just made needs before it is used; one that can't have it is cut off.

        Raises the driver's errors: TimeoutError when a pooler has no connection of the server's for it, say.
        """
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._make_ready(connection, self._settings if settings is None else settings)
        except BaseException:
            # Whoever closes it would wait for the answer.
            connection.terminate()
            raise

    async def _make_ready(self, connection: Any, settings: Mapping[str, str]) -> None:
        if self._pooler is Pooler.TRANSACTION:
            async with self.begun(connection):
                await _refuse_read_only(connection)
                await _pass_json_through(connection)
            return
        if self._pooler is Pooler.SESSION:
            await connection.execute(pooling.session_settings(settings))
            await _refuse_read_only(connection)
        await connection.execute(pooling.corrections())
        await _pass_json_through(connection)

    async def connect(
        self, session: Mapping[str, str] | None = None, *, command_timeout: float | None = PATIENCE_SECONDS
    ) -> Any:
        """One connection, with *session* on top of the settings, where they can be kept. Raises the driver's errors."""
        settings = {**self._settings, **(session or {})}
        connection = await connect(self._dsn, **(self.options(settings) | {"command_timeout": command_timeout}))
        await self.make_ready(connection, settings)
        return connection

    @asynccontextmanager
    async def begun(
        self, connection: Any, *, snapshot: bool = False, session: Mapping[str, str] | None = None
    ) -> AsyncIterator[None]:
        """
        A transaction on one connection, which is committed at the end, or rolled back for an error.

        It is begun and given its settings in one round trip where the session can't keep them; *session* is put on
        top of them there. A connection that must not be used again is cut off, so that nobody waits for it.
        """
        if self._pooler is Pooler.TRANSACTION:
            opening = pooling.opening({**self._settings, **(session or {})}, snapshot=snapshot)
        else:
            opening = pooling.beginning(snapshot=snapshot)
        try:
            await connection.execute(opening)
            yield
        except BaseException as error:
            if is_broken(error):
                cut_off(connection)
            else:
                await _roll_back(connection)
            raise
        try:
            ended = await connection.execute("commit")
        except BaseException as error:
            if is_broken(error):
                cut_off(connection)
            raise
        if ended != "COMMIT":
            raise asyncpg.InFailedSQLTransactionError("it was rolled back, since a statement in it had failed")


async def connect_to_listen(dsn: str, *, beside: Sessions) -> Any:
    """
    A connection for LISTEN through *dsn*, which may lead to anything that keeps a session for each client.

    Raises InvalidSettings when it keeps none, or leads elsewhere than *beside*; DatabaseUnavailable; and the driver's
    errors for a connection of *beside*.
    """
    listening = await _listening(dsn)
    try:
        await _check_together(listening, beside)
    except BaseException:
        listening.terminate()
        raise
    return listening


async def _check_together(listening: Any, beside: Sessions) -> None:
    working = await beside.connect()
    try:
        async with beside.begun(working):
            await pooling.check_together(listening, working)
    finally:
        working.terminate()


async def _listening(dsn: str) -> Any:
    try:
        connection = await Sessions(dsn, SESSION, Pooler.SESSION).connect()
        try:
            await pooling.check_listening(dsn, connection)
        except BaseException:
            connection.terminate()
            raise
    except LEFT_BEHIND as error:
        raise InvalidSettings(pooling.KEEPS_NO_SESSION) from error
    except asyncpg.exceptions.TargetServerAttributeNotMatched as error:
        raise DatabaseUnavailable(f"DATABASE_LISTEN_URL: {NO_WRITES}") from error
    except UNAVAILABLE as error:
        raise DatabaseUnavailable(f"DATABASE_LISTEN_URL: {first_line(error)}") from error
    return connection


@asynccontextmanager
async def taken(pool: Any, *, within_seconds: float) -> AsyncIterator[Any]:
    """
    One connection of the driver's *pool*, which is cut off when it must not be used again.

    Raises the driver's errors, and DatabaseUnavailable when all of them stay with others, which no server is to blame
    for.
    """
    connection = None
    try:
        async with pool.acquire(timeout=within_seconds) as connection:
            try:
                yield connection
            except BaseException as error:
                if is_broken(error):
                    cut_off(connection)
                raise
    except TimeoutError as error:
        if connection is not None or pool.get_size() < pool.get_max_size() or pool.get_idle_size():
            raise
        raise DatabaseUnavailable(
            f"all {pool.get_max_size()} connections of this process's pool are in use, and none came free within "
            f"{within_seconds:g}s"
        ) from error


def cut_off(connection: Any) -> None:
    """End a connection, without asking anybody; one that has ended already stays as it is."""
    # The driver's pool takes back one that has ended at once, and refuses everything from then on.
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


async def _roll_back(connection: Any) -> None:
    """What went wrong before is what is told; so a connection that can't do even this is only cut off."""
    try:
        await connection.execute("rollback", timeout=ROLLBACK_SECONDS)
    except asyncio.CancelledError:
        cut_off(connection)
        raise
    except UNAVAILABLE:
        cut_off(connection)


async def _refuse_read_only(connection: Any) -> None:
    """Raise as the driver does where it can ask the server itself: a standby, or one that is to become one."""
    if await connection.fetchval("select pg_catalog.current_setting('transaction_read_only')") == "on":
        raise asyncpg.exceptions.TargetServerAttributeNotMatched("the server takes no writes")


async def _pass_json_through(connection: Any) -> None:
    """Payloads and results stay bytes: they are decoded once, by whom they are for."""
    await connection.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        encoder=lambda raw: b"\x01" + raw,
        decoder=lambda raw: bytes(raw[1:]),
        format="binary",
    )
