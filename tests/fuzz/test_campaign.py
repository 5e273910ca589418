"""A small campaign in each run of the tests, and proof that its books and its verdicts find what they are for."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import asyncpg
import pytest

from tests.fuzz.campaign import Campaign
from tests.fuzz.mutations import ALL, request
from tests.fuzz.requests import Known, Sent
from tests.fuzz.service import complaints, ready
from tests.fuzz.verdicts import faults_of
from tests.fuzz.wire import Answer

REQUESTS = 4_000
SEED = int(os.environ.get("FENCEPOST_FUZZ_SEED", "11"))
KNOWN = Known(("01890a5d-ac96-774b-bcce-b302099a8057",))


@pytest.mark.slow
def test_a_campaign_finds_nothing(database_url: str) -> None:
    with ready(database_url) as service:
        campaign = Campaign(
            seed=SEED,
            url=service.service.url,
            pid=service.service.process.pid,
            database_url=database_url,
            known=service.known,
        )
        report = asyncio.run(campaign.run(range(1, REQUESTS + 1), batch=REQUESTS // 2))
        assert report.findings == []
        assert complaints(service.service) == []
    assert report.requests == REQUESTS
    assert report.answers + report.unanswered >= REQUESTS
    assert {"200", "201", "204", "400", "401", "404", "405", "409", "413", "415", "431"} <= set(report.by_status)
    assert set(report.by_mutation) >= set(ALL), set(ALL) - set(report.by_mutation)
    assert len(report.by_route) == 19 - 2  # three makers write POST /jobs
    if report.before is not None and report.after is not None:
        assert report.after.threads == report.before.threads
        assert report.after.open_files <= report.before.open_files + 20


def test_a_request_depends_on_seed_and_number_alone() -> None:
    once = [request(5, number, KNOWN).written() for number in range(300)]
    assert once == [request(5, number, KNOWN).written() for number in range(300)]
    assert once != [request(6, number, KNOWN).written() for number in range(300)]


def test_every_mutation_changes_what_is_sent() -> None:
    seen: set[str] = set()
    for number in range(6_000):
        sent = request(3, number, KNOWN)
        seen |= set(sent.mutation.split("+"))
        assert sent.framed or sent.raw is not None or sent.rude or sent.version != b"HTTP/1.1" or sent.method != "GET"
    assert seen == {*ALL, "none"}


def answer(status: int, body: bytes, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, {"x-request-id": "fuzz-1", "content-type": "application/json", **named}, body)


def sent(**changes: Any) -> Sent:
    return Sent(**{"number": 1, "route": "GET /jobs", "method": "GET", "target": b"/jobs", "headers": [], **changes})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (answer(500, b'{"error":"internal error"}', x_error_code="internal"), "status 500"),
        (answer(503, b'{"error":"the database is away"}', x_error_code="unavailable"), "status 503"),
        (answer(409, b'{"error":"in use elsewhere"}', x_error_code="conflict"), "not in the document"),
        (answer(400, b'{"error":"limit: too much","x":1}', x_error_code="invalid_request"), "the members"),
        (answer(400, b"oh no", x_error_code="invalid_request"), "not JSON"),
        (answer(400, b'{"error":"asyncpg.PostgresError"}', x_error_code="invalid_request"), "tells too much"),
        (answer(400, b'{"error":"limit: too much"}'), "X-Error-Code"),
        (answer(200, b'{"jobs":NaN}'), "not JSON"),
        (answer(200, b"<html>", content_type="text/html"), "of type"),
        (Answer(200, {"content-type": "application/json"}, b"{}"), "no X-Request-ID"),
    ],
)
def test_a_bad_answer_is_found(given: Answer, words: str) -> None:
    faults = faults_of(given, sent(), {"GET /jobs": {200, 400}})
    assert any(words in fault for fault in faults), faults


def test_a_status_that_cannot_be_is_found() -> None:
    good = answer(200, b'{"jobs":[]}')
    assert faults_of(good, sent(expected=frozenset({200})), {"GET /jobs": {200}}) == []
    assert faults_of(good, sent(expected=frozenset({401})), {"GET /jobs": {200}})


@pytest.mark.slow
async def test_a_job_that_nobody_was_told_of_is_found_and_one_that_is_lost(database_url: str) -> None:
    """The books against the database: one job put in and one taken out behind the API's back."""
    with ready(database_url) as service:
        campaign = Campaign(
            seed=SEED,
            url=service.service.url,
            pid=service.service.process.pid,
            database_url=database_url,
            known=service.known,
        )
        connection = await asyncpg.connect(database_url)
        assert (await campaign.run(range(1, 41), batch=40)).findings == []
        await connection.execute("select fencepost.enqueue('send_email', '{}')")
        await connection.execute("delete from fencepost.pending where id = $1", service.known.ids[3])
        await connection.execute("delete from fencepost.jobs where id = $1", service.known.ids[3])
        await campaign._check(connection, 41)
        await connection.close()
    faults = " / ".join(finding.fault for finding in campaign.report.findings)
    assert "1 jobs are there that nobody was told of" in faults
    assert "1 acknowledged jobs are not there" in faults
