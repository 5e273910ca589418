"""The connection that the checks look through: one transaction, which reads one state and can't write."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from fencepost.settings import Settings
from fencepost.store import pooling, statements
from fencepost.store.connecting import connect
from fencepost.store.doctor.findings import Limits
from fencepost.store.failures import Unreachable, reaching, translated
from fencepost.store.querying import Row

STATEMENT_SECONDS = 15.0
"""What a check's statement may take. The audit's have what is left of its own time."""
_SESSION = {
    "search_path": "pg_catalog, pg_temp",
    "timezone": "UTC",
    "statement_timeout": f"{STATEMENT_SECONDS:g}s",
    "lock_timeout": "2s",
    "idle_in_transaction_session_timeout": "60s",
    "jit": "off",
}


_OPTIONS: dict[str, Any] = {
    "timeout": 10.0,
    "command_timeout": None,
    "statement_cache_size": 0,
    "server_settings": {"application_name": "fencepost doctor"},
}


class Patient:
    """A database under examination, and what it is meant to be like."""

    def __init__(self, connection: Any, dsn: str, settings: Settings, limits: Limits) -> None:
        self._connection = connection
        self.dsn = dsn
        self.settings = settings
        self.limits = limits

    @property
    def schema(self) -> str:
        """The schema's name."""
        return self.settings.schema

    async def fetch(self, name: str, /, *, seconds: float = STATEMENT_SECONDS, **values: object) -> list[Row]:
        """Run `sql/doctor/<name>.sql`. Raises the driver's errors; what was read before stays readable."""
        statement = statements.load(f"doctor/{name}", self.schema)
        milliseconds = max(1, round(seconds * 1000))
        # A savepoint, so that one check's failure isn't the next one's.
        await self._connection.execute(f"savepoint look; set local statement_timeout = {milliseconds}")
        try:
            rows: list[Row] = await self._connection.fetch(statement.text, *statement.arguments(values))
        except asyncpg.PostgresError:
            await self._connection.execute("rollback to savepoint look")
            raise
        await self._connection.execute("release savepoint look")
        return rows


@asynccontextmanager
async def admitted(dsn: str, settings: Settings, limits: Limits) -> AsyncIterator[Patient]:
    """
    Connect: of several servers to one that takes writes, as everybody else does; else to any that answers.

    Raises DatabaseUnavailable, and InvalidSettings for an address that can't be one.
    """
    with translated():
        with reaching():
            connection = await _reached(dsn)
        try:
            await connection.execute(pooling.opening(_SESSION, snapshot=True))
            yield Patient(connection, dsn, settings, limits)
        finally:
            # Nothing is to be committed, and a server that hangs isn't waited for.
            connection.terminate()


async def _reached(dsn: str) -> Any:
    try:
        return await connect(dsn, target_session_attrs="read-write", **_OPTIONS)
    except asyncpg.exceptions.TargetServerAttributeNotMatched:
        pass
    except Unreachable as error:
        # Of several one may answer all the same.
        if "," not in error.place:
            raise
    return await connect(dsn, target_session_attrs="any", **_OPTIONS)
