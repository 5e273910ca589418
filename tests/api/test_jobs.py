"""Looking at jobs, listing them, retrying and cancelling them."""

from __future__ import annotations

import functools
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import httpx2
import pytest

from fencepost.api.app import Services
from fencepost.api.shared import Shared
from fencepost.domain.ids import new_id
from tests.api.support import Worker, client_of, created, error_of

pytestmark = pytest.mark.anyio

FIELDS = [
    "id", "type", "queue", "status", "priority", "payload", "attempts", "max_attempts", "run_at", "created_at",
    "started_at", "finished_at", "locked_until", "lease_token", "last_error", "result", "idempotency_key",
    "timeout_seconds", "cancel_requested_at", "request_id", "unique_key", "tags", "metadata", "trace_context",
    "expires_at", "progress", "history",
]  # fmt: skip


async def test_a_record_through_the_life_of_a_job(api: httpx2.AsyncClient, worker: Worker) -> None:
    job = await created(api, payload={"n": 1}, max_attempts=2)
    path = f"/jobs/{job['id']}"
    assert list(job) == FIELDS

    lease = await worker.take()
    running = (await api.get(path)).json()
    assert (running["status"], running["attempts"], running["lease_token"], running["history"]) == (
        "processing", 1, 1, [],
    )  # fmt: skip
    assert running["locked_until"] > running["started_at"]
    assert running["run_at"] is None

    await worker.fail(lease, "the\tfirst")
    waiting = (await api.get(path)).json()
    assert (waiting["status"], waiting["last_error"], waiting["locked_until"]) == ("pending", "the\tfirst", None)
    assert waiting["run_at"]

    await worker.complete(await worker.take(), b'{"big":4611686018427387907}')
    done = await api.get(path)
    assert '"big":4611686018427387907' in done.text.replace(" ", "")
    record = done.json()
    assert (record["status"], record["attempts"], record["lease_token"]) == ("completed", 2, 2)
    assert record["finished_at"]
    (attempt,) = record["history"]
    assert (attempt["attempt"], attempt["token"], attempt["outcome"], attempt["error_type"], attempt["error"]) == (
        1, 1, "failed", "ValueError", "the\tfirst",
    )  # fmt: skip
    assert "ValueError" in attempt["traceback"]
    assert attempt["ended_at"] >= attempt["started_at"]


async def test_status_is_short(api: httpx2.AsyncClient) -> None:
    job = await created(api)
    status = (await api.get(f"/jobs/{job['id']}/status")).json()
    assert list(status) == ["id", "status", "attempts", "max_attempts", "run_at", "last_error"]
    assert all(status[name] == job[name] for name in status)


async def test_a_dead_letter_is_retried_until_it_completes(services: Services, worker: Worker) -> None:
    async with client_of(services) as api:
        job = await created(api, max_attempts=1)
        await worker.fail(await worker.take())
        path = f"/jobs/{job['id']}"
        assert (await api.get(path)).json()["status"] == "dead_letter"
        response = await api.post(f"{path}/retry")
        record = response.json()
        assert (response.status_code, record["status"], record["attempts"], record["lease_token"]) == (
            200, "pending", 0, 1,
        )  # fmt: skip
        assert len(record["history"]) == 1
        await worker.complete(await worker.take())
        assert (await api.get(path)).json()["status"] == "completed"
        assert "jobs_retried_total 1.0" in (await api.get("/metrics")).text.splitlines()


async def test_only_dead_letters_are_retried(api: httpx2.AsyncClient, worker: Worker) -> None:
    async def refused(job: dict[str, Any], status: str) -> None:
        response = await api.post(f"/jobs/{job['id']}/retry")
        assert response.status_code == 409
        assert response.headers["x-error-code"] == "wrong_status"
        assert f"is {status}" in error_of(response)
        assert (await api.get(f"/jobs/{job['id']}")).json()["status"] == status

    job = await created(api)
    await refused(job, "pending")
    lease = await worker.take()
    await refused(job, "processing")
    await worker.complete(lease)
    await refused(job, "completed")
    failed = await created(api)
    await worker.fail(await worker.take(), permanent=True)
    await refused(failed, "failed")
    stopped = await created(api)
    await api.post(f"/jobs/{stopped['id']}/cancel")
    await refused(stopped, "cancelled")


async def test_cancelling(api: httpx2.AsyncClient, worker: Worker) -> None:
    waiting = await created(api)
    response = await api.post(f"/jobs/{waiting['id']}/cancel")
    assert (response.status_code, response.json()["status"]) == (200, "cancelled")
    again = await api.post(f"/jobs/{waiting['id']}/cancel")
    assert (again.status_code, "cancelled already" in error_of(again)) == (409, True)

    running = await created(api)
    lease = await worker.take()
    asked = await api.post(f"/jobs/{running['id']}/cancel")
    assert (asked.status_code, asked.json()["status"]) == (202, "processing")
    assert asked.json()["cancel_requested_at"]
    await worker.complete(lease)
    late = await api.post(f"/jobs/{running['id']}/cancel")
    assert (late.status_code, "completed already" in error_of(late)) == (409, True)


@pytest.mark.parametrize("job_id", [str(new_id()), str(uuid4()), str(new_id()).upper()], ids=["v7", "v4", "upper"])
async def test_a_job_that_is_not_there(api: httpx2.AsyncClient, job_id: str) -> None:
    for method, rest in (("GET", ""), ("GET", "/status"), ("POST", "/retry"), ("POST", "/cancel")):
        response = await api.request(method, f"/jobs/{job_id}{rest}")
        assert response.status_code == 404
        assert response.headers["x-error-code"] == "job_not_found"
        assert "there is no job" in error_of(response)


