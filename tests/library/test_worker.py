"""What a worker brings to a declared job: resources, and a child process for what computes."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest

from fencepost import Context, Fencepost, InvalidSettings, JobFailed, Settings, resource

from . import computing


class Pool:
    def __init__(self, name: str) -> None:
        self.name = name


async def test_resources_are_found_by_name_and_by_type(database_url: str, settings: Settings) -> None:
    said: list[str] = []

    async def lifespan(given: Fencepost) -> AsyncGenerator[dict[str, Any], None]:
        assert given is app
        yield {"pool": Pool("by its own name"), "other": Pool("by another"), "number": 7}
        said.append("closed")

    app = Fencepost(database_url, settings=settings, lifespan=lifespan)

    @app.job
    async def take(pool: Pool = resource(), *, named: Pool = resource("other"), count: int = resource()) -> list[Any]:
        return [pool.name, named.name, count]

    @app.job
    def in_thread(context: Context, factor: int, *, number: int = resource()) -> int:
        return number * factor

    async with app, app.worker():
        assert await (await take.enqueue()).result(timeout=5) == ["by its own name", "by another", 7]
        assert await (await in_thread.enqueue(6)).result(timeout=5) == 42
        assert said == []
    assert said == ["closed"]


async def test_a_worker_doesnt_start_without_a_resource(database_url: str, settings: Settings) -> None:
    app = Fencepost(database_url, settings=settings)

    @app.job
    async def take(*, pool: Pool = resource()) -> None: ...

    with pytest.raises(InvalidSettings, match="job type 'take', parameter 'pool': there is no resource of type Pool"):
        async with app.worker():
            pass
    assert app._producer.wakers == []
    await app.close()


async def test_what_computes_runs_in_a_child(database_url: str, settings: Settings) -> None:
    computing.app.use(database_url, settings=settings)
    async with computing.app as app, app.worker():
        handle = await computing.compute.enqueue(timedelta(minutes=1))
        pid, seconds, kind = await handle.result(timeout=20)
        assert (seconds, kind) == (60.0, "compute")
        assert pid != os.getpid()
        with pytest.raises(JobFailed, match="ended failed: as asked"):
            await (await computing.compute.enqueue(timedelta(1), fail=True)).result(timeout=20)
