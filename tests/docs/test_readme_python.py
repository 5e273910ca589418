"""The Python of the README runs as written, beside a worker and in a transaction, as its text says."""

from __future__ import annotations

import ast
import inspect
import sys
import types

import asyncpg
import pytest

from fencepost.domain.job import Status
from fencepost.store.jobs import Jobs
from tests.worker.support import wait_until

from .library_page import blocks


async def test_the_python_of_the_readme_runs(database_url: str, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    (_, declaring), (_, enqueueing) = blocks("README.md")
    shop = types.ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", shop)
    exec(compile(declaring, "README.md", "exec"), shop.__dict__)
    connection = await asyncpg.connect(database_url)
    async with shop.app, shop.app.worker():
        async with connection.transaction():
            shop.__dict__["connection"] = connection
            code = compile(enqueueing, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            running = eval(code, shop.__dict__)
            assert inspect.iscoroutine(running)
            await running
            assert (await jobs.get(shop.handle.id)).status is Status.COMPLETED
            assert await connection.fetchval("select count(*) from fencepost.pending") == 1, "it waits for the commit"

        async def both_ran() -> bool:
            return bool(await connection.fetchval("select count(*) from fencepost.finished") == 2)

        await wait_until(both_ran, 5)
    await connection.close()
