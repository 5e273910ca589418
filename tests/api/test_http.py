"""What holds for every route: methods, errors, request ids, probes, draining."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import asyncpg
import httpx2
import pytest

from fencepost.api.app import Services, operations
from fencepost.api.middleware import shown_path
from fencepost.errors import DatabaseUnavailable
from fencepost.telemetry.pulses import LoopState
from tests.api.support import client_of, created, error_of, own_database

pytestmark = pytest.mark.anyio

ID = "01890a5d-ac96-774b-bcce-b302099a8057"
PATHS = {
    "/": "GET", "/jobs": "GET POST", "/submit": "POST", "/jobs/{id}": "GET", "/jobs/{id}/status": "GET",
    "/jobs/{id}/retry": "POST", "/jobs/{id}/cancel": "POST", "/queues": "GET", "/queues/{name}": "GET",
    "/queues/{name}/pause": "POST", "/queues/{name}/resume": "POST", "/healthz": "GET", "/health": "GET",
    "/readyz": "GET", "/metrics": "GET", "/openapi.json": "GET",
}  # fmt: skip


@pytest.fixture(scope="module")
def database_url(server_url: str, template_url: str) -> Iterator[str]:
    """One database for all tests here."""
    with own_database(server_url, template_url) as url:
        yield url


def filled(path: str) -> str:
    """A template with its variables filled in."""
    return path.replace("{id}", ID).replace("{name}", "default")


async def test_the_table_is_this_one(services: Services) -> None:
    table: dict[str, set[str]] = {}
    for operation in operations(services):
        table.setdefault(operation.path, set()).add(operation.method)
    assert table == {path: set(methods.split()) for path, methods in PATHS.items()}


@pytest.mark.parametrize(("path", "methods"), PATHS.items())
async def test_methods(api: httpx2.AsyncClient, path: str, methods: str) -> None:
    allowed = {*methods.split(), "OPTIONS"} | ({"HEAD"} if "GET" in methods else set())
    options = await api.options(filled(path))
    assert (options.status_code, options.content) == (204, b"")
    assert "content-length" not in options.headers
    assert set(options.headers["allow"].split(", ")) == allowed
    for method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "BREW"} - allowed:
        response = await api.request(method, filled(path))
        assert response.status_code == 405
        assert set(response.headers["allow"].split(", ")) == allowed
        if method != "HEAD":
            assert f"{method} isn't possible here" in error_of(response)


@pytest.mark.parametrize("path", [path for path, methods in PATHS.items() if "GET" in methods])
async def test_head_is_get_without_a_body(api: httpx2.AsyncClient, path: str) -> None:
    target = path.replace("{id}", (await created(api))["id"]).replace("{name}", "default")
    get, head = await api.get(target), await api.head(target)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    if path not in ("/metrics", "/queues", "/queues/{name}"):
        assert head.headers["content-length"] == get.headers["content-length"]


@pytest.mark.parametrize(
    "path",
    ["/nope", "//jobs", "/jobs/", "/JOBS", "/jobs;x", "/jobs/%2e%2e/", f"/jobs/{ID}/", f"/jobs/{ID}/nope", "/queues/",
     "/healthz/", "/jobs%00", "/%ff"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_a_path_that_is_not_there(api: httpx2.AsyncClient, path: str, method: str) -> None:
    response = await api.request(method, f"http://localhost{path}")
    assert response.status_code == 404
    assert response.headers["x-error-code"] == "not_found"
    assert "nothing at this path" in error_of(response)


async def test_the_index_lists_the_routes(api: httpx2.AsyncClient) -> None:
    index = (await api.get("/")).json()
    assert index["name"] == "fencepost"
    assert len(index["routes"]) == sum(len(methods.split()) for methods in PATHS.values())


# --- errors


async def test_problem_details_on_request(api: httpx2.AsyncClient) -> None:
    asked = {"accept": "application/json;q=0.5, Application/Problem+JSON"}
    response = await api.post("/jobs", json=[{"type": "echo"}, {"type": "echo", "priority": -1}], headers=asked)
    problem = response.json()
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["vary"] == "accept"
    assert problem == {
        "type": "about:blank",
        "title": "Bad Request",
        "status": 400,
        "detail": "jobs[1]: priority: must be a whole number from 0 to 100, not -1",
        "instance": f"urn:uuid:{response.headers['x-request-id']}",
        "error": "jobs[1]: priority: must be a whole number from 0 to 100, not -1",
        "code": "invalid_request",
        "field": "priority",
        "index": 1,
    }


@pytest.mark.parametrize(
    "accept", ["*/*", "application/json", "application/problem+json;q=0", "application/problem+jsonx"]
)
async def test_the_default_form_otherwise(api: httpx2.AsyncClient, accept: str) -> None:
    response = await api.get("/nope", headers={"accept": accept})
    assert error_of(response)
    assert response.headers["vary"] == "accept"


async def test_the_instance_of_a_callers_own_request_id(api: httpx2.AsyncClient) -> None:
    headers = {"accept": "application/problem+json", "x-request-id": "order-17"}
    assert (await api.get("/nope", headers=headers)).json()["instance"] == "urn:fencepost:request:order-17"


def breaking(services: Services, error: Exception) -> Services:
    """The same services, with jobs that can't be read or stored."""

    async def broken(*arguments: Any) -> Any:
        raise error

    services.jobs.get = broken  # type: ignore[method-assign,assignment]
    services.jobs.enqueue = broken  # type: ignore[method-assign,assignment]
    return services


