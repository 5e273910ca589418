"""A connection for looking at the tables from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from .support import Connection, connect


@pytest.fixture
async def sql(database_url: str) -> AsyncIterator[Connection]:
    """A plain connection to the test's database."""
    connection = await connect(database_url)
    yield connection
    await connection.close()
