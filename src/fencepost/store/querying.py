"""Statements on one connection, by their files' names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from fencepost.store import statements
from fencepost.store.failures import prepared

Row = Mapping[str, Any]


class Session:
    """One connection of the driver's. Raises its errors."""

    def __init__(self, connection: Any, schema: str) -> None:
        self._connection = connection
        self._schema = schema

    async def fetch(self, name: str, /, **values: object) -> list[Row]:
        """Run `sql/<name>.sql` and return its rows."""
        statement = statements.load(name, self._schema)
        with prepared(self._schema):
            rows: list[Row] = await self._connection.fetch(statement.text, *statement.arguments(values))
        return rows

    async def execute(self, sql: str, *arguments: object) -> None:
        """Run SQL text."""
        await self._connection.execute(sql, *arguments)


class Separately(Session):
    """The same where no session is ours: every statement in a transaction of its own, which *begun* makes."""

    def __init__(self, connection: Any, schema: str, begun: Callable[[Any], AbstractAsyncContextManager[None]]) -> None:
        super().__init__(connection, schema)
        self._begun = begun

    async def fetch(self, name: str, /, **values: object) -> list[Row]:
        """Run `sql/<name>.sql` and return its rows."""
        async with self._begun(self._connection):
            return await super().fetch(name, **values)

    async def execute(self, sql: str, *arguments: object) -> None:
        """Run SQL text."""
        async with self._begun(self._connection):
            await super().execute(sql, *arguments)
