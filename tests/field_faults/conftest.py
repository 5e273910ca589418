"""All ways in to one database: an app, the API, SQL, and workers; none of them may leave anything behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencepost import Fencepost
from tests.api.conftest import api, services
from tests.library.conftest import app, settings
from tests.store.conftest import sql
from tests.worker.conftest import bench, proxy, unblock

__all__ = ["api", "app", "bench", "proxy", "services", "settings", "sql", "unblock"]


@pytest.fixture
def echo(app: Fencepost) -> Any:
    """A job of the app that returns what it got."""
    calls: Callable[..., Any] = app.job(name="echo")(_echo)
    return calls


async def _echo(payload: Any) -> Any:
    return payload
