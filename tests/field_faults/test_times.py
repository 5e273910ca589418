"""
Moments: aware ones mean the same instant through every door, wherever process and database think they are. B32.

The fields of HTTP are in tests/api/test_bad_input.py and tests/unit/test_requests.py, those of SQL in
tests/store/test_sql_function.py.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import subprocess
import sys
from typing import Any
from zoneinfo import ZoneInfo

import httpx2
import pytest

from fencepost import Fencepost, InvalidJob
from fencepost.store.jobs import Jobs
from tests.store.support import Connection

from .doors import Doors, Refused

pytestmark = pytest.mark.anyio

NEW_YORK = ZoneInfo("America/New_York")
UTC = dt.UTC

MOMENTS = [
    (dt.datetime(2031, 7, 1, 12, tzinfo=UTC), "2031-07-01T12:00:00Z"),
    (dt.datetime(2031, 7, 1, 12, tzinfo=ZoneInfo("America/Phoenix")), "2031-07-01T19:00:00Z"),
    # The hour that comes twice, both times.
    (dt.datetime(2031, 11, 2, 1, 30, fold=0, tzinfo=NEW_YORK), "2031-11-02T05:30:00Z"),
    (dt.datetime(2031, 11, 2, 1, 30, fold=1, tzinfo=NEW_YORK), "2031-11-02T06:30:00Z"),
    # The one that doesn't exist.
    (dt.datetime(2031, 3, 9, 2, 30, tzinfo=NEW_YORK), "2031-03-09T07:30:00Z"),
    (dt.datetime(2031, 7, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=45))), "2031-07-01T06:15:00Z"),
    (dt.datetime(2031, 7, 1, 12, tzinfo=dt.timezone(-dt.timedelta(minutes=28))), "2031-07-01T12:28:00Z"),
    (dt.datetime(2099, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), "2099-12-31T23:59:59.999999Z"),
]

PRODUCER = """
import datetime as dt, json, sys
from zoneinfo import ZoneInfo
from fencepost import Fencepost
app = Fencepost(sys.argv[1])
job = app.declare("echo")
moments = [dt.datetime.fromisoformat(text).replace(fold=fold, tzinfo=zone and ZoneInfo(zone) or dt.timezone.utc)
           for text, fold, zone in json.loads(sys.argv[2])]
calls = [job.options(run_at=moment).call({}) for moment in moments]
print(json.dumps([str(handle.id) for handle in app.enqueue_many_sync(calls)]))
"""


@pytest.fixture
def doors(app: Fencepost, echo: Any, api: httpx2.AsyncClient, database_url: str) -> Doors:
    return Doors(app, echo, api, database_url)


async def test_a_moment_is_the_same_instant_through_every_door(doors: Doors, api: httpx2.AsyncClient) -> None:
    for moment, instant in MOMENTS:
        written = moment.isoformat()
        for name, door in doors.all(run_at=moment).items():
            door = doors.all(run_at=written)[name] if name.startswith("http") else door
            [job_id] = await door([1])
            record = (await api.get(f"/jobs/{job_id}")).json()
            assert record["run_at"].replace(".000000", "") == instant, name


async def test_where_process_and_database_are_does_not_matter(
    api: httpx2.AsyncClient, database_url: str, sql: Connection
) -> None:
    name = await sql.fetchval("select current_database()")
    await sql.execute(f"alter database {name} set timezone to 'America/St_Johns'")
    wanted = [("2031-07-01T12:00:00", 0, None), ("2031-11-02T01:30:00", 1, "America/New_York")]
    produced = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", PRODUCER, database_url, json.dumps(wanted)],
        env={**os.environ, "TZ": "Asia/Kolkata"}, capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    found = [(await api.get(f"/jobs/{one}")).json() for one in json.loads(produced.stdout)]
    assert [record["run_at"] for record in found] == ["2031-07-01T12:00:00Z", "2031-11-02T06:30:00Z"]
    assert all(record["created_at"].endswith("Z") for record in found)


WRONG: list[tuple[Any, str]] = [
    (dt.datetime(2031, 7, 1, 12), "run_at: must be a (datetime with a time zone|time in RFC 3339 with an offset)"),
    (dt.datetime.min, "run_at: must be a"),
    (dt.datetime.min.replace(tzinfo=UTC), "run_at: must be between the years 1970 and 2099"),
    (dt.datetime.max.replace(tzinfo=UTC), "run_at: must be between the years"),
    (dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=14))), "run_at: must be between the years"),
    (dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=14))), "run_at: must be between the years"),
    (dt.date(2031, 7, 1), "run_at: must be a"),
    ("infinity", "run_at: must be a"),
    ("now", "run_at: must be a"),
]


async def test_what_is_no_moment_is_refused_by_name(doors: Doors, jobs: Jobs) -> None:
    for moment, says in WRONG:
        for door in ("library", "http", "http, lines"):
            written = moment if isinstance(moment, str) else moment.isoformat()
            with pytest.raises((InvalidJob, Refused), match=says):
                await doors.all(run_at=moment if door == "library" else written)[door]([1])
    assert (await jobs.audit())["jobs"] == 0


@pytest.mark.parametrize("text", ["infinity", "-infinity", "0001-01-01", "9999-12-31 23:59:59+00"])
async def test_sql_refuses_what_no_client_could_read(sql: Connection, text: str) -> None:
    from asyncpg import InvalidParameterValueError

    with pytest.raises(InvalidParameterValueError, match="run_at: must be between the years 1970 and 2099"):
        await sql.fetchval("select fencepost.enqueue('echo', run_at => cast($1::text as timestamptz))", text)
