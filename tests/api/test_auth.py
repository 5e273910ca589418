"""Who is let in."""

from __future__ import annotations

import logging

import httpx2
import pytest

from fencepost.api.app import Services
from fencepost.store.jobs import Jobs
from tests.api.support import client_of, error_of, with_settings, with_tokens
from tests.api.test_http import PATHS, filled

pytestmark = pytest.mark.anyio

TOKEN = "correct-horse"
PUBLIC = ("/healthz", "/health", "/readyz")
CREDENTIALS: list[tuple[str, dict[str, str], bool]] = [
    ("none", {}, False),
    ("wrong", {"authorization": "Bearer wrong"}, False),
    ("empty", {"authorization": ""}, False),
    ("empty token", {"authorization": "Bearer "}, False),
    ("cut", {"authorization": f"Bearer {TOKEN[:-1]}"}, False),
    ("longer", {"authorization": f"Bearer {TOKEN}x"}, False),
    ("other case", {"authorization": f"Bearer {TOKEN.upper()}"}, False),
    ("bare", {"authorization": TOKEN}, False),
    ("basic", {"authorization": f"Basic {TOKEN}"}, False),
    ("own header", {"x-api-key": TOKEN}, False),
    ("cookie", {"cookie": f"token={TOKEN}"}, False),
    ("right", {"authorization": f"Bearer {TOKEN}"}, True),
    ("second", {"authorization": "Bearer second"}, True),
    ("lower-case scheme", {"authorization": f"bearer {TOKEN}"}, True),
]
EVERY = [*PATHS, "/nope", "//jobs", "/jobs/%2e%2e/healthz", "/healthz/", "/healthz/..", "/HEALTHZ", "/healthz;x"]


@pytest.mark.slow
@pytest.mark.parametrize(("headers", "right"), [pytest.param(*case[1:], id=case[0]) for case in CREDENTIALS])
async def test_every_path_and_method_wants_a_token(services: Services, headers: dict[str, str], *, right: bool) -> None:
    async with client_of(with_tokens(services, TOKEN, "second")) as api:
        for path in EVERY:
            for method in ("GET", "HEAD", "OPTIONS", "POST", "DELETE"):
                response = await api.request(method, f"http://localhost{filled(path)}", headers=headers)
                assert (response.status_code != 401) == (right or path in PUBLIC), (method, path)
                if response.status_code == 401:
                    assert response.headers["www-authenticate"] == 'Bearer realm="fencepost"'
                    assert response.headers["x-error-code"] == "unauthorized"
                    assert response.headers["x-request-id"]
                    assert method == "HEAD" or "Authorization: Bearer" in error_of(response)


async def test_a_token_in_the_query_opens_nothing_and_stays_out_of_the_log(
    services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with client_of(with_tokens(services, TOKEN)) as api:
            for path in PATHS:
                response = await api.get(f"{filled(path)}?token={TOKEN}&access_token={TOKEN}")
                assert path in PUBLIC or response.status_code == 401
            await api.get("/jobs", headers={"authorization": f"Bearer {TOKEN}"})
            await api.get("/jobs", headers={"authorization": f"Bearer {TOKEN}-not"})
    ours = [entry for entry in caplog.records if entry.name.startswith("fencepost")]
    assert ours
    assert not any(TOKEN in str(entry.__dict__) for entry in ours)


async def test_without_a_token_nothing_is_stored(services: Services, jobs: Jobs) -> None:
    async with client_of(with_tokens(services, TOKEN)) as api:
        assert (await api.post("/jobs", json={"type": "echo"})).status_code == 401
    assert (await jobs.audit())["jobs"] == 0


# --- without tokens, on loopback

FOREIGN: list[dict[str, str]] = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site", "origin": "http://localhost"},
    {"origin": "http://evil.example"},
    {"origin": "http://localhost:1234"},
    {"origin": "null"},
    {"origin": "http://["},
]


@pytest.mark.parametrize("headers", FOREIGN)
async def test_pages_of_other_origins_change_nothing(
    api: httpx2.AsyncClient, jobs: Jobs, headers: dict[str, str]
) -> None:
    for path in ("/jobs", "/submit", "/queues/default/pause", "/nope"):
        response = await api.post(path, json={"type": "echo"}, headers=headers)
        assert response.status_code == 403
        assert response.headers["x-error-code"] == "cross_origin"
        assert "another origin" in error_of(response)
    assert (await api.get("/jobs", headers=headers)).status_code == 200
    assert (await jobs.audit())["jobs"] == 0


@pytest.mark.parametrize(
    "headers", [{"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}, {"origin": "http://localhost"}]
)
async def test_ones_own_pages_may(api: httpx2.AsyncClient, headers: dict[str, str]) -> None:
    assert (await api.post("/jobs", json={"type": "echo"}, headers=headers)).status_code == 201


async def test_with_a_token_the_origin_does_not_matter(services: Services) -> None:
    async with client_of(with_tokens(services, TOKEN)) as api:
        headers = {"authorization": f"Bearer {TOKEN}", "origin": "http://app.example", "host": "queue.example"}
        assert (await api.post("/jobs", json={"type": "echo"}, headers=headers)).status_code == 201


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1", "127.0.0.1:80", "[::1]:8080", "LOCALHOST"]
)
async def test_names_of_this_machine_are_answered(api: httpx2.AsyncClient, host: str) -> None:
    assert (await api.get("/jobs", headers={"host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "evil.example:8080",
        "localhost@evil.example",
        "[",
        "",
        "169.254.169.254",
    ],
)
async def test_names_that_merely_point_here_are_not(services: Services, host: str) -> None:
    async with client_of(services) as api:
        response = await api.get("/jobs", headers={"host": host})
        assert response.status_code == 421
        assert "set a token" in error_of(response)
        assert (await api.get("/healthz", headers={"host": host})).status_code == 200


async def test_hosts_can_be_allowed(services: Services) -> None:
    async with client_of(services, allowed_hosts=["TestServer"]) as api:
        assert (await api.get("/jobs", headers={"host": "testserver:1"})).status_code == 200
    async with client_of(with_settings(services, http_host="0.0.0.0")) as api:
        assert (await api.get("/jobs", headers={"host": "queue.example"})).status_code == 200
