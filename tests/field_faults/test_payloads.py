"""
What a job may not hold is refused by every door, by name and whole; what it holds keeps every digit.

B01, B02, B04, B05. What handlers return and raise is in tests/worker/test_worker_results.py and
test_worker_misbehaviour.py. SQL hands in jsonb, which PostgreSQL has checked before a function of ours sees it.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import asyncpg
import httpx2
import pytest

from fencepost import Fencepost, InvalidJob, InvalidSettings, Unique
from fencepost.store.jobs import Jobs
from tests.cli.test_commands import fencepost

from .doors import Doors, Refused

pytestmark = pytest.mark.anyio

PAYLOADS: list[tuple[str, Any, str]] = [
    ("NUL", "x\x00y", "the character NUL"),
    ("NUL in a key", {"x\x00y": 1}, "the character NUL"),
    ("NUL deep inside", [[{"a": ["\x00"]}]], "the character NUL"),
    ("NUL at the very end", "x" * 1_000 + "\x00", "the character NUL"),
    ("half a pair", "\ud835", "half a surrogate pair"),
    ("a pair reversed", "\udc59\ud835", "half a surrogate pair"),
    ("half a pair in a key", {"a": {"\udfff": 1}}, "half a surrogate pair"),
    ("half a pair behind a whole one", "😀\ud83d", "half a surrogate pair"),
    ("NaN", math.nan, "nan|NaN"),
    ("Infinity", [1, {"x": math.inf}], "inf|Infinity"),
    ("-Infinity", -math.inf, "-inf|-Infinity"),
    ("a number of 400 digits", 10**400, "a number beyond the range of a double"),
    ("a negative one", [-(10**309)], "a number beyond the range of a double"),
    ("a number beyond Python's digits", {"n": 1 << 20_000}, "range of a double|limit"),
    ("65 levels", json.loads("[" * 64 + "]" * 64), "nested more than 64 levels"),
]


@pytest.fixture
def doors(app: Fencepost, echo: Any, api: httpx2.AsyncClient, database_url: str) -> Doors:
    return Doors(app, echo, api, database_url)


@pytest.mark.parametrize(("bad", "says"), [pytest.param(*case[1:], id=case[0]) for case in PAYLOADS])
async def test_every_door_refuses_it_whole_and_goes_on(doors: Doors, jobs: Jobs, bad: Any, says: str) -> None:
    stored = 0
    for name, door in doors.all().items():
        if name == "sql":
            continue  # Below.
        for payloads in ([bad], ["good", bad, "good"]):
            # Python can't write such a number at all, so HTTP is spared it.
            if isinstance(bad, dict) and "n" in bad and name.startswith("http"):
                continue
            with pytest.raises((InvalidJob, Refused), match=says) as refused:
                await door(payloads)
            assert "payload" in str(refused.value), name
            assert getattr(refused.value, "status", 400) == 400
            if name.startswith("http") and len(payloads) > 1:
                assert str(refused.value).startswith("jobs[1]: payload: ")
            assert (await jobs.audit())["jobs"] == stored, name
        await door(["good"])
        stored += 1


@pytest.mark.parametrize("text", [r'"\u0000"', r'{"\u0000": 1}', r'"\ud835"', r'"\udc59\ud835"', "NaN", "[Infinity]"])
async def test_sql_refuses_it_before_it_is_a_jobs(database_url: str, jobs: Jobs, text: str) -> None:
    connection = await asyncpg.connect(database_url)
    request = (
        f'[{{"id": "01890a5d-ac96-774b-bcce-b302099a8057", "type": "echo", "max_attempts": 3, "payload": {text}}}]'
    )
    try:
        for call, value in (("enqueue('echo', $1::text::jsonb)", text), ("enqueue_jobs($1::text::jsonb)", request)):
            with pytest.raises(asyncpg.DataError):
                await connection.fetchval(f"select fencepost.{call}", value)
        assert (await jobs.audit())["jobs"] == 0
        assert await connection.fetchval("""select fencepost.enqueue('echo', '"good"')""")
    finally:
        await connection.close()


@pytest.mark.parametrize("text", ["x\x00y", "\ud835", "\udc59\ud835", "x" * 300])
async def test_every_text_beside_the_payload_is_refused_by_name(
    app: Fencepost, echo: Any, api: httpx2.AsyncClient, jobs: Jobs, text: str
) -> None:
    beside: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("queue", {"queue": text}, {}),
        ("idempotency_key", {"idempotency_key": text}, {}),
        ("tags", {"tags": ["good", text]}, {}),
        ("unique", {"unique": Unique(key=text)}, {"unique": {"key": text}}),
    ]
    if len(text) < 300:
        beside += [("metadata", {"metadata": {"a": [text]}}, {}), ("metadata", {"metadata": {text: 1}}, {})]
    for field, options, written in beside:
        with pytest.raises(InvalidJob) as refused:
            echo.options(**options)
        assert refused.value.field == field
        body = json.dumps([{"type": "echo"}, {"type": "echo", **options, **written}, {"type": "echo"}])
        answer = await api.post("/jobs", content=body.encode(), headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["error"].partition(":")[0]) == (400, "jobs[1]")
        assert f"jobs[1]: {field}: " in answer.json()["error"]
    with pytest.raises(InvalidSettings, match="can't name a job type"):
        app.declare(text)
    assert (await jobs.audit())["jobs"] == 0
    await echo.enqueue("good")


@pytest.mark.parametrize("text", ["x\x00y", "\ud835", "", "x" * 300])
async def test_looking_for_what_no_job_could_have_is_refused_by_name(app: Fencepost, echo: Any, text: str) -> None:
    """Also where nothing is stored: the driver's own words for it would help nobody."""
    await echo.enqueue("good")
    for field in ("type", "queue", "tag"):
        condition: Any = {field: text}
        with pytest.raises(InvalidJob, match=f"^{field}: ") as refused:
            _ = [job async for job in app.jobs(**condition)]
        assert refused.value.field == field
        with pytest.raises(InvalidJob, match=f"^{field}: "):
            await app.cancel_all(**condition)
    for look in (app.get, app.cancel, app.retry):
        with pytest.raises(InvalidJob, match="is not a job id"):
            await look(text)
    with pytest.raises(InvalidSettings, match="SCHEMA must be a name of 1 to 50 bytes"):
        await Fencepost("postgresql://nowhere/none", schema=text).open()
    assert len([job async for job in app.jobs(type="echo")]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--tag", "--type", "--queue", "--since", "--schema"])
@pytest.mark.parametrize("word", ["\udcff", "\udced\udca0\udcb5"], ids=["a byte that is no UTF-8", "half a pair"])
def test_the_command_line_refuses_bytes_that_are_no_text(database_url: str, option: str, word: str) -> None:
    ended = fencepost("jobs", "list", option, word, DATABASE_URL=database_url)
    assert ended.returncode == 2
    assert option.strip("-") in ended.stderr.lower()
    assert "Traceback" not in ended.stderr


NUMBERS = {
    "id": 4611686018427387907,
    "id2": 9007199254740993,
    "big": 10**30,
    "negative": -(2**63) - 1,
    "f": 1.0,
    "third": 0.1,
    "zero": -0.0,
    "longest": 10**308,
}


async def test_numbers_keep_their_digits_through_every_door(
    app: Fencepost, doors: Doors, api: httpx2.AsyncClient, database_url: str
) -> None:
    """PostgreSQL's numbers have no negative zero; everything else comes back as it went in, a 1.0 as a 1.0 too."""
    ids = [job_id for door in doors.all().values() for job_id in await door([NUMBERS, NUMBERS])]
    assert len(ids) == 14
    async with app.worker():
        for job_id in ids:
            assert _exact(await app.handle(job_id).result(timeout=10)) == _exact(NUMBERS)
    listed = await asyncio.to_thread(fencepost, "jobs", "list", "--json", DATABASE_URL=database_url)
    shown = {job["id"]: job for job in map(json.loads, listed.stdout.splitlines())}
    for job_id in ids:
        record = (await api.get(f"/jobs/{job_id}")).json()
        for job in (record, shown[str(job_id)]):
            assert _exact(job["payload"]["payload"]) == _exact(job["result"]) == _exact(NUMBERS)


def _exact(numbers: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """With their types; `==` alone takes 1 for 1.0."""
    return sorted((name, type(value).__name__, value) for name, value in numbers.items())


async def test_a_number_with_an_exponent_is_what_its_parameter_says(app: Fencepost) -> None:
    """JSON in PostgreSQL knows no exponents: 1e22 is written out, and only its parameter tells that it was a float."""

    @app.job
    async def typed(number: float) -> float:
        assert isinstance(number, float)
        return number

    @app.job
    async def untyped(number: Any) -> Any:
        return number

    async with app.worker():
        for number in (1e22, 1e300, 5e-324, 1.7976931348623157e308, 123456789.123456789):
            assert await (await typed.enqueue(number)).result(timeout=10) == number
            assert float(await (await untyped.enqueue(number)).result(timeout=10)) == number
