"""Any JSON value that PostgreSQL can hold comes back as it was, through every door; what it can't is refused there."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx2
import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fencepost import Context, Fencepost, InvalidJob, Payload
from fencepost.api.app import Services
from fencepost.settings import Settings
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from tests.api.support import JSON, client_of, own_database
from tests.fuzz.json_values import NUMBERS, WORDS, alike, as_stored, deep_values, exactly, respelled, same, values

PATIENCE_SECONDS = 60.0
EXAMPLES = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
DEEPEST = 64
# It would show a large value that fails; that one is large is no fault.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")


class Doors:
    """The API, an app with a worker, and a plain connection, on one database."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._url = url
        self._stack = AsyncExitStack()
        self.seen: dict[UUID, Any] = {}
        """What handlers were given, by job."""

    def run(self, coroutine: Any) -> Any:
        """Run it on the loop of all these."""
        return self._runner.run(coroutine)

    async def open(self) -> None:
        self._app = Fencepost(self._url, settings=Settings(poll_interval_seconds=0.2))

        @self._app.job
        async def echo(context: Context, value: Payload[Any]) -> Any:
            self.seen[context.id] = value
            return value

        self.echo = echo
        database = Database(self._url)
        await database.open()
        self._stack.push_async_callback(database.close)
        hints = Hints(database)
        self._stack.push_async_callback(hints.close)
        services = Services.of(Settings(http_port=0), self._app.types, database, hints)
        self.http: httpx2.AsyncClient = await self._stack.enter_async_context(client_of(services))
        self.sql = await asyncpg.connect(self._url)
        self._stack.push_async_callback(self.sql.close)
        self._stack.push_async_callback(self._app.close)
        await self._stack.enter_async_context(self._app.worker())

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    async def post(self, text: str, **headers: str) -> httpx2.Response:
        body = f'{{"type":"echo","payload":{text}}}'
        return await self.http.post("/jobs", content=body.encode(), headers={**JSON, **headers})

    async def through_all(self, value: Any, text: str) -> dict[str, tuple[UUID, str]]:
        """One job of each door, with the text that its payload was there."""
        one = await self.post(text)
        many = await self.http.post("/jobs", content=f'[{{"type":"echo","payload":{text}}}]'.encode(), headers=JSON)
        lines = await self.http.post(
            "/jobs",
            content=json.dumps({"type": "echo", "payload": value}).encode(),
            headers={"content-type": "application/x-ndjson"},
        )
        for answer in (one, many, lines):
            assert answer.status_code == 201, answer.text
        handle = await self.echo.enqueue(value)
        called = await self.sql.fetchval("select fencepost.enqueue('echo', $1::text::jsonb)", text)
        plain = json.dumps(value)
        return {
            "HTTP": (UUID(one.json()["id"]), text),
            "bulk": (UUID(many.json()["jobs"][0]["id"]), text),
            "NDJSON": (UUID(lines.json()["jobs"][0]["id"]), plain),
            "library": (handle.id, plain),
            "SQL": (called, text),
        }

    async def ended(self, job_id: UUID) -> dict[str, Any]:
        """Wait for a job's result; its record as the API shows it, numbers as text."""
        await self._app.handle(job_id).result(timeout=PATIENCE_SECONDS)
        answer = await self.http.get(f"/jobs/{job_id}")
        assert answer.status_code == 200
        return {"text": answer.text, **json.loads(answer.content)}


@pytest.fixture(scope="module")
def doors(server_url: str, template_url: str) -> Iterator[Doors]:
    with own_database(server_url, template_url) as url:
        opened = Doors(url)
        opened.run(opened.open())
        yield opened
        opened.close()


def member(record: dict[str, Any], name: str, read: Any) -> Any:
    """A member of a record's text, read with *read*."""
    return read(record["text"])[name]


@pytest.mark.slow
@EXAMPLES
@given(value=values | deep_values(), seed=st.integers(0, 1 << 30))
@example(value=list(NUMBERS), seed=1)
@example(value={word: word for word in WORDS}, seed=1)
@example(value=-0.0, seed=1)
@example(value=9.223372036854776e18, seed=1)
@example(value=18014397838393344, seed=2)
@example(value={"": {"": [[], {}, None, 0, 0.0, False, ""]}}, seed=1)
@example(value={f"k{number}": number for number in range(2_000)}, seed=1)
def test_every_value_comes_back_through_every_door(doors: Doors, value: Any, seed: int) -> None:
    async def check() -> None:
        text = respelled(value, random.Random(seed))
        for door, (job_id, sent) in (await doors.through_all(value, text)).items():
            record = await doors.ended(job_id)
            expected = as_stored(sent)
            assert same(doors.seen.pop(job_id), expected), door
            assert same(member(record, "payload", as_stored), expected), door
            # What the handler gave back was written once more: of 2.0e16, which Python writes with an exponent, comes
            # the whole number. They are equal, and only this test cares.
            written = as_stored(msgspec.json.encode(expected).decode())
            assert alike(written, expected)
            assert same(member(record, "result", as_stored), written), door
            # And the payload to the last digit, which no Python type needs to hold.
            if door != "library":
                assert exactly(record["text"])["payload"] == exactly(sent), door

    doors.run(check())


