"""The Django project and what it stands on, by the commands of its manage.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import pytest

from tests.ports import free_port
from tests.service.support import wait_until

from .support import EXAMPLES, Program, call, run, wait_until_answering

SITE = EXAMPLES / "django_site"


def manage(*arguments: str, **more: Any) -> str:
    """Run manage.py to its end; returns what it has said."""
    ended = run("manage.py", *arguments, folder=SITE, **more)
    return ended.stdout + ended.stderr


async def fetch(url: str, sql: str) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()


@pytest.fixture
def site_url(empty_url: str) -> str:
    """A database that `manage.py migrate` has made ready, from nothing."""
    said = manage("migrate", DATABASE_URL=empty_url)
    assert "Applying fencepost.0001_initial... OK" in said
    return empty_url


@contextmanager
def served(url: str) -> Iterator[str]:
    port = free_port()
    site = f"http://127.0.0.1:{port}"
    with Program(
        *("manage.py", "runserver", "--noreload", str(port)), folder=SITE, started="Quit the server", DATABASE_URL=url
    ) as program:
        wait_until_answering(f"{site}/nothing", program)
        yield site


def worker(url: str, *arguments: str) -> Program:
    # From another folder: what it starts must find the project all the same.
    return Program("django_site/manage.py", "fencepost", "worker", *arguments, started="no API", DATABASE_URL=url)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["--processes", "2"]], ids=["one", "processes"])
async def test_orders_get_their_receipts(site_url: str, arguments: list[str]) -> None:
    with served(site_url) as site, worker(site_url, *arguments):
        placed = [call(f"{site}/orders", {"email": "ada@example.org", "cents": cents}) for cents in (100, 250)]
        assert [status for status, _ in placed] == [202, 202]
        numbers = [answer["order"] for _, answer in placed]
        wait_until(
            lambda: all(call(f"{site}/orders/{number}")[1]["job"] == "completed" for number in numbers), 20, "receipts"
        )
        assert call(f"{site}/orders/{numbers[1]}")[1]["receipt"] == "receipt over 2.50 for ada@example.org"


@pytest.mark.slow
async def test_an_error_in_the_view_leaves_neither_order_nor_job(site_url: str) -> None:
    with served(site_url) as site:
        assert call(f"{site}/orders", {"email": "ada@example.org", "cents": 0})[0] == 500
    assert await fetch(site_url, "select id from shop_order") == []
    assert await fetch(site_url, "select id from fencepost.jobs") == []


@pytest.mark.slow
def test_the_service_runs_for_the_project_too(site_url: str) -> None:
    """`manage.py fencepost serve`: the HTTP API takes jobs of its types, and runs them."""
    port = free_port()
    with Program(
        *("manage.py", "fencepost", "serve", "--http-addr", f"127.0.0.1:{port}"),
        folder=SITE,
        started="API on",
        DATABASE_URL=site_url,
    ):
        url = f"http://127.0.0.1:{port}/jobs"
        job = call(url, {"type": "count_orders", "payload": {"email": "ada@example.org"}})[1]["id"]
        wait_until(lambda: call(f"{url}/{job}")[1]["status"] == "completed", 20, "the job to end")
        assert call(f"{url}/{job}")[1]["result"] == 0


@pytest.mark.slow
def test_the_projects_own_tests_pass(site_url: str) -> None:
    """In a database of their own, which fencepost's migration has made ready too."""
    said = manage("test", "--noinput", DATABASE_URL=site_url)
    assert re.search(r"Ran 5 tests.*OK", said, re.S), said
