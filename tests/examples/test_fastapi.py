"""The FastAPI example, under uvicorn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

from tests.ports import free_port

from .support import Program, call, count, refuse_at_commit, wait_until_answering, worker


@contextmanager
def served(database_url: str, **more: Any) -> Iterator[str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with Program(
        *("-m", "uvicorn", "--app-dir", ".", "fastapi_app:api", "--port", str(port)),
        started="Application startup complete",
        DATABASE_URL=database_url,
        **more,
    ) as program:
        wait_until_answering(f"{url}/openapi.json", program)
        yield url
    # Left in order, the worker and the connections of the lifespan with it.
    assert re.search(r"Application shutdown complete", program.text)


@pytest.mark.slow
def test_order_and_receipt_with_the_worker_inside(database_url: str) -> None:
    with served(database_url) as url:
        status, placed = call(f"{url}/orders", {"email": "ada@example.org", "cents": 1250})
        assert (status, placed["order"]) == (202, 1)
        assert call(f"{url}/jobs/{placed['job']}?wait=20") == (
            200,
            {"status": "completed", "result": "receipt over 12.50 sent to ada@example.org"},
        )


@pytest.mark.slow
def test_the_same_with_the_worker_beside(database_url: str) -> None:
    with served(database_url, WORKER="beside") as url:
        _, placed = call(f"{url}/orders", {"email": "ada@example.org", "cents": 1250})
        assert call(f"{url}/jobs/{placed['job']}") == (200, {"status": "pending", "result": None})
        with worker("fastapi_app:jobs", DATABASE_URL=database_url):
            assert call(f"{url}/jobs/{placed['job']}?wait=20")[1]["status"] == "completed"


@pytest.mark.slow
async def test_what_is_refused_makes_neither_order_nor_job(database_url: str) -> None:
    with served(database_url, WORKER="beside") as url:
        assert call(f"{url}/orders", {"email": "ada@example.org", "cents": 0})[0] == 422
        await refuse_at_commit(database_url, "orders", "new.cents = 13")
        assert call(f"{url}/orders", {"email": "ada@example.org", "cents": 13})[0] == 500
        assert (await count(database_url, "orders"), await count(database_url, "fencepost.jobs")) == (0, 0)
        assert call(f"{url}/orders", {"email": "ada@example.org", "cents": 14})[0] == 202
        assert (await count(database_url, "orders"), await count(database_url, "fencepost.jobs")) == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["jobs/{}", "jobs/{}?wait=0.1"])
def test_an_error_of_fencepost_answers_with_its_status(database_url: str, path: str) -> None:
    with served(database_url) as url:
        status, answer = call(f"{url}/{path.format(uuid4())}")
        assert (status, answer["code"]) == (404, "job_not_found")