# --- lists


async def test_a_list_is_walked_page_by_page(api: httpx2.AsyncClient) -> None:
    made = [(await created(api, payload=n))["id"] for n in range(7)]
    seen: list[str] = []
    target: str | None = "/jobs?limit=3"
    while target is not None:
        response = await api.get(target)
        page = response.json()
        seen += [job["id"] for job in page["jobs"]]
        target = None
        if page["next_cursor"]:
            link = response.headers["link"]
            assert link.endswith('; rel="next"')
            target = link[1 : link.index(">")]
            assert parse_qs(urlsplit(target).query)["cursor"] == [page["next_cursor"]]
        else:
            assert "link" not in response.headers
    assert seen == sorted(made, reverse=True)


async def test_lists_leave_payloads_out_unless_asked(api: httpx2.AsyncClient, worker: Worker) -> None:
    await created(api, payload={"n": 1})
    await worker.complete(await worker.take(), b"[2]")
    (plain,) = (await api.get("/jobs")).json()["jobs"]
    (full,) = (await api.get("/jobs?include=payload")).json()["jobs"]
    assert list(plain) == [name for name in FIELDS if name not in ("payload", "result", "metadata", "history")]
    assert (full["payload"], full["result"]) == ({"n": 1}, [2])


async def test_filters(api: httpx2.AsyncClient, worker: Worker) -> None:
    first = await created(api, type="other", queue="q1")
    second = await created(api, queue="q2")
    third = await created(api)
    await worker.complete(await worker.take())

    async def found(**query: str) -> list[str]:
        return [job["id"] for job in (await api.get("/jobs", params=query)).json()["jobs"]]

    assert await found(type="other") == [first["id"]]
    assert await found(queue="q2") == [second["id"]]
    assert await found(queue="no-such-queue") == []
    assert await found(type="no-such-type") == []
    assert await found(status="completed") == [third["id"]]
    assert await found(status="pending") == [second["id"], first["id"]]
    assert await found(status="dead_letter") == []
    assert len(await found(since="2020-01-01T00:00:00Z", until="2090-01-01T00:00:00+01:00")) == 3
    assert await found(until="2020-01-01T00:00:00Z") == []


async def test_a_cursor_belongs_to_its_filter(api: httpx2.AsyncClient) -> None:
    for _ in range(3):
        await created(api)
    cursor = (await api.get("/jobs?limit=1&status=pending")).json()["next_cursor"]
    assert (await api.get(f"/jobs?limit=2&status=pending&cursor={cursor}")).status_code == 200
    flipped = cursor[:5] + ("A" if cursor[5] != "A" else "B") + cursor[6:]
    for query in (
        f"cursor={cursor}",
        f"status=completed&cursor={cursor}",
        f"status=pending&cursor={cursor[:-1]}",
        f"status=pending&cursor={cursor}A",
        f"status=pending&cursor={flipped}",
        f"status=pending&cursor={cursor[::-1]}",
    ):
        response = await api.get(f"/jobs?{query}")
        assert response.status_code == 400
        assert "cursor: isn't one" in error_of(response)


# --- queues


async def test_queues_are_listed_paused_and_resumed(api: httpx2.AsyncClient, worker: Worker) -> None:
    await created(api, queue="q1")
    await created(api, queue="q1", delay="1h")
    await created(api)
    await worker.take()
    listed = {queue["name"]: queue for queue in (await api.get("/queues")).json()["queues"]}
    assert list(listed) == ["default", "q1"]
    assert (listed["q1"]["depth"], listed["q1"]["in_flight"], listed["q1"]["depth_is_capped"]) == (2, 0, False)
    assert (listed["default"]["depth"], listed["default"]["in_flight"]) == (0, 1)
    assert listed["q1"]["oldest_due_seconds"] >= 0
    assert listed["default"]["oldest_due_seconds"] is None

    paused = (await api.post("/queues/q1/pause")).json()
    assert (paused["paused"], bool(paused["paused_at"])) == (True, True)
    assert (await api.post("/queues/q1/pause")).status_code == 200
    assert (await api.get("/queues/q1")).json()["paused"] is True
    resumed = (await api.post("/queues/q1/resume")).json()
    assert (resumed["paused"], resumed["paused_at"]) == (False, None)


async def test_a_queue_that_is_not_there(api: httpx2.AsyncClient) -> None:
    for method, rest in (("GET", ""), ("POST", "/pause"), ("POST", "/resume")):
        unknown = await api.request(method, f"/queues/nope{rest}")
        assert unknown.status_code == 404
        assert unknown.headers["x-error-code"] == "queue_not_found"
        assert "there is no queue 'nope'" in error_of(unknown)
        impossible = await api.request(method, f"/queues/%00{rest}")
        assert (impossible.status_code, "queue: must be" in error_of(impossible)) == (400, True)


async def test_the_overview_is_read_once_for_many(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    # It is kept for a second, which a busy machine may take for these requests.
    clock = functools.partial(Shared, clock=lambda: 1000.0)
    monkeypatch.setattr("fencepost.api.app.Shared", clock)
    asked = 0
    read = services.queues.overview

    async def overview() -> Any:
        nonlocal asked
        asked += 1
        return await read()

    services.queues.overview = overview  # type: ignore[method-assign]
    async with client_of(services) as api:
        for _ in range(20):
            await api.get("/queues")
            await api.get("/metrics")
    assert asked == 1
