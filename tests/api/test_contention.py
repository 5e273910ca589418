"""What somebody's open transaction holds makes those wait who ask for it, and nobody else."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx2
import pytest

from tests.store.support import connect, waits_for_a_lock

pytestmark = pytest.mark.anyio

MANY = 24
"""More requests than this process has connections."""


def unique(number: int) -> dict[str, Any]:
    return {"type": "echo", "unique": {"key": f"k{number}"}}


def one_key(api: httpx2.AsyncClient, number: int, held: str) -> Awaitable[httpx2.Response]:
    return api.post("/jobs", json=unique(0))


def many_keys(api: httpx2.AsyncClient, number: int, held: str) -> Awaitable[httpx2.Response]:
    return api.post("/jobs", json=unique(number))


def idempotent(api: httpx2.AsyncClient, number: int, held: str) -> Awaitable[httpx2.Response]:
    return api.post("/jobs", json={"type": "echo"}, headers={"Idempotency-Key": "k0"})


def in_bulk(api: httpx2.AsyncClient, number: int, held: str) -> Awaitable[httpx2.Response]:
    return api.post("/jobs", json=[{"type": "echo"}, unique(number)])


def new_queue(api: httpx2.AsyncClient, number: int, held: str) -> Awaitable[httpx2.Response]:
    return api.post("/jobs", json={"type": "echo", "queue": "new"})


def cancel(api: httpx2.AsyncClient, number: int, held: str) -> Awaitable[httpx2.Response]:
    return api.post(f"/jobs/{held}/cancel")


HOLDS = [
    *(f"select fencepost.enqueue('echo', unique_key => 'k{number}')" for number in range(MANY)),
    "select fencepost.enqueue('echo', idempotency_key => 'k0')",
    "select fencepost.enqueue('echo', queue => 'new')",
    "select from fencepost.pending for update",
]


@pytest.mark.slow
@pytest.mark.parametrize("ask", [one_key, many_keys, idempotent, in_bulk, new_queue, cancel])
async def test_who_needs_nothing_of_it_is_answered_meanwhile(
    api: httpx2.AsyncClient, database_url: str, ask: Callable[..., Awaitable[httpx2.Response]]
) -> None:
    """
    somebody                        many requests                   others
    takes keys, makes a queue,
    locks a waiting job
                                    wait for what they hold
                                                                    have connections, and are answered
    rolls back
                                    are answered
    """
    held = (await api.post("/jobs", json={"type": "echo"})).json()["id"]
    somebody = await connect(database_url)
    try:
        await somebody.execute("begin")
        for statement in HOLDS:
            await somebody.execute(statement)
        waiting = [asyncio.create_task(_response(ask(api, number, held))) for number in range(MANY)]
        await waits_for_a_lock(somebody)
        # Long enough for each of them to have come to its own wait.
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            answers = await _all(
                api.get("/readyz"),
                api.get(f"/jobs/{held}"),
                api.post("/jobs", json={"type": "echo"}),
                api.post("/jobs", json={"type": "echo", "unique": {"key": uuid.uuid4().hex}}),
                api.post("/jobs", json={"type": "echo"}, headers={"Idempotency-Key": uuid.uuid4().hex}),
            )
            assert [one.status_code for one in answers] == [200, 200, 201, 201, 201], [one.text for one in answers]
        assert not any(task.done() for task in waiting), "it was to be waited for"
        await somebody.execute("rollback")
        ended = await asyncio.gather(*waiting)
        assert {one.status_code for one in ended} <= {200, 201, 409}, {one.text for one in ended}
        assert ended[0].status_code < 300 or ask is cancel
    finally:
        await somebody.close()


async def _response(asked: Awaitable[httpx2.Response]) -> httpx2.Response:
    return await asked


async def _all(*asked: Awaitable[httpx2.Response]) -> Sequence[httpx2.Response]:
    """Within less than the ten seconds that whoever waits may take, though this machine stands still for a while."""
    async with asyncio.timeout(6):
        return await asyncio.gather(*asked)
