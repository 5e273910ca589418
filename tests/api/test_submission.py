"""Making jobs over HTTP: one, many, and once only."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx2
import msgspec
import pytest

from fencepost import Fencepost, Unique, UniqueBy
from fencepost.api.app import Services
from fencepost.store.database import Database
from fencepost.store.jobs import Jobs
from fencepost.store.retention import FIRST_ID, LAST_ID, Keep, Retention
from tests.api.support import JSON, LINES, Worker, client_of, created, error_of

# Known at collection, so that the plugin keeps the parameters of parametrised tests.
pytestmark = pytest.mark.anyio


async def test_a_job_is_made_with_defaults(api: httpx2.AsyncClient) -> None:
    response = await api.post("/jobs", json={"type": "echo"})
    record = response.json()
    assert response.status_code == 201
    assert response.headers["location"] == f"/jobs/{record['id']}"
    assert record["status"] == "pending"
    assert record["payload"] == {}
    assert (record["queue"], record["priority"], record["attempts"], record["max_attempts"]) == ("default", 0, 0, 5)
    assert record["created_at"].endswith("Z")
    assert record["request_id"] == response.headers["x-request-id"]


async def test_the_answer_is_what_get_gives(api: httpx2.AsyncClient) -> None:
    asked = {
        "type": "send_email",
        "payload": {"to": ["ada@example.org"], "n": 1},
        "queue": "mail:out-1",
        "priority": 7,
        "max_attempts": 3,
        "run_at": "2031-01-01T00:00:00+05:45",
        "timeout": "1m30s",
        "idempotency_key": "order 17",
    }
    response = await api.post("/jobs", json=asked)
    record = response.json()
    assert (await api.get(response.headers["location"])).json() == record
    assert record["run_at"] == "2030-12-31T18:15:00Z"
    assert record["timeout_seconds"] == 90
    assert record["idempotency_key"] == "order 17"


async def test_a_delay_counts_from_the_databases_clock(api: httpx2.AsyncClient) -> None:
    record = await created(api, delay="1h")
    assert record["run_at"] > record["created_at"]
    assert (await api.get(f"/jobs/{record['id']}")).json()["run_at"] == record["run_at"]


DIGITS = [
    "4611686018427387907",
    "9007199254740993",
    str(10**30),
    str(-(10**30)),
    "1.0",
    "0.1",
    "12345678901234567890.5",
]


@pytest.mark.parametrize("digits", DIGITS)
async def test_numbers_keep_their_digits(api: httpx2.AsyncClient, digits: str) -> None:
    body = b'{"type":"echo","payload":{"n":%s}}' % digits.encode()
    response = await api.post("/jobs", content=body, headers=JSON)
    assert response.status_code == 201
    read = await api.get(response.headers["location"])
    assert f'"n":{digits}' in response.text.replace(" ", "")
    assert f'"n":{digits}' in read.text.replace(" ", "")


@pytest.mark.parametrize("payload", [None, True, "text", 1, [], [1, [2]], {"ключ": "値", "": 0}, "\u2028 \U0001f600"])
async def test_any_json_value_is_a_payload(api: httpx2.AsyncClient, payload: Any) -> None:
    record = await created(api, payload=payload)
    assert record["payload"] == payload
    assert (await api.get(f"/jobs/{record['id']}")).json()["payload"] == payload


@pytest.mark.parametrize(
    "content_type",
    ["application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"', "application/json;x=y", None],
)
async def test_content_types_that_are_json(api: httpx2.AsyncClient, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    assert (await api.post("/jobs", content=b' {"type":"echo"}\n', headers=headers)).status_code == 201


async def test_the_request_id_is_stored(api: httpx2.AsyncClient) -> None:
    response = await api.post("/jobs", json={"type": "echo"}, headers={"x-request-id": "order-17.a~b_c"})
    assert response.headers["x-request-id"] == "order-17.a~b_c"
    assert (await api.get(response.headers["location"])).json()["request_id"] == "order-17.a~b_c"


async def test_a_submission_is_logged_with_its_ids(api: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fencepost"):
        record = await created(api, queue="q1")
        await api.post("/jobs", json=[{"type": "echo"}, {"type": "echo"}])
    one = next(entry for entry in caplog.records if entry.message == "job submitted").__dict__
    many = next(entry for entry in caplog.records if entry.message == "jobs submitted").__dict__
    assert (one["job_id"], one["request_id"], one["job_type"], one["queue"]) == (
        record["id"],
        record["request_id"],
        "echo",
        "q1",
    )
    assert many["count"] == 2
    assert many["first_job_id"]


# --- idempotency


async def test_parallel_duplicates_make_one_job(api: httpx2.AsyncClient, jobs: Jobs) -> None:
    async def post() -> httpx2.Response:
        return await api.post("/jobs", json={"type": "echo", "payload": {"n": 1}}, headers={"idempotency-key": "k"})

    responses = await asyncio.gather(*(post() for _ in range(50)))
    assert sorted(response.status_code for response in responses) == [200] * 49 + [201]
    assert len({response.json()["id"] for response in responses}) == 1
    assert sum("idempotent-replayed" in response.headers for response in responses) == 49
    assert (await jobs.audit())["jobs"] == 1


async def test_two_processes_share_the_keys(services: Services, jobs: Jobs) -> None:
    async with client_of(services) as one, client_of(services) as other:
        asked = {"type": "echo", "idempotency_key": "k"}
        responses = await asyncio.gather(*(client.post("/jobs", json=asked) for client in (one, other) * 10))
    assert len({response.json()["id"] for response in responses}) == 1
    assert (await jobs.audit())["jobs"] == 1


@pytest.mark.parametrize(
    "spelling",
    [
        b'{"payload":{"b":[1.50,true],"a":100},"type":"echo"}',
        b'{ "type" : "echo" , "payload" : { "a" : 1e2 , "b" : [ 15e-1 , true ] } }',
        b'{"type":"echo","payload":{"\\u0061":100.0,"b":[1.5,true]},"queue":"default","priority":0}',
    ],
)
async def test_another_spelling_is_a_replay(api: httpx2.AsyncClient, spelling: bytes) -> None:
    first = await api.post(
        "/jobs", content=b'{"type":"echo","payload":{"a":100,"b":[1.5,true]}}', headers=JSON | {"idempotency-key": "k"}
    )
    again = await api.post("/jobs", content=spelling, headers=JSON | {"idempotency-key": '"k"'})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]


@pytest.mark.parametrize(
    "change",
    [
        {"payload": {"n": 2}},
        {"payload": {"n": "1"}},
        {"type": "other"},
        {"queue": "elsewhere"},
        {"priority": 1},
        {"max_attempts": 2},
        {"timeout": "5s"},
        {"delay": "5s"},
        {"run_at": "2031-01-01T00:00:00Z"},
    ],
)
async def test_another_request_under_the_same_key_is_refused(
    api: httpx2.AsyncClient, jobs: Jobs, change: dict[str, Any]
) -> None:
    asked = {"type": "echo", "payload": {"n": 1}, "idempotency_key": "k"}
    first = await api.post("/jobs", json=asked)
    response = await api.post("/jobs", json=asked | change)
    assert response.status_code == 409
    assert response.headers["x-error-code"] == "idempotency_key_reused"
    assert first.json()["id"] in error_of(response)
    assert (await jobs.audit())["jobs"] == 1


async def test_a_replay_shows_the_job_as_it_is_now(api: httpx2.AsyncClient, worker: Worker) -> None:
    asked = {"type": "echo", "idempotency_key": "k"}
    await api.post("/jobs", json=asked)
    await worker.fail(await worker.take(), "first attempt")
    await worker.complete(await worker.take(), b'{"done":true}')
    again = await api.post("/jobs", json=asked)
    record = again.json()
    assert (again.status_code, record["status"], record["result"], record["attempts"]) == (
        200,
        "completed",
        {"done": True},
        2,
    )
    assert [attempt["error"] for attempt in record["history"]] == ["first attempt"]


async def test_header_and_body_may_give_the_same_key(api: httpx2.AsyncClient) -> None:
    response = await api.post(
        "/jobs", json={"type": "echo", "idempotency_key": "k"}, headers={"idempotency-key": '"k"'}
    )
    assert response.status_code == 201
    assert response.json()["idempotency_key"] == "k"


# --- many at once


async def test_an_array_makes_all_its_jobs_in_order(api: httpx2.AsyncClient) -> None:
    asked = [{"type": "echo", "payload": n, "queue": f"q{n % 3}"} for n in range(20)]
    response = await api.post("/jobs", json=asked)
    answer = response.json()
    assert response.status_code == 201
    assert answer["count"] == 20
    payloads = [(await api.get(f"/jobs/{entry['id']}")).json()["payload"] for entry in answer["jobs"]]
    assert payloads == list(range(20))
    assert not any(entry["replayed"] for entry in answer["jobs"])


@pytest.mark.parametrize("content_type", ["application/x-ndjson", "application/jsonl", "application/ndjson"])
async def test_lines_are_read_and_blank_ones_ignored(api: httpx2.AsyncClient, content_type: str) -> None:
    body = b'\n {"type":"echo","payload":1}\r\n\n   \n{"type":"echo","payload":[2,\t3]}  \n\n'
    response = await api.post("/jobs", content=body, headers={"content-type": content_type})
    assert response.status_code == 201
    assert response.json()["count"] == 2


async def test_ten_thousand_jobs_in_one_request(api: httpx2.AsyncClient, jobs: Jobs) -> None:
    body = b"\n".join(b'{"type":"echo","payload":{"n":%d}}' % n for n in range(10_000))
    response = await api.post("/jobs", content=body, headers=LINES)
    assert response.status_code == 201
    assert len({entry["id"] for entry in response.json()["jobs"]}) == 10_000
    audit = await jobs.audit()
    assert audit["jobs"] == audit["pending"] == 10_000


async def test_others_are_answered_while_a_large_request_is_read(api: httpx2.AsyncClient) -> None:
    body = b"[" + b",".join(b'{"type":"echo","payload":{"n":%d}}' % n for n in range(5_000)) + b"]"
    large = asyncio.create_task(api.post("/jobs", content=body, headers=JSON))
    await asyncio.sleep(0)
    answered = 0
    while not large.done():
        assert (await api.get("/healthz")).status_code == 200
        answered += 1
        await asyncio.sleep(0)
    assert large.result().status_code == 201
    assert answered > 5


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def test_tags_metadata_expiry_and_the_trace_come_back(api: httpx2.AsyncClient) -> None:
    asked = {
        "type": "echo", "tags": ["b", "a", "b"], "metadata": {"tenant": 3}, "expires": "10m",
        "unique": {"key": "user-1", "period": "1h"},
    }  # fmt: skip
    response = await api.post("/jobs", json=asked, headers={"traceparent": TRACE})
    record = response.json()
    assert response.status_code == 201
    assert (record["tags"], record["metadata"], record["unique_key"]) == (["b", "a"], {"tenant": 3}, "user-1")
    assert (record["trace_context"], record["progress"]) == (TRACE, None)
    assert record["expires_at"] > record["created_at"]
    assert (await api.get(response.headers["location"])).json() == record
    moment = await created(api, expires="2031-01-01T00:00:00+01:00")
    assert moment["expires_at"] == "2030-12-31T23:00:00Z"
    assert (await api.get(f"/jobs/{moment['id']}")).json() == moment


@pytest.mark.parametrize("header", ["", "nonsense", "00-0-0-00", TRACE.upper()])
async def test_a_trace_that_is_none_is_ignored(api: httpx2.AsyncClient, header: str) -> None:
    response = await api.post("/jobs", json={"type": "echo"}, headers={"traceparent": header})
    assert (response.status_code, response.json()["trace_context"]) == (201, None)


async def test_the_jobs_of_a_bulk_belong_to_one_trace(api: httpx2.AsyncClient) -> None:
    made = await api.post("/jobs", json=[{"type": "echo"}] * 2, headers={"traceparent": TRACE})
    for entry in made.json()["jobs"]:
        assert (await api.get(f"/jobs/{entry['id']}")).json()["trace_context"] == TRACE


async def test_what_a_unique_key_does_is_told(api: httpx2.AsyncClient, worker: Worker, services: Services) -> None:
    async def ask(mode: str, **fields: Any) -> httpx2.Response:
        return await api.post("/jobs", json={"type": "echo", "unique": {"key": "k", "mode": mode}, **fields})

    first = await ask("skip", delay="1h")
    assert (first.status_code, first.headers.get("unique-effect")) == (201, None)
    skipped = await ask("skip", idempotency_key="a")
    assert (skipped.status_code, skipped.headers["unique-effect"]) == (200, "skipped")
    assert "idempotent-replayed" not in skipped.headers
    assert skipped.json() == first.json()
    assert skipped.headers["location"] == first.headers["location"]
    moved = await ask("latest", delay="2h")
    assert (moved.status_code, moved.headers["unique-effect"]) == (200, "rescheduled")
    assert (moved.json()["id"], moved.json()["run_at"] > first.json()["run_at"]) == (first.json()["id"], True)
    replaced = await ask("replace", idempotency_key="a")
    assert (replaced.status_code, replaced.headers["unique-effect"]) == (201, "replaced")
    assert (await api.get(replaced.headers["location"])).json() == replaced.json()
    gone = (await api.get(first.headers["location"])).json()
    assert gone["status"] == "cancelled"
    assert replaced.json()["id"] in gone["last_error"]
    assert [past["error_type"] for past in gone["history"]] == ["Replaced"]
    await worker.take()
    assert (await ask("replace")).headers["unique-effect"] == "skipped"
    metrics = (await api.get("/metrics")).text
    assert "jobs_submitted_total 2.0" in metrics, "what made no job isn't counted"


async def test_unique_keys_in_a_bulk_request(api: httpx2.AsyncClient, jobs: Jobs) -> None:
    wanted = [("k", "skip"), ("k", "skip"), ("l", "skip"), ("k", "replace")]
    asked = [{"type": "echo", "unique": {"key": key, "mode": mode}} for key, mode in wanted]
    made = await api.post("/jobs", json=asked)
    assert made.status_code == 201
    assert [entry["effect"] for entry in made.json()["jobs"]] == ["created", "skipped", "created", "replaced"]
    again = await api.post("/jobs", json=asked[:3])
    assert again.status_code == 200
    assert {entry["effect"] for entry in again.json()["jobs"]} == {"skipped"}
    assert again.json()["jobs"][0]["id"] == made.json()["jobs"][3]["id"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tags": "a"}, "tags: must be an array, not a string"),
        ({"tags": [1]}, "must be a string, not a whole number"),
        ({"tags": ["a" * 101]}, "tags: must each be 1 to 100 bytes"),
        ({"metadata": [1]}, "metadata: must be a JSON object"),
        ({"metadata": {"a": "x" * 17_000}}, "metadata: takes "),
        ({"expires": 5}, "expires: must be a string or null, not a whole number"),
        ({"expires": "0s"}, "expires: must be from 1ms to ten years"),
        ({"unique": "k"}, "unique: must be an object or null, not a string"),
        ({"unique": {}}, "key: is missing"),
        (
            {"unique": {"key": "k", "mode": "never"}},
            "unique: mode must be one of skip, replace, earliest, latest, not",
        ),
        ({"unique": {"key": "k", "for": "1m"}}, "is not a field here"),
        ({"unique": {"key": ""}}, "unique: key must be 1 to 255 bytes of printable text"),
        ({"unique": {"key": "k", "until": "period"}}, "unique: period is needed with until period"),
    ],
)
async def test_a_wrong_new_field_is_named(api: httpx2.AsyncClient, fields: dict[str, Any], message: str) -> None:
    response = await api.post("/jobs", json={"type": "echo", **fields})
    assert response.status_code == 400
    assert message in response.json()["error"]


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ('"key": "a", "key": "b"', "unique.key"),
        ('"key": "a", "until": "started", "until": "finished"', "unique.until"),
        ('"key": "a", "\\u006bey": "b"', "unique.key"),
    ],
)
async def test_a_member_given_twice_in_unique_is_refused(api: httpx2.AsyncClient, members: str, field: str) -> None:
    body = '{"type": "echo", "payload": {"key": {"key": 1}}, "metadata": {"until": 1, "key": 2}, "unique": {%s}}'
    refused = await api.post("/jobs", content=body % members, headers=JSON)
    assert (refused.status_code, refused.json()["error"]) == (400, f"{field}: is given twice")
    made = await api.post("/jobs", content=body % '"key": "a", "until": "started"', headers=JSON)
    assert made.status_code == 201


async def test_what_a_type_declares_as_unique_holds_for_callers_over_http(services: Services) -> None:
    app = Fencepost("postgresql://nowhere/none")

    @app.job(unique=UniqueBy("user_id", until="started"))
    async def welcome(user_id: int, *, language: str = "en") -> None: ...

    @app.job(unique=UniqueBy())
    async def all_of_it(user_id: int, *, language: str = "en") -> None: ...

    @app.job(unique=Unique(key="one"))
    async def only_one(user_id: int) -> None: ...

    @app.job(unique=UniqueBy(lambda arguments: arguments["to"][0]))
    async def mail(**fields: Any) -> None: ...

    services = msgspec.structs.replace(services, types=app.types)
    async with client_of(services) as api:

        async def ask(type: str, payload: Any, **fields: Any) -> tuple[int, str | None]:
            response = await api.post("/jobs", json={"type": type, "payload": payload, **fields})
            return response.status_code, response.headers.get("unique-effect") or response.json().get("error")

        assert await ask("welcome", {"user_id": 1}) == (201, None)
        assert await ask("welcome", {"user_id": 1, "language": "fr"}) == (200, "skipped")
        assert await ask("welcome", {"user_id": 2}) == (201, None)
        assert await ask("welcome", {"user_id": 1}, unique={"key": "its own"}) == (201, None)
        assert await ask("all_of_it", {"user_id": 1}) == (201, None)
        assert await ask("all_of_it", {"language": "en", "user_id": 1}) == (200, "skipped"), "defaults are arguments"
        assert await ask("all_of_it", {"user_id": 1, "language": "fr"}) == (201, None)
        assert await ask("only_one", {"user_id": 1}) == (201, None)
        assert await ask("only_one", {"user_id": 2}) == (200, "skipped")
        assert await ask("mail", {"to": ["ada"]}) == (201, None)
        assert await ask("mail", {"to": ["ada", "bob"]}) == (200, "skipped")
        assert await ask("mail", {"from": 1}) == (400, "unique: can't be made of these arguments: KeyError: 'to'")
        assert await ask("welcome", [1]) == (400, "unique: is by user_id, so the payload must be an object")
        bulk = await api.post("/jobs", json=[{"type": "welcome", "payload": {"user_id": n}} for n in (2, 3)])
        assert [one["effect"] for one in bulk.json()["jobs"]] == ["skipped", "created"]


async def test_a_retry_is_refused_while_another_job_holds_the_key(api: httpx2.AsyncClient, worker: Worker) -> None:
    rule = {"unique": {"key": "k"}}
    first = await created(api, max_attempts=1, **rule)
    await worker.fail(await worker.take())
    second = await created(api, **rule)
    refused = await api.post(f"/jobs/{first['id']}/retry")
    assert (refused.status_code, refused.headers["x-error-code"]) == (409, "duplicate_job")
    assert f"job {second['id']} holds the unique key" in refused.json()["error"]


async def test_lists_can_be_had_by_tag(api: httpx2.AsyncClient) -> None:
    tagged = await created(api, tags=["import", "nightly"])
    await created(api, tags=["imports"])
    await created(api)
    listed = (await api.get("/jobs?tag=import")).json()["jobs"]
    assert [(one["id"], one["tags"]) for one in listed] == [(tagged["id"], ["import", "nightly"])]
    refused = await api.get("/jobs?tag=")
    assert (refused.status_code, refused.json()["error"][:30]) == (400, "tag: must each be 1 to 100 byt")


async def test_keys_in_a_bulk_request(api: httpx2.AsyncClient, jobs: Jobs) -> None:
    asked = [{"type": "echo", "idempotency_key": f"k{n}"} for n in range(3)]
    first = await api.post("/jobs", json=asked)
    mixed = await api.post("/jobs", json=[*asked, {"type": "echo"}, {"type": "echo", "idempotency_key": "k0"}])
    again = await api.post("/jobs", json=asked)
    assert [response.status_code for response in (first, mixed, again)] == [201, 201, 200]
    assert [entry["replayed"] for entry in mixed.json()["jobs"]] == [True, True, True, False, True]
    assert [entry["id"] for entry in again.json()["jobs"]] == [entry["id"] for entry in first.json()["jobs"]]
    assert (await jobs.audit())["jobs"] == 4


async def test_a_conflict_undoes_the_whole_request(api: httpx2.AsyncClient, jobs: Jobs) -> None:
    await api.post("/jobs", json={"type": "echo", "idempotency_key": "k"})
    response = await api.post(
        "/jobs", json=[{"type": "echo"}, {"type": "other", "idempotency_key": "k"}, {"type": "echo"}]
    )
    assert response.status_code == 409
    assert (await jobs.audit())["jobs"] == 1


# --- /submit


async def test_submit_takes_the_type_from_the_payload(api: httpx2.AsyncClient) -> None:
    response = await api.post(
        "/submit", json={"priority": 5, "max_retries": 2, "payload": {"task": "send_email", "to": "ada@example.org"}}
    )
    assert response.status_code == 201
    assert list(response.json()) == ["id"]
    record = (await api.get(f"/jobs/{response.json()['id']}")).json()
    assert (record["type"], record["priority"], record["max_attempts"]) == ("send_email", 5, 3)
    assert record["payload"] == {"task": "send_email", "to": "ada@example.org"}


async def test_submit_has_defaults_and_keys(api: httpx2.AsyncClient) -> None:
    asked = {"payload": {"task": "echo"}}
    first = await api.post("/submit", json=asked, headers={"idempotency-key": "k"})
    again = await api.post("/submit", json=asked, headers={"idempotency-key": "k"})
    other = await api.post("/submit", json={**asked, "priority": 1}, headers={"idempotency-key": "k"})
    assert [response.status_code for response in (first, again, other)] == [201, 200, 409]
    assert again.json() == first.json()
    record = (await api.get(f"/jobs/{first.json()['id']}")).json()
    assert (record["priority"], record["max_attempts"]) == (0, 4)


async def test_replays_are_not_counted(services: Services) -> None:
    async with client_of(services) as api:
        for _ in range(3):
            await api.post("/jobs", json={"type": "echo", "idempotency_key": "k"})
        await api.post("/jobs", json=[{"type": "echo"}, {"type": "echo", "idempotency_key": "k"}])
        text = (await api.get("/metrics")).text
    assert "jobs_submitted_total 2.0" in text.splitlines()


async def test_responses_are_json_without_surprises(api: httpx2.AsyncClient) -> None:
    response = await api.post("/jobs", json={"type": "echo"})
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert json.loads(response.content)


async def test_a_key_whose_job_was_removed_is_held_for_its_period_and_says_so(
    api: httpx2.AsyncClient, worker: Worker, database: Database
) -> None:
    """Jobs may be kept for a shorter time than a unique key's period."""
    asked = {"type": "echo", "unique": {"key": "welcome-1", "period": "30d"}}
    job_id = (await api.post("/jobs", json=asked)).json()["id"]
    await worker.complete(await worker.take())
    await database.execute("update fencepost.finished set finished_at = now() - interval '8 days'")
    retention = Retention(database, Keep(by_status={"completed": 7 * 86400.0}))
    assert (await retention.remove_jobs(after=FIRST_ID, before=LAST_ID, rows=10)).jobs == 1
    again = await api.post("/jobs", json=asked)
    assert (again.status_code, again.headers["x-error-code"]) == (409, "duplicate_job")
    assert again.json()["error"].startswith(f"job {job_id} has this job's key still, though it has ended")
    bulk = await api.post("/jobs", json=[asked])
    assert (bulk.status_code, bulk.json()["jobs"][0]["effect"]) == (200, "skipped")