async def test_an_unexpected_error_is_logged_and_not_told(services: Services, caplog: pytest.LogCaptureFixture) -> None:
    async with client_of(breaking(services, RuntimeError("secret detail"))) as api:
        response = await api.get(f"/jobs/{ID}", headers={"x-request-id": "r17"})
    assert response.status_code == 500
    assert error_of(response) == "internal error; the log has it under request id r17"
    record = next(entry for entry in caplog.records if entry.levelno == logging.ERROR)
    assert record.exc_info
    assert record.__dict__["request_id"] == "r17"


async def test_an_unavailable_database_is_a_503(services: Services) -> None:
    async with client_of(breaking(services, DatabaseUnavailable("the database is not available: gone"))) as api:
        for response in (await api.get(f"/jobs/{ID}"), await api.post("/jobs", json={"type": "echo"})):
            assert response.status_code == 503
            assert response.headers["x-error-code"] == "database_unavailable"
            assert 1 <= int(response.headers["retry-after"]) <= 3
            assert "not available" in error_of(response)


async def test_a_value_that_only_the_database_refuses_is_a_400(
    services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    async with client_of(breaking(services, asyncpg.DataError("untranslatable"))) as api:
        response = await api.post("/jobs", json={"type": "echo"})
    assert response.status_code == 400
    assert "can't store" in error_of(response)
    assert [entry.levelname for entry in caplog.records if "untranslatable" in entry.getMessage()] == ["WARNING"]


# --- request ids


@pytest.mark.parametrize("given", ["a", "A.b_c~d-9", "x" * 128, "0198f00d-0000-7000-8000-000000000000"])
@pytest.mark.parametrize("path", ["/healthz", "/nope", "/jobs?limit=0"])
async def test_a_good_request_id_comes_back(api: httpx2.AsyncClient, given: str, path: str) -> None:
    assert (await api.get(path, headers={"x-request-id": given})).headers["x-request-id"] == given


@pytest.mark.parametrize(
    "given", ["", "x" * 129, "a b", 'a"b', "a\tb", "a/b", "{}", "a,b", "${jndi:ldap://x}", "a\\nb", "é"]
)
async def test_a_bad_request_id_is_replaced(api: httpx2.AsyncClient, given: str) -> None:
    response = await api.get("/healthz", headers=[(b"x-request-id", given.encode())])
    assert UUID(response.headers["x-request-id"])


async def test_each_request_has_another_id(api: httpx2.AsyncClient) -> None:
    ids = {(await api.get("/healthz")).headers["x-request-id"] for _ in range(100)}
    assert len(ids) == 100


# --- one line a request


async def test_a_request_is_one_line(api: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fencepost.api"):
        await api.get("/nope%0a{injected}?token=geheim", headers={"x-request-id": "r1"})
        await api.get("/healthz")
        await api.get("/readyz")
        await api.get("/metrics")
    (record,) = (entry for entry in caplog.records if entry.message == "request")
    fields = record.__dict__
    assert (fields["request_id"], fields["method"], fields["path"], fields["status"]) == (
        "r1", "GET", "/nope\\n{injected}", 404,
    )  # fmt: skip
    assert fields["duration_ms"] > 0


def test_paths_in_the_log() -> None:
    assert shown_path("/a/ö") == "/a/ö"
    assert shown_path("/a\r\nb\x1b[31m\u2028\u202e") == "/a\\r\\nb\\x1b[31m\\u2028\\u202e"
    assert len(shown_path("/" + "x" * 10_000)) < 400


# --- probes


async def test_liveness_touches_nothing(services: Services) -> None:
    await services.database.close()
    async with client_of(services) as api:
        for path in ("/healthz", "/health"):
            response = await api.get(path)
            assert (response.status_code, response.json()) == (200, {"status": "ok"})


async def test_readiness(services: Services) -> None:
    async with client_of(services) as api:
        response = await api.get("/readyz")
        assert (response.status_code, response.json()) == (200, {"status": "ready"})
        assert "connection" not in response.headers
        services.readiness.start_draining()
        draining = await api.get("/readyz")
        assert (draining.status_code, "draining" in error_of(draining)) == (503, True)
        assert (await api.get("/healthz")).status_code == 200
        served = await api.post("/jobs", json={"type": "echo"})
        assert (served.status_code, served.headers["connection"]) == (201, "close")
        assert (await api.get("/nope")).headers["connection"] == "close"


async def test_a_stuck_loop_makes_it_unready(services: Services) -> None:
    states = [LoopState(name="dispatcher", age_seconds=1.0)]
    services.readiness.watch(lambda: states)
    async with client_of(services) as api:
        assert (await api.get("/readyz")).status_code == 200
        states[0] = LoopState(name="pruner", age_seconds=99.0, trouble="the pruner is late", is_vital=False)
        assert (await api.get("/readyz")).status_code == 200
        states[0] = LoopState(name="dispatcher", age_seconds=99.0, trouble="the dispatcher has not come round")
        response = await api.get("/readyz")
        assert (response.status_code, response.headers["x-error-code"]) == (503, "not_ready")
        assert "the dispatcher has not come round" in error_of(response)
        # Requests are served all the same, and connections go on.
        served = await api.post("/jobs", json={"type": "echo"})
        assert (served.status_code, "connection" in served.headers) == (201, False)
        assert (await api.get("/healthz")).status_code == 200


async def test_readiness_without_a_database(services: Services) -> None:
    await services.database.close()
    async with client_of(services) as api:
        response = await api.get("/readyz")
        assert response.status_code == 503
        assert response.headers["x-error-code"] == "database_unavailable"
        assert response.headers["retry-after"]


async def test_probes_share_one_look_at_the_database(services: Services) -> None:
    asked = 0
    release = asyncio.Event()

    async def ping() -> None:
        nonlocal asked
        asked += 1
        await release.wait()

    services.database.ping = ping  # type: ignore[method-assign]
    async with client_of(services) as api:
        probes = [asyncio.create_task(api.get("/readyz")) for _ in range(50)]
        await asyncio.sleep(0)
        probes[0].cancel()
        release.set()
        answers = await asyncio.gather(*probes[1:])
    assert {answer.status_code for answer in answers} == {200}
    assert asked == 1


# --- metrics


async def test_metrics(services: Services) -> None:
    async with client_of(services) as api:
        await created(api, queue="q1")
        await api.get(f"/jobs/{ID}")
        for n in range(300):
            await api.request("BREW" if n % 2 else "GET", f"/random/{n}")
        response = await api.get("/metrics")
    lines = response.text.splitlines()
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'queue_depth{queue="q1"} 1.0' in lines
    assert "jobs_in_flight 0.0" in lines
    assert 'http_request_duration_seconds_count{method="GET",route="/jobs/{id}",status="404"} 1.0' in lines
    unmatched = [line for line in lines if "http_request_duration_seconds_count" in line and "(unmatched)" in line]
    assert len(unmatched) == 2
    assert ID not in response.text


async def test_metrics_without_a_database(services: Services) -> None:
    await services.database.close()
    async with client_of(services) as api:
        response = await api.get("/metrics")
    assert response.status_code == 200
    assert "jobs_submitted_total 0.0" in response.text.splitlines()
    assert "queue_depth{" not in response.text