@EXAMPLES
@given(value=values, other=values, seed=st.integers(0, 1 << 30))
@example(value=1, other=True, seed=1)
@example(value=[1.0, 1e2], other=[1, 2], seed=4)
def test_one_key_is_one_request_however_it_is_written(doors: Doors, value: Any, other: Any, seed: int) -> None:
    async def check() -> None:
        dice = random.Random(seed)
        key = {"Idempotency-Key": str(uuid4())}
        first = await doors.post(respelled(value, dice), **key)
        assert first.status_code == 201, first.text
        for _ in range(3):
            again = await doors.post(respelled(value, dice), **key)
            assert (again.status_code, again.json()["id"]) == (200, first.json()["id"]), again.text
        different = await doors.post(respelled(other, dice), **key)
        equal = await doors.sql.fetchval(
            "select $1::text::jsonb = $2::text::jsonb", json.dumps(value), json.dumps(other)
        )
        assert different.status_code == (200 if equal else 409)

    doors.run(check())


BAD = (
    r'"\u0000"',
    r'"a\ud800"',
    r'"\udc00\ud83d"',
    *("1e400", "-1e309", "1e-400", "1" + "0" * 400, "0." + "0" * 1200 + "1", "NaN", "Infinity", "-Infinity"),
    *('{"a":1,"a":2}', r'{"a":1,"\u0061":1}', r'{"\u0000":1}', r'{"\ud800":1}', '"\t"', "01", "+1", "'a'", "[1,]"),
)


@EXAMPLES
@given(around=values, bad=st.sampled_from(BAD), seed=st.integers(0, 1 << 30))
def test_what_cannot_be_held_is_refused_by_its_name(doors: Doors, around: Any, bad: str, seed: int) -> None:
    async def check() -> None:
        text = f'{{"around":{respelled(around, random.Random(seed))},"bad":[{bad}]}}'
        before = await doors.sql.fetchval("select count(*) from fencepost.jobs")
        answer = await doors.post(text)
        assert answer.status_code == 400, bad
        words = answer.json()["error"]
        assert words.startswith("payload: ") or "not valid JSON" in words, words
        many = await doors.http.post(
            "/jobs",
            content=f'[{{"type":"echo"}},{{"type":"echo","payload":{text}}}]'.encode(),
            headers=JSON,
        )
        assert many.status_code == 400
        assert many.json()["error"].startswith("jobs[1]: "), many.text
        assert await doors.sql.fetchval("select count(*) from fencepost.jobs") == before

    doors.run(check())


@pytest.mark.parametrize("depth", [DEEPEST, DEEPEST + 1, 100, 500])
def test_so_deep_and_no_deeper(doors: Doors, depth: int) -> None:
    async def check() -> None:
        value: Any = 1
        for level in range(depth):
            value = [value] if level % 2 else {"": value}
        answer = await doors.post(json.dumps(value))
        if depth <= DEEPEST:
            assert answer.status_code == 201
            assert same((await doors.ended(UUID(answer.json()["id"])))["result"], value)
            return
        assert answer.status_code == 400
        assert answer.json()["error"] == f"payload: is nested more than {DEEPEST} levels deep"
        with pytest.raises(InvalidJob, match="nested"):
            await doors.echo.enqueue(value)

    doors.run(check())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [{"a": -float("inf")}], "\ud800", {"\x00": 1}, ["\x00"]])
def test_the_library_refuses_what_cannot_be_held(doors: Doors, value: Any) -> None:
    async def check() -> None:
        before = await doors.sql.fetchval("select count(*) from fencepost.jobs")
        with pytest.raises(InvalidJob) as refused:
            await doors.echo.enqueue(value)
        assert refused.value.field == "value"
        assert await doors.sql.fetchval("select count(*) from fencepost.jobs") == before

    doors.run(check())


def test_the_comparison_knows_types() -> None:
    different: list[Any] = [0, 0.0, -0.0, False, None, "", "0", [], {}, [0], [0.0], {"a": 0}, {"a": False}]
    for one in different:
        for other in different:
            assert same(one, other) is (one is other)
    assert same(as_stored("[1e3, 1.50, 1.5e1, 1.50e1, -0.0, 1E-2]"), [1000, 1.5, 15, 15.0, 0.0, 0.01])
