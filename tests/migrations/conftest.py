"""A plain connection; and what to say when the committed schema is out of date."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest


@pytest.fixture
async def sql(empty_url: str) -> AsyncIterator[Any]:
    """A plain connection to the test's own, empty database."""
    connection = await asyncpg.connect(empty_url)
    yield connection
    await connection.close()
