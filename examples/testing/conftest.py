"""The app as each test finds it."""

from __future__ import annotations

from collections.abc import Iterator

import orders
import pytest


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing is sent yet, and the provider answers."""
    orders.sent.clear()
    orders.provider_is_up = True
    yield
    orders.provider_is_up = True


@pytest.fixture
def anyio_backend() -> str:
    """The async tests run on asyncio."""
    return "asyncio"
