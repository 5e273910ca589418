"""
What makes pages too large, what runs in an operator's browser or terminal, who gets in, and series without end.

There is no dashboard yet; what its rows ask for holds for the HTTP API and the command line, which are there.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx2
import msgspec
import pytest

from fencepost.api.app import Services
from fencepost.cli import many_jobs
from fencepost.domain.ids import new_id
from fencepost.domain.job import Job, Status
from fencepost.domain.outcome import Ending
from fencepost.store.jobs import Jobs
from fencepost.store.listing import PAGE_BYTES, READ_JOBS, Filter, Listing
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore
from tests.api.support import client_of, with_tokens
from tests.patience import limit
from tests.store.support import claim, ended, job

pytestmark = pytest.mark.anyio

LARGE = msgspec.json.encode("x" * 1_000_000)
SCRIPTS = ("<img src=x onerror=alert(1)>", '"><svg onload=alert(1)>', "=cmd|' /C calc'!A0", "\x1b]0;owned\x07\x1b[2J")


@pytest.mark.slow
async def test_lists_do_not_read_what_they_do_not_show(api: httpx2.AsyncClient, jobs: Jobs, listing: Listing) -> None:
    """40 jobs of a megabyte each: the list is a few kilobytes, and so is what is read for it."""
    await jobs.enqueue([job(payload=LARGE) for _ in range(40)])
    page = await listing.page(Filter(), limit=100, payloads=False)
    assert [(bytes(one.payload), one.result, one.metadata) for one in page.jobs] == [(b"null", None, None)] * 40
    response = await api.get("/jobs?limit=100")
    assert len(response.json()["jobs"]) == 40
    assert len(response.content) < 40_000


async def test_a_page_with_payloads_ends_when_it_is_large(api: httpx2.AsyncClient, jobs: Jobs) -> None:
    """30 MB in pages of a bounded size, without gaps and repeats, by the cursor."""
    made = [job(payload=LARGE if number % 2 else b'"small"') for number in range(60)]
    await jobs.enqueue(made)
    found: list[str] = []
    pages = 0
    path = "/jobs?limit=200&include=payload"
    cursor: str | None = ""
    while cursor is not None:
        response = await api.get(path + (f"&cursor={cursor}" if cursor else ""))
        assert len(response.content) < PAGE_BYTES + READ_JOBS * (len(LARGE) + 2_000)
        body = response.json()
        found += [one["id"] for one in body["jobs"]]
        cursor = body["next_cursor"]
        pages += 1
    assert found == [str(one.id) for one in reversed(made)]
    assert pages >= 4


async def test_small_jobs_fill_their_page(listing: Listing, jobs: Jobs) -> None:
    await jobs.enqueue([job(payload=b'{"a": 1}') for _ in range(205)])
    page = await listing.page(Filter(), limit=200)
    assert len(page.jobs) == 200
    assert {bytes(one.payload) for one in page.jobs} == {b'{"a": 1}'}
    assert len((await listing.page(Filter(), limit=200, before=page.next_before)).jobs) == 5


@pytest.mark.parametrize(
    "query", ["limit=1000000", "limit=-1", "limit=0", "limit=201", "limit=1e2", "limit=", "offset=4999000", "page=9"]
)
async def test_limits_that_are_none_are_refused(api: httpx2.AsyncClient, query: str) -> None:
    assert (await api.get(f"/jobs?{query}")).status_code == 400


async def test_what_anybody_wrote_is_only_ever_data(
    api: httpx2.AsyncClient, jobs: Jobs, queues: Queues, worker_store: WorkerStore
) -> None:
    """Markup in every text that a caller or a handler has a say in: JSON, said to be JSON, and never guessed at."""
    text = SCRIPTS[0] + SCRIPTS[1]
    fields = {
        "type": "echo",
        "payload": {text: text},
        "queue": "q",
        "idempotency_key": text[:200],
        "tags": [SCRIPTS[0], SCRIPTS[1]],
        "metadata": {text: text},
    }
    record = (await api.post("/jobs", json=fields)).json()
    assert record["tags"] == [SCRIPTS[0], SCRIPTS[1]]
    [lease] = await claim(worker_store, await queues.id_of("q"))
    outcome = ended(lease, Ending.FAILED, Status.DEAD_LETTER, error=text, error_type=text, traceback=text)
    await worker_store.settle(lease.queue_id, [outcome])
    paths = [f"/jobs/{record['id']}", "/jobs?include=payload", f"/jobs/{record['id']}/status", "/queues", "/nope/<svg>"]
    for path in [*paths, f"/jobs/{SCRIPTS[0]}", f"/queues/{SCRIPTS[0]}", f"/jobs?tag={SCRIPTS[0]}", f"/jobs?{text}"]:
        response = await api.get(path)
        assert response.headers["content-type"].startswith("application/json"), path
        assert response.headers["x-content-type-options"] == "nosniff", path
        json.loads(response.content)


def test_nothing_moves_the_operators_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error's words come from a handler, or from whoever answered it; on a terminal they are only words."""
    shown: list[str] = []
    monkeypatch.setattr("fencepost.cli.many_jobs.click.echo", shown.append)
    base: dict[str, Any] = {
        "id": new_id(), "queue": "q", "priority": 0, "payload": msgspec.Raw(b"1"), "max_attempts": 3,
        "created_at": time.time(), "attempts": 3, "lease_token": 3, "status": Status.DEAD_LETTER,
    }  # fmt: skip
    for words in (SCRIPTS[3], "\x9b2J", "a\rb", "\u202egnp.exe", "line\nline", "\x7f\x08"):
        row: dict[str, Any] = (
            dict.fromkeys(Job.__struct_fields__) | base | {"type": "t", "tags": [], "last_error": words}
        )
        many_jobs._write(Job(**row), as_json=False)
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 or letter == "\u202e" for letter in "".join(shown))


