"""The same value gets the same verdict, in the same words, from the library, over HTTP and in SQL."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from fencepost import Fencepost, InvalidJob, InvalidSettings, Unique, UniqueBy
from fencepost.client.options import Options, changed
from fencepost.domain.requests import JobRequest, Rules, make_job

app = Fencepost("postgresql://nowhere/none")


@app.job
async def work(number: int = 1) -> None: ...


RULES = Rules(types=app.types, max_attempts=5, payload_bytes=1_000)
LONG = "é" * 128
SECOND = timedelta(seconds=1)


def unique(**fields: Any) -> Unique:
    return Unique(**{"key": "k", **fields})


VERDICTS: list[tuple[dict[str, Any], dict[str, Any], str | None]] = [
    # What the library is asked for, the same over HTTP, the same in SQL (None: it can't be written there).
    ({"queue": "a b"}, {}, "queue => 'a b'"),
    ({"queue": ""}, {}, "queue => ''"),
    ({"queue": "q" * 101}, {}, None),
    ({"priority": -1}, {}, "priority => -1"),
    ({"priority": 101}, {}, "priority => 101"),
    ({"max_attempts": 0}, {}, "max_attempts => 0"),
    ({"max_attempts": 101}, {}, "max_attempts => 101"),
    ({"delay": 3651 * 86400}, {"delay": "3651d"}, None),
    ({"delay": timedelta(days=3650) + SECOND}, {"delay": "3650d1s"}, None),
    ({"delay": 1, "run_at": datetime(2031, 1, 1, tzinfo=UTC)}, {"delay": "1s", "run_at": "2031-01-01T00:00:00Z"},
     "delay => '1 s', run_at => '2031-01-01T00:00:00Z'"),
    ({"run_at": datetime(1969, 12, 31, tzinfo=UTC)}, {"run_at": "1969-12-31T00:00:00Z"}, None),
    ({"run_at": datetime(2100, 1, 1, tzinfo=UTC)}, {"run_at": "2100-01-01T01:00:00+01:00"}, None),
    ({"expires": datetime(2100, 1, 1, tzinfo=UTC)}, {"expires": "2100-01-01T00:00:00Z"}, None),
    ({"expires": 0}, {"expires": "0"}, None),
    ({"expires": timedelta(days=3651)}, {"expires": "3651d"}, None),
    ({"timeout": 0.0005}, {"timeout": "500us"}, None),
    ({"timeout": 0}, {"timeout": "0s"}, None),
    ({"timeout": 90_000}, {"timeout": "25h"}, None),
    ({"idempotency_key": ""}, {}, "idempotency_key => ''"),
    ({"idempotency_key": "k\n"}, {}, None),
    ({"idempotency_key": "k" * 256}, {}, None),
    ({"tags": [f"t{number}" for number in range(21)]}, {},
     "tags => array(select 't' || n from generate_series(1, 21) n)"),
    ({"tags": [""]}, {}, "tags => array['']"),
    ({"tags": ["a", "é" * 51]}, {}, None),
    ({"tags": ["a\nb"]}, {}, None),
    ({"metadata": [1]}, {}, "metadata => '[1]'"),
    ({"metadata": []}, {}, "metadata => '[]'"),
    ({"metadata": {"a": "x" * 16_377}}, {}, None),
    ({"unique": unique(key="")}, {"unique": {"key": ""}}, "unique_key => ''"),
    ({"unique": unique(key="a\x7f")}, {"unique": {"key": "a\x7f"}}, None),
    ({"unique": unique(key=LONG)}, {"unique": {"key": LONG}}, None),
    ({"unique": unique(until="never")}, {"unique": {"key": "k", "until": "never"}},
     "unique_key => 'k', unique_until => 'never'"),
    ({"unique": unique(mode="hope")}, {"unique": {"key": "k", "mode": "hope"}},
     "unique_key => 'k', unique_mode => 'hope'"),
    ({"unique": unique(until="period")}, {"unique": {"key": "k", "until": "period"}},
     "unique_key => 'k', unique_until => 'period'"),
    ({"unique": unique(until="started", period_seconds=60)},
     {"unique": {"key": "k", "until": "started", "period": "1m"}},
     "unique_key => 'k', unique_until => 'started', unique_period => '1 m'"),
    ({"unique": unique(until="period", period_seconds=0)},
     {"unique": {"key": "k", "until": "period", "period": "0"}}, None),
]  # fmt: skip


def by_library(asked: Mapping[str, Any]) -> InvalidJob:
    with pytest.raises(InvalidJob) as refused:
        work.options(**asked)
    return refused.value


def by_http(asked: Mapping[str, Any]) -> InvalidJob:
    body = msgspec.json.encode({"type": "work", **asked})
    with pytest.raises(InvalidJob) as refused:
        make_job(msgspec.json.decode(body, type=JobRequest), RULES)
    return refused.value


@pytest.mark.parametrize(("asked", "over_http", "_sql"), VERDICTS)
def test_the_library_and_http_say_the_same(asked: dict[str, Any], over_http: dict[str, Any], _sql: str | None) -> None:
    one, other = by_library(asked), by_http({**asked, **over_http})
    assert str(one) == str(other)
    assert (one.message, one.field) == (other.message, other.field)
    assert "unique" not in asked or one.field == "unique"


@pytest.mark.parametrize(("asked", "arguments"), [(asked, sql) for asked, _, sql in VERDICTS if sql is not None])
@pytest.mark.anyio
async def test_sql_says_the_same(database_url: str, asked: dict[str, Any], arguments: str) -> None:
    expected = str(by_library(asked)).replace("unique: ", "unique_").replace("until period", "unique_until period")
    expected = expected.replace("unique_key ", "unique_key: ").replace("unique_period ", "unique_period: ")
    expected = expected.replace("until started", "unique_until started")
    expected = re.sub(r"^unique_(until|mode) ", r"unique_\1: ", expected)
    connection = await asyncpg.connect(database_url)
    with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
        await connection.execute(f"select fencepost.enqueue('work', {arguments})")
    await connection.close()
    assert str(refused.value) == expected


@pytest.mark.parametrize(
    "asked", [asked for asked, _, _ in VERDICTS if not asked.keys() - {"queue", "priority", "max_attempts", "timeout"}]
)
def test_a_declaration_says_the_same(asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match=re.escape(str(by_library(asked)))):
        app.job(name="other", **asked)(lambda: None)


@pytest.mark.parametrize("asked", [asked["unique"] for asked, _, _ in VERDICTS if "unique" in asked])
def test_a_declared_rule_too(asked: Unique) -> None:
    with pytest.raises(InvalidSettings, match=re.escape(str(by_library({"unique": asked})))):
        app.job(name="other", unique=asked)(lambda: None)


@pytest.mark.parametrize("options", [{"until": "never"}, {"mode": "hope"}, {"until": "period"}, {"period": 5}])
def test_and_one_made_of_arguments(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match=r"must be one of|period"):
        UniqueBy("number", **options)


def test_plain_strings_are_taken_for_what_they_name() -> None:
    rule = changed(Options(), unique=Unique(key="k", until="period", period_seconds=5, mode="latest")).unique
    assert rule == Unique(key="k", until="period", period_seconds=5.0, mode="latest")
    body = {"type": "work", "unique": {"key": "k", "until": "period", "period": "5s", "mode": "latest"}}
    made = make_job(msgspec.json.decode(json.dumps(body), type=JobRequest), RULES)
    assert made.unique == rule
