"""What can't be a job is refused with a sentence that helps, stores nothing and breaks nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest

from fencepost.store.jobs import Jobs
from tests.api.support import JSON, LINES, error_of, own_database

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def database_url(server_url: str, template_url: str) -> Iterator[str]:
    """One database for all tests here."""
    with own_database(server_url, template_url) as url:
        yield url


@pytest.fixture(autouse=True)
async def _nothing_happens(api: httpx2.AsyncClient, jobs: Jobs) -> AsyncIterator[None]:
    """No test here stores anything, and after each the next good request works."""
    before = (await jobs.audit())["jobs"]
    yield
    assert (await jobs.audit())["jobs"] == before
    assert (await api.post("/jobs", json={"type": "echo"})).status_code == 201


ID = "01890a5d-ac96-774b-bcce-b302099a8057"


def job(members: bytes) -> bytes:
    """A body with the type given and *members*."""
    return b'{"type":"echo",' + members + b"}"


BODIES: list[tuple[str, bytes, int, str]] = [
    # the body as a whole
    ("empty", b"", 400, "the body is empty"),
    ("blank", b" \n ", 400, "the body is empty"),
    ("cut", b'{"type":"echo"', 400, "not valid JSON"),
    ("null", b"null", 400, "must be an object, not null"),
    ("string", b'"echo"', 400, "must be an object, not a string"),
    ("number", b"17", 400, "must be an object, not a whole number"),
    ("text", b"hello", 400, "not valid JSON"),
    ("two objects", b'{"type":"echo"}{"type":"echo"}', 400, "not valid JSON"),
    ("single quotes", b"{'type':'echo'}", 400, "not valid JSON"),
    ("comment", b'{"type":"echo"/* */}', 400, "not valid JSON"),
    ("trailing comma", b'{"type":"echo",}', 400, "not valid JSON"),
    ("byte order mark", b'\xef\xbb\xbf{"type":"echo"}', 400, "byte order mark"),
    ("utf-16", '{"type":"echo"}'.encode("utf-16"), 400, "not valid UTF-8"),
    ("30,000 brackets", b"[" * 30_000 + b"]" * 30_000, 400, "nested more than 64"),
    ("30,000 objects", job(b'"payload":' + b'{"a":' * 30_000), 400, "nested more than 64"),
    ("unknown field", job(b'"prioritty":1'), 400, "did you mean priority?"),
    ("unknown field, nothing close", job(b'"zzz":1'), 400, "there are type, payload, queue"),
    ("a part's field that is missing", job(b'"unique":{"mode":"latest"}'), 400, "unique.key: is missing"),
    ("a part's unknown field", job(b'"unique":{"key":"a","kee":1}'), 400, "unique.kee: is not a field here"),
    ("10 MB key", b'{"' + b"k" * 10_000_000 + b'":1}', 413, "1,064,960 bytes"),
    ("1 MB key", b'{"' + b"k" * 1_000_000 + b'":1}', 400, "is not a field here"),
    ("line break in a key", job(b'"a\\nb":1'), 400, "a\\nb: is not a field"),
    ("same member twice", b'{"type":"echo","type":"other"}', 400, "type: is given twice"),
    ("same member twice, escaped", b'{"type":"echo","t\\u0079pe":"other"}', 400, "type: is given twice"),
    ("two payloads", job(b'"payload":{"type":1},"payload":{}'), 400, "payload: is given twice"),
    # type
    ("no type", b'{"payload":{}}', 400, "type: is missing"),
    ("type a number", b'{"type":1}', 400, "type: must be a string, not a whole number"),
    ("type null", b'{"type":null}', 400, "type: must be a string, not null"),
    ("type unknown", b'{"type":"nope"}', 400, "registered are echo, other, send_email"),
    ("type with NUL", b'{"type":"echo\\u0000"}', 400, "type: "),
    ("type half a pair", b'{"type":"\\ud835"}', 400, "type: contains half a surrogate pair"),
    ("type raw bytes", b'{"type":"\xff"}', 400, "not valid UTF-8"),
    ("type endless", b'{"type":"' + b"x" * 100_000 + b'"}', 400, "is not a registered job type"),
    # payload
    ("NUL in a value", job(b'"payload":{"a":"x\\u0000y"}'), 400, "payload: contains the character NUL"),
    ("NUL in a key", job(b'"payload":{"x\\u0000":1}'), 400, "payload: contains the character NUL"),
    ("NUL in a nested list", job(b'"payload":[[["\\u0000"]]]'), 400, "payload: contains the character NUL"),
    ("NUL raw", job(b'"payload":"x\x00y"'), 400, "not valid JSON"),
    ("half a pair in a value", job(b'"payload":["\\ud835"]'), 400, "payload: contains half a surrogate pair"),
    ("half a pair, reversed", job(b'"payload":"\\udc59\\ud835"'), 400, "payload: contains half a surrogate pair"),
    ("half a pair in a key", job(b'"payload":{"\\ud835":1}'), 400, "half a surrogate pair"),
    ("half a pair raw", job(b'"payload":"\xed\xa0\x80"'), 400, "not valid UTF-8"),
    ("invalid UTF-8", job(b'"payload":"\xff\xfe"'), 400, "not valid UTF-8"),
    ("NaN", job(b'"payload":{"x":NaN}'), 400, "NaN, which is not JSON"),
    ("Infinity", job(b'"payload":{"x":Infinity}'), 400, "Infinity, which is not JSON"),
    ("-Infinity", job(b'"payload":-Infinity'), 400, "-Infinity, which is not JSON"),
    ("1e400", job(b'"payload":{"x":1e400}'), 400, "payload: has a number beyond the range"),
    ("a number of 5,000 digits", job(b'"payload":' + b"9" * 5_000), 400, "payload: has a number beyond the range"),
    ("leading zero", job(b'"payload":01'), 400, "not valid JSON"),
    ("key twice inside", job(b'"payload":{"a":1,"a":2}'), 400, "payload: has the key 'a' twice"),
    ("65 levels", job(b'"payload":' + b"[" * 65 + b"]" * 65), 400, "payload: is nested more than 64"),
    ("30,000 levels", job(b'"payload":' + b"[" * 30_000 + b"]" * 30_000), 400, "nested more than 64"),
    ("over 1 MiB", job(b'"payload":"' + b"x" * (1 << 20) + b'"'), 400, "payload: takes 1,048,578 bytes"),
    ("far over 1 MiB", job(b'"payload":"' + b"x" * (2 << 20) + b'"'), 413, "larger than the 1,064,960 bytes"),
    # queue
    ("queue empty", job(b'"queue":""'), 400, "queue: must be 1 to 100"),
    ("queue with spaces", job(b'"queue":"a b"'), 400, "queue: must be 1 to 100"),
    ("queue with quotes", job(b'"queue":"a\\"b"'), 400, "queue: must be 1 to 100"),
    ("queue with a slash", job(b'"queue":"a/b"'), 400, "queue: must be 1 to 100"),
    ("queue of two-byte letters", job('"queue":"{}"'.format("é" * 64).encode()), 400, "queue: must be 1 to 100"),
    ("queue of 101", job(b'"queue":"' + b"q" * 101 + b'"'), 400, "queue: must be 1 to 100 of the characters"),
    ("queue with NUL", job(b'"queue":"a\\u0000"'), 400, "queue: must be 1 to 100"),
    ("queue null", job(b'"queue":null'), 400, "queue: must be a string, not null"),
    # priority
    ("priority -1", job(b'"priority":-1'), 400, "priority: must be a whole number from 0 to 100, not -1"),
    ("priority 101", job(b'"priority":101'), 400, "priority: must be a whole number from 0 to 100, not 101"),
    ("priority 1.5", job(b'"priority":1.5'), 400, "priority: must be a whole number"),
    ("priority true", job(b'"priority":true'), 400, "priority: must be a whole number, not true or false"),
    ("priority text", job(b'"priority":"1"'), 400, "priority: must be a whole number, not a string"),
    ("priority huge", job(b'"priority":1000000000000000000000000000000'), 400, "priority: "),
    ("priority null", job(b'"priority":null'), 400, "priority: must be a whole number, not null"),
    # max_attempts
    ("max_attempts 0", job(b'"max_attempts":0'), 400, "max_attempts: must be a whole number from 1 to 100, not 0"),
    (
        "max_attempts 101",
        job(b'"max_attempts":101'),
        400,
        "max_attempts: must be a whole number from 1 to 100, not 101",
    ),
    ("max_attempts null", job(b'"max_attempts":null'), 400, "max_attempts: must be a whole number, not null"),
    # run_at, delay, timeout
    ("run_at naive", job(b'"run_at":"2027-01-01T00:00:00"'), 400, "run_at: must be a time in RFC 3339 with an offset"),
    ("run_at date", job(b'"run_at":"2027-01-01"'), 400, "run_at: must be a time in RFC 3339"),
    ("run_at infinity", job(b'"run_at":"infinity"'), 400, "run_at: must be a time in RFC 3339"),
    ("run_at year 1", job(b'"run_at":"0001-01-01T00:00:00Z"'), 400, "run_at: "),
    ("run_at year 1, east", job(b'"run_at":"0001-01-01T00:00:00+14:00"'), 400, "run_at: "),
    ("run_at year 9999", job(b'"run_at":"9999-12-31T23:59:59-14:00"'), 400, "run_at: "),
    ("run_at offset", job(b'"run_at":"2027-01-01T00:00:00+99:99"'), 400, "run_at: must be a time in RFC 3339"),
    ("run_at month 13", job(b'"run_at":"2027-13-01T00:00:00Z"'), 400, "run_at: must be a time in RFC 3339"),
    ("run_at number", job(b'"run_at":1700000000'), 400, "run_at: must be a string or null, not a whole number"),
    ("run_at with delay", job(b'"run_at":"2027-01-01T00:00:00Z","delay":"1s"'), 400, "delay: can't be given together"),
    ("delay negative", job(b'"delay":"-1s"'), 400, "delay: '-1s' is not a duration"),
    ("delay overflow", job(b'"delay":"99999999999999999999h"'), 400, "delay: "),
    ("delay eleven years", job(b'"delay":"4015d"'), 400, "delay: must be from 0 to ten years"),
    ("delay number", job(b'"delay":5'), 400, "delay: must be a string or null, not a whole number"),
    ("delay unit", job(b'"delay":"5 parsecs"'), 400, "delay: '5 parsecs' is not a duration"),
    ("timeout 0", job(b'"timeout":"0"'), 400, "timeout: must be from 1ms to 24h"),
    ("timeout 25h", job(b'"timeout":"25h"'), 400, "timeout: must be from 1ms to 24h"),
    # idempotency_key
    ("key empty", job(b'"idempotency_key":""'), 400, "idempotency_key: must be 1 to 255"),
    ("key of 5,000", job(b'"idempotency_key":"' + b"k" * 5_000 + b'"'), 400, "idempotency_key: must be 1 to 255"),
    ("key beyond ASCII", job('"idempotency_key":"ключ"'.encode()), 400, "idempotency_key: must be 1 to 255 printable"),
    ("key with NUL", job(b'"idempotency_key":"a\\u0000"'), 400, "idempotency_key: must be 1 to 255"),
    ("key number", job(b'"idempotency_key":5'), 400, "idempotency_key: must be a string or null"),
    # many
    ("bulk empty", b"[]", 400, "holds no job"),
    ("bulk of numbers", b"[1,2]", 400, "jobs[0]: this item must be an object"),
    ("bulk in bulk", b'[[{"type":"echo"}]]', 400, "jobs[0]: this item must be an object, not an array"),
    ("bulk unclosed", b'[{"type":"echo"}', 400, "not a complete JSON array"),
    ("bulk trailing comma", b'[{"type":"echo"},]', 400, "jobs[1]: is not valid JSON"),
    ("bulk and more", b'[{"type":"echo"}] x', 400, "goes on after the end of its array"),
    ("bulk, a NUL", b'[{"type":"echo"},{"type":"echo","payload":"\\u0000"}]', 400, "jobs[1]: payload: contains"),
    ("bulk, half a pair", b'[{"type":"echo"},{"type":"echo","payload":"\\ud800"}]', 400, "jobs[1]: payload: contains"),
    ("bulk, twice", b'[{"type":"echo"},{"type":"echo","type":"echo"}]', 400, "jobs[1]: type: is given twice"),
    ("bulk not UTF-8", b'[{"type":"\xff"}]', 400, "not valid UTF-8"),
    (
        "bulk, 150 is bad",
        b"[" + b'{"type":"echo"},' * 150 + b'{"type":"echo","payload":1e999}]',
        400,
        "jobs[150]: payload",
    ),
    ("bulk of 10,001", b"[" + b'{"type":"echo"},' * 10_000 + b'{"type":"echo"}]', 413, "may hold 10,000 jobs"),
    ("bulk over 32 MiB", b"[" + b" " * (32 << 20) + b"]", 413, "33,554,432 bytes"),
]

LINE_BODIES: list[tuple[str, bytes, int, str]] = [
    ("no line", b"\n\n", 400, "holds no job"),
    ("broken line", b'{"type":"echo"}\n{"type":\n{"type":"echo"}', 400, "jobs[1]: this item is not valid JSON"),
    (
        "bad line",
        b'{"type":"echo"}\n{"type":"echo","priority":-1}',
        400,
        "jobs[1]: priority: must be a whole number from 0 to 100, not -1",
    ),
    ("array in a line", b'[{"type":"echo"}]', 400, "jobs[0]: this item must be an object"),
    ("10,001 lines", b'{"type":"echo"}\n' * 10_001, 413, "may hold 10,000 jobs"),
    ("32 MiB", b" " * (32 << 20) + b"{}", 413, "33,554,432 bytes"),
]

SUBMIT_BODIES: list[tuple[str, bytes, int, str]] = [
    ("no payload", b"{}", 400, "payload: is missing"),
    ("no task", b'{"payload":{}}', 400, "payload: must be an object whose member `task`"),
    ("payload a list", b'{"payload":[]}', 400, "payload: must be an object whose member `task`"),
    ("task a number", b'{"payload":{"task":1}}', 400, "payload: must be an object whose member `task`"),
    ("task unknown", b'{"payload":{"task":"nope"}}', 400, "is not a registered job type"),
    (
        "priority -1",
        b'{"priority":-1,"payload":{"task":"echo"}}',
        400,
        "priority: must be a whole number from 0 to 100, not -1",
    ),
    ("max_retries 100", b'{"max_retries":100,"payload":{"task":"echo"}}', 400, "max_retries: must be at most 99"),
    ("max_retries -1", b'{"max_retries":-1,"payload":{"task":"echo"}}', 400, "max_retries: must be at least 0"),
    ("unknown field", b'{"type":"echo","payload":{"task":"echo"}}', 400, "type: is not a field here"),
    ("task twice", b'{"payload":{"task":"echo","task":"other"}}', 400, "payload: has the key 'task' twice"),
    ("NUL", b'{"payload":{"task":"echo","a":"\\u0000"}}', 400, "payload: contains the character NUL"),
    ("an array", b'[{"payload":{"task":"echo"}}]', 400, "must be an object, not an array"),
]

CASES = [
    pytest.param(path, headers, body, status, says, id=f"{path} {name}")
    for path, headers, bodies in (
        ("/jobs", JSON, BODIES),
        ("/jobs", LINES, LINE_BODIES),
        ("/submit", JSON, SUBMIT_BODIES),
    )
    for name, body, status, says in bodies
]


@pytest.mark.parametrize(("path", "headers", "body", "status", "says"), CASES)
async def test_a_bad_body_is_refused(
    api: httpx2.AsyncClient, path: str, headers: dict[str, str], body: bytes, status: int, says: str
) -> None:
    response = await api.post(path, content=body, headers=headers)
    assert response.status_code == status, response.text
    message = error_of(response)
    assert says in message
    assert len(message) < 500
    assert message.isprintable()


HEADERS: list[tuple[str, dict[str, str], int, str]] = [
    ("form", {"content-type": "application/x-www-form-urlencoded"}, 415, "-H 'Content-Type: application/json'"),
    ("text", {"content-type": "text/plain"}, 415, "'text/plain' isn't supported"),
    ("multipart", {"content-type": "multipart/form-data; boundary=x"}, 415, "isn't supported"),
    ("latin-1", {"content-type": "application/json; charset=latin-1"}, 415, "send JSON in UTF-8"),
    ("compressed", {"content-type": "application/json", "content-encoding": "gzip"}, 415, "Content-Encoding"),
    ("empty key", {"idempotency-key": ""}, 400, "idempotency_key: must be 1 to 255"),
    ("quotes around nothing", {"idempotency-key": '""'}, 400, "idempotency_key: must be 1 to 255"),
    ("long key", {"idempotency-key": "k" * 5_000}, 400, "idempotency_key: must be 1 to 255"),
    ("key with a tab", {"idempotency-key": "a\tb"}, 400, "idempotency_key: must be 1 to 255"),
]


@pytest.mark.parametrize(("headers", "status", "says"), [pytest.param(*case[1:], id=case[0]) for case in HEADERS])
async def test_bad_headers_are_refused(
    api: httpx2.AsyncClient, headers: dict[str, str], status: int, says: str
) -> None:
    response = await api.post("/jobs", content=b'{"type":"echo"}', headers=JSON | headers)
    assert response.status_code == status, response.text
    assert says in error_of(response)


async def test_a_key_beyond_ascii_is_refused(api: httpx2.AsyncClient) -> None:
    headers = [(b"content-type", b"application/json"), (b"idempotency-key", "ключ".encode())]
    response = await api.post("/jobs", content=b'{"type":"echo"}', headers=headers)
    assert (response.status_code, "printable ASCII" in error_of(response)) == (400, True)


async def test_two_keys_are_refused(api: httpx2.AsyncClient) -> None:
    headers = [("content-type", "application/json"), ("idempotency-key", "a"), ("idempotency-key", "b")]
    response = await api.post("/jobs", content=b'{"type":"echo"}', headers=headers)
    assert (response.status_code, "twice" in error_of(response)) == (400, True)
    differing = await api.post("/jobs", json={"type": "echo", "idempotency_key": "a"}, headers={"idempotency-key": "b"})
    assert (differing.status_code, "differs" in error_of(differing)) == (400, True)


async def test_a_key_header_on_many_jobs_is_refused(api: httpx2.AsyncClient) -> None:
    for content, headers in ((b'[{"type":"echo"}]', JSON), (b'{"type":"echo"}', LINES)):
        response = await api.post("/jobs", content=content, headers=headers | {"idempotency-key": "k"})
        assert response.status_code == 400
        assert "give each job its own idempotency_key" in error_of(response)


async def test_lines_are_not_for_submit(api: httpx2.AsyncClient) -> None:
    response = await api.post("/submit", content=b"{}", headers=LINES)
    assert response.status_code == 415


QUERIES: list[tuple[str, str]] = [
    ("limit=-1", "limit: must be a whole number from 1 to 200"),
    ("limit=0", "limit: must be"),
    ("limit=201", "limit: must be"),
    ("limit=1000000", "limit: must be"),
    ("limit=abc", "limit: must be"),
    ("limit=", "limit: must be"),
    ("limit=%D9%A1", "limit: must be"),
    ("limit=1&limit=2", "limit: is given twice"),
    ("status=queued", "status: must be one of pending, processing, completed"),
    ("status=", "status: must be one of"),
    ("statuss=pending", "there is no query parameter 'statuss'; there are status"),
    ("status=pending&x=1&x=2", "there is no query parameter 'x'"),
    ("queue=a%20b", "queue: must be"),
    ("queue=%00", "queue: must be"),
    ("type=%00", "type: must be"),
    ("type=%ff", "type: must be"),
    ("since=yesterday", "since: must be a time in RFC 3339"),
    ("since=2027-01-01", "since: must be a time"),
    ("since=2027-01-01T00:00:00", "since: must be a time"),
    ("until=2027-01-01T00:00:00+01:00", "written %2B"),
    ("until=0001-01-01T00:00:00Z", "until: must be between"),
    ("include=everything", "include: can only be"),
    ("cursor=", "cursor: isn't one that this list gave out"),
    ("cursor=AAAA", "cursor: isn't one"),
    ("cursor=" + "A" * 32, "cursor: isn't one"),
    ("cursor=%00%ff", "cursor: isn't one"),
    ("type=" + "x" * 5_000, "the query string is longer"),
]


@pytest.mark.parametrize(("query", "says"), QUERIES)
async def test_a_bad_query_is_refused(api: httpx2.AsyncClient, query: str, says: str) -> None:
    response = await api.get(f"/jobs?{query}")
    assert response.status_code == 400, response.text
    assert says in error_of(response)


@pytest.mark.parametrize(
    "bad", ["1", "nope", "%00", ID[:-1], ID + "0", "{" + ID[1:-1] + "}", "..%2f..", "é" * 36, "x" * 3000]
)
@pytest.mark.parametrize(("method", "rest"), [("GET", ""), ("GET", "/status"), ("POST", "/retry"), ("POST", "/cancel")])
async def test_a_bad_id_is_refused(api: httpx2.AsyncClient, bad: str, method: str, rest: str) -> None:
    response = await api.request(method, f"/jobs/{bad}{rest}")
    assert response.status_code in (400, 404)
    message = error_of(response)
    assert "is not a job id" in message or "nothing at this path" in message


async def test_actions_take_no_body(api: httpx2.AsyncClient) -> None:
    for path in (f"/jobs/{ID}/retry", f"/jobs/{ID}/cancel", "/queues/nope/pause", "/queues/nope/resume"):
        for content, status in ((b'{"a":1}', 400), (b"x" * 5_000, 413)):
            response = await api.post(path, content=content)
            assert response.status_code == status
            assert "takes no body" in error_of(response)
        allowed: Any = await api.post(path, json={})
        assert allowed.status_code == 404
