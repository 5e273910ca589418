"""The fixtures of the store's, the workers' and the library's tests, for faults that cross them."""

from __future__ import annotations

from tests.library.conftest import app, settings
from tests.store.conftest import sql
from tests.worker.conftest import bench, proxy, unblock

__all__ = ["app", "bench", "proxy", "settings", "sql", "unblock"]