TRICKS = [
    "//jobs", "/jobs/%2e%2e/healthz", "/jobs/..%2fhealthz", "/healthz/..%2fjobs", "/jobs/", "/JOBS", "/jobs;x=1",
    "/healthz/../jobs", "/%6aobs", "/jobs%00", "/jobs%20", "/./jobs", "/healthz;/jobs", "/metrics/", "/openapi.json",
    "/jobs/..;/healthz", "/?/healthz", "/jobs?x=/healthz",  "/\\jobs", "/readyz/jobs",
]  # fmt: skip


@pytest.mark.parametrize("path", TRICKS)
async def test_no_spelling_of_a_path_goes_past_the_token(services: Services, path: str) -> None:
    async with client_of(with_tokens(services, "sesam")) as closed:
        for method in ("GET", "HEAD", "OPTIONS", "POST", "TRACE"):
            response = await closed.request(method, httpx2.URL("http://localhost").copy_with(raw_path=path.encode()))
            assert response.status_code == 401, method


@pytest.mark.slow
async def test_series_are_bounded_whatever_is_sent(api: httpx2.AsyncClient, jobs: Jobs) -> None:
    """Keys, queues, types, paths, methods and errors of all kinds: no series for any of them beyond the bounds."""
    await api.post("/jobs", json={"type": "echo", "queue": "first"})
    # The first answers of every kind may still bring theirs.
    for path in ("/jobs/0", "/nope", "/jobs?limit=0"):
        await api.get(path)
    await api.post("/jobs", json={"type": "nobody"})
    await _series(api)
    before = await _series(api)
    await jobs.enqueue(
        [job(queue=f"queue {number}", type=f"type {number}", idempotency_key=f"k{number}") for number in range(500)]
    )
    for start in range(0, 300, 100):
        numbers = range(start, start + 100)
        await asyncio.gather(*(api.get(f"/nope/{number}") for number in numbers))
        await asyncio.gather(*(api.get(f"/jobs/{number}") for number in numbers))
        await asyncio.gather(*(api.post("/jobs", json={"type": f"odd {number}"}) for number in numbers))
    began = time.monotonic()
    after = await _series(api)
    assert time.monotonic() - began < limit(5)
    grown = after - before
    assert len([one for one in grown if one.startswith("queue_depth{")]) <= 200
    assert {one for one in grown if not one.startswith("queue_depth{")} == set()
    assert not any("type 7" in one or "odd 7" in one or "/nope/7" in one for one in after)


async def _series(api: httpx2.AsyncClient) -> set[str]:
    lines = (await api.get("/metrics")).text.splitlines()
    return {line.rsplit(" ", 1)[0] for line in lines if line and not line.startswith("#")}
