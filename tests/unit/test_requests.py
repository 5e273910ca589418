"""One door for every way in: each field's limits, and the verdict in words."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.domain.fields import check_key, check_queue, parse_trace_context
from fencepost.domain.job import Limits, Unique, UniqueMode, UniqueUntil
from fencepost.domain.requests import JobRequest, Rules, UniqueRequest, make_job, parse_moment
from fencepost.errors import InvalidJob
from fencepost.types.jobtype import never_unique


class Type(msgspec.Struct, frozen=True):
    """What the rules read of a job type."""

    queue: str = "default"
    priority: int = 0
    max_attempts: int | None = None
    expires_seconds: float | None = None
    unique_of: Callable[[bytes], Unique | None] = never_unique


DECLARED = Type(queue="mail", priority=7, max_attempts=9, expires_seconds=60.0)
RULES = Rules(types={"work": Type(), "send.email": Type(), "declared": DECLARED}, max_attempts=5, payload_bytes=1_000)


def request(**fields: Any) -> JobRequest:
    for name in ("payload", "metadata"):
        if name in fields:
            fields[name] = msgspec.Raw(fields[name])
    if "unique" in fields:
        fields["unique"] = msgspec.convert(fields["unique"], UniqueRequest)
    return JobRequest(**{"type": "work", **fields})


def test_only_a_type_is_needed() -> None:
    job = make_job(request(), RULES)
    assert job.type == "work"
    assert job.queue == "default"
    assert job.priority == 0
    assert job.payload == b"{}"
    assert job.max_attempts == 5
    assert job.schedule == "now"
    assert (job.run_at, job.delay_seconds, job.timeout_seconds, job.idempotency_key, job.request_id) == (None,) * 5
    assert job.id.version == 7


def test_every_field_is_taken_over() -> None:
    job = make_job(
        request(
            type="send.email", payload=b' {"n": 1.0}', queue="mail.out:eu-1", priority=100, max_attempts=100,
            delay="1m30s", timeout="24h", idempotency_key="k 1",
        ),
        RULES,
        request_id="r",
    )  # fmt: skip
    assert (job.type, job.queue, job.priority, job.max_attempts) == ("send.email", "mail.out:eu-1", 100, 100)
    assert (job.payload, job.delay_seconds, job.timeout_seconds) == (b' {"n": 1.0}', 90.0, 86400.0)
    assert (job.idempotency_key, job.request_id, job.schedule) == ("k 1", "r", "in 90.0s")


def test_a_moment_is_kept_in_utc() -> None:
    job = make_job(request(run_at="2031-05-01T12:00:00.25+02:00"), RULES)
    assert job.run_at == datetime(2031, 5, 1, 10, 0, 0, 250_000, tzinfo=UTC)
    assert job.schedule == "at 2031-05-01T10:00:00.250000+00:00"


def test_what_a_type_declares_is_for_what_the_caller_leaves_out() -> None:
    left_out = make_job(request(type="declared"), RULES)
    assert (left_out.queue, left_out.priority, left_out.max_attempts) == ("mail", 7, 9)
    assert (left_out.expires_seconds, left_out.schedule) == (60.0, "now, expires in 60.0s")
    given = make_job(
        request(type="declared", queue="default", priority=0, max_attempts=5, expires="2031-01-01T00:00:00Z"), RULES
    )
    assert (given.queue, given.priority, given.max_attempts) == ("default", 0, 5)
    assert (given.expires_seconds, given.expires_at) == (None, datetime(2031, 1, 1, tzinfo=UTC))
    assert given.schedule == "now, expires at 2031-01-01T00:00:00+00:00"


def test_tags_metadata_and_a_unique_key_are_taken_over() -> None:
    made = make_job(
        request(
            tags=["b", "a", "b"], metadata=b'{"tenant": 3}', expires="1h30m", unique={"key": "user-1", "mode": "latest"}
        ),
        RULES,
    )
    assert (made.tags, made.metadata, made.expires_seconds) == (("b", "a"), b'{"tenant": 3}', 5400.0)
    assert made.unique == Unique(key="user-1", until=UniqueUntil.FINISHED, mode=UniqueMode.LATEST)
    for_a_time = make_job(request(unique={"key": "k", "period": "10m"}), RULES).unique
    assert for_a_time == Unique(key="k", until=UniqueUntil.PERIOD, period_seconds=600.0)
    assert make_job(request(metadata=b"null"), RULES).metadata is None


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", True),
        (" 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00 ", True),
        ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-the-future-will-be-like", True),
        ("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", False),
        ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", False),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", False),
        ("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", False),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7", False),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-" + "x" * 300, False),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x", False),
        ("", False),
    ],
)
def test_only_a_trace_context_is_one(text: str, is_one: bool) -> None:
    assert parse_trace_context(text) == (text.strip() if is_one else None)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "nope"}, "type", "'nope' is not a registered job type; registered are declared, send.email, work"),
    ({"type": ""}, "type", "not a registered job type"),
    ({"type": "a\x00b"}, "type", r"'a\\x00b' is not a registered"),
    ({"type": "\ud800"}, "type", r"'\\ud800' is not a registered"),
    ({"type": "x" * 10_000}, "type", "x…|x\\\\u2026"),
    ({"queue": ""}, "queue", "must be 1 to 100 of the characters"),
    ({"queue": "a b"}, "queue", "must be 1 to 100"),
    ({"queue": ".a"}, "queue", "start with a letter"),
    ({"queue": "é"}, "queue", "must be 1 to 100"),
    ({"queue": "a\n"}, "queue", "must be 1 to 100"),
    ({"queue": "a\x00"}, "queue", r"not 'a\\x00'"),
    ({"queue": "a/b"}, "queue", "must be 1 to 100"),
    ({"queue": "q" * 101}, "queue", "must be 1 to 100"),
    ({"priority": -1}, "priority", "must be a whole number from 0 to 100, not -1"),
    ({"priority": 101}, "priority", "must be a whole number from 0 to 100, not 101"),
    ({"priority": 10**30}, "priority", "must be a whole number from 0 to 100"),
    ({"max_attempts": 0}, "max_attempts", "must be a whole number from 1 to 100, not 0"),
    ({"max_attempts": 101}, "max_attempts", "must be a whole number from 1 to 100"),
    ({"payload": b'"' + b"x" * 1_000 + b'"'}, "payload", "takes 1,002 bytes; the limit is 1,000"),
    ({"payload": b'{"a": "\\u0000"}'}, "payload", "NUL"),
    ({"payload": b'"\\ud800"'}, "payload", "surrogate"),
    ({"payload": b"NaN"}, "payload", "not JSON"),
    ({"payload": b"1e400"}, "payload", "range of a double"),
    ({"payload": b""}, "payload", "not valid JSON"),
    ({"run_at": "2031-01-01T00:00:00Z", "delay": "5s"}, "delay", "together with run_at"),
    ({"run_at": "2031-01-01T00:00:00"}, "run_at", "with an offset"),
    ({"run_at": "tomorrow"}, "run_at", "must be a time in RFC 3339"),
    ({"run_at": "1969-12-31T23:59:59Z"}, "run_at", "between the years"),
    ({"run_at": "2100-01-01T00:00:00Z"}, "run_at", "between the years"),
    ({"delay": "soon"}, "delay", "is not a duration"),
    ({"delay": "-5s"}, "delay", "is not a duration"),
    ({"delay": "3651d"}, "delay", "must be from 0 to ten years, not 3651d"),
    ({"timeout": "0"}, "timeout", "must be from 1ms to 24h"),
    ({"timeout": "500us"}, "timeout", "must be from 1ms to 24h"),
    ({"timeout": "24h1s"}, "timeout", "must be from 1ms to 24h"),
    ({"timeout": "x"}, "timeout", "is not a duration"),
    ({"idempotency_key": ""}, "idempotency_key", "must be 1 to 255 printable ASCII"),
    ({"idempotency_key": '""'}, "idempotency_key", "must be 1 to 255"),
    ({"idempotency_key": "k" * 256}, "idempotency_key", "must be 1 to 255"),
    ({"idempotency_key": " k"}, "idempotency_key", "must be 1 to 255"),
    ({"idempotency_key": "k\n"}, "idempotency_key", "must be 1 to 255"),
    ({"idempotency_key": "k\x00"}, "idempotency_key", "must be 1 to 255"),
    ({"idempotency_key": "ké"}, "idempotency_key", "must be 1 to 255"),
    ({"tags": [f"t{number}" for number in range(21)]}, "tags", "must be at most 20, not 21"),
    ({"tags": ["a", ""]}, "tags", "must each be 1 to 100 bytes of printable text, not ''"),
    ({"tags": ["é" * 51]}, "tags", "must each be 1 to 100 bytes"),
    ({"tags": ["a\nb"]}, "tags", "printable text"),
    ({"tags": ["\ud800"]}, "tags", "printable text"),
    ({"metadata": b"[]"}, "metadata", "must be a JSON object"),
    ({"metadata": b'"x"'}, "metadata", "must be a JSON object"),
    ({"metadata": b'{"a": "\\u0000"}'}, "metadata", "NUL"),
    ({"metadata": b'{"a": 1, "a": 2}'}, "metadata", "the key 'a' twice"),
    ({"metadata": b'{"a": "' + b"x" * 16_376 + b'"}'}, "metadata", "takes 16,385 bytes; the limit is 16,384"),
    ({"expires": "0"}, "expires", "must be from 1ms to ten years, not 0s"),
    ({"expires": "3651d"}, "expires", "must be from 1ms to ten years"),
    ({"expires": "soon"}, "expires", "is not a duration.*; or a time in RFC 3339 with an offset"),
    ({"expires": "2031-01-01T00:00:00"}, "expires", "RFC 3339 with an offset"),
    ({"expires": "2100-01-01T00:00:00Z"}, "expires", "between the years"),
    ({"unique": {"key": ""}}, "unique", "key must be 1 to 255 bytes of printable text, not ''"),
    ({"unique": {"key": "é" * 128}}, "unique", "key must be 1 to 255 bytes"),
    ({"unique": {"key": "\ud800"}}, "unique", "key must be 1 to 255 bytes"),
    ({"unique": {"key": "k", "until": "period"}}, "unique", "period is needed with until period"),
    (
        {"unique": {"key": "k", "until": "started", "period": "5m"}},
        "unique",
        "period can't be given together with until started",
    ),
    ({"unique": {"key": "k", "period": "0"}}, "unique", "period must be from 1ms to ten years, not 0s"),
    ({"unique": {"key": "k", "period": "x"}}, "unique", "period .* is not a duration"),
]


@pytest.mark.parametrize(("fields", "field", "message"), REFUSED)
def test_a_wrong_field_is_named(fields: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(InvalidJob, match=message) as refused:
        make_job(request(**fields), RULES)
    assert refused.value.field == field
    assert len(str(refused.value)) < 400
    str(refused.value).encode()
    indexed = refused.value.at(1)
    assert str(indexed) == f"jobs[1]: {refused.value}"
    assert (indexed.field, indexed.index) == (field, 1)


BOUNDARIES: list[dict[str, Any]] = [
    {"queue": "q" * 100}, {"queue": "_"}, {"queue": "0"}, {"priority": 0}, {"priority": 100}, {"max_attempts": 1},
    {"max_attempts": 100}, {"payload": b'"' + b"x" * 998 + b'"'}, {"delay": "0"}, {"delay": "3650d"},
    {"timeout": "1ms"}, {"timeout": "24h"}, {"idempotency_key": "k"}, {"idempotency_key": "k" * 255},
    {"run_at": "1970-01-01T00:00:00Z"}, {"run_at": "2099-12-31T23:59:59.999999Z"}, {"run_at": "2031-01-01t00:00:00z"},
    {"run_at": "2031-01-01 00:00:00-11:30"}, {"payload": b"null"}, {"payload": b"[1, 2]"},
    {"tags": [f"t{number}" for number in range(20)]}, {"tags": ["t"] * 30}, {"tags": ["é" * 50]},
    {"metadata": b"{}"}, {"metadata": b'{"a": "' + b"x" * 16_375 + b'"}'}, {"expires": "1ms"}, {"expires": "3650d"},
    {"expires": "2099-12-31T23:59:59Z"}, {"unique": {"key": "k" * 255}}, {"unique": {"key": "a b é"}},
    {"unique": {"key": "k", "period": "1ms"}}, {"unique": {"key": "k", "until": "period", "period": "3650d"}},
]  # fmt: skip


@pytest.mark.parametrize("fields", BOUNDARIES)
def test_the_limits_themselves_are_allowed(fields: dict[str, Any]) -> None:
    make_job(request(**fields), RULES)


RAW = ("payload", "metadata")


def test_the_same_request_as_json_gets_the_same_verdict() -> None:
    """Decoded from a body or made in Python, a request is one thing."""
    verdicts: dict[str, str] = {}
    for fields, field, _ in REFUSED:
        try:
            body = msgspec.json.encode({"type": "work", **{k: v for k, v in fields.items() if k not in RAW}})
        except UnicodeEncodeError:
            continue
        try:
            decoded = msgspec.json.decode(body, type=JobRequest)
        except msgspec.ValidationError as error:
            verdicts[field] = str(error)
            continue
        decoded = msgspec.structs.replace(decoded, **{k: msgspec.Raw(v) for k, v in fields.items() if k in RAW})
        with pytest.raises(InvalidJob) as refused:
            make_job(decoded, RULES)
        assert refused.value.field == field
    assert all(f"$.{field}" in verdict for field, verdict in verdicts.items())


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `pirority`"):
        msgspec.json.decode(b'{"type": "work", "pirority": 5}', type=JobRequest)


@pytest.mark.parametrize(
    ("given", "key"),
    [("abc", "abc"), ('"abc"', "abc"), (r'"a\"b\\c"', r"a\"b\c".replace(r"\"", '"')), ('"', '"'), ("a b", "a b")],
)
def test_a_quoted_key_and_a_bare_one_are_the_same(given: str, key: str) -> None:
    assert check_key(given) == key


@given(st.text(alphabet=st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=255))
def test_any_visible_key_survives_quoting(key: str) -> None:
    quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert check_key(quoted) == key


@given(st.text(max_size=120))
def test_any_queue_name_gets_a_verdict(name: str) -> None:
    if not name.isascii() or not name.isprintable() or not 1 <= len(name) <= Limits.NAME_BYTES or " " in name:
        with pytest.raises(InvalidJob) as refused:
            check_queue(name)
        assert refused.value.field == "queue"
    elif name.isalnum():
        check_queue(name)


@pytest.mark.parametrize(
    "text",
    [
        "", "2031-01-01", "2031-02-30T00:00:00Z", "2031-01-01T24:00:00Z", "2031-01-01T00:00:60Z", "20310101T000000Z",
        "2031-01-01T00:00Z", "2031-01-01T00:00:00+0100", "2031-01-01T00:00:00+24:00", "2031-01-01T00:00:00.Z",
        "2031-01-01T00:00:00.1234567890Z", "２０３１-01-01T00:00:00Z", "2031-01-01T00:00:00Z\n",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59", "x" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        parse_moment(text, field="since")
    assert refused.value.field == "since"
    assert len(str(refused.value)) < 300


@given(
    st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(2099, 12, 30)),
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
)
def test_a_moment_is_read_exactly(naive: datetime, offset: int) -> None:
    sign, minutes = ("-", -offset) if offset < 0 else ("+", offset)
    text = naive.isoformat() + f"{sign}{minutes // 60:02}:{minutes % 60:02}"
    assert parse_moment(text, field="since") == naive.replace(tzinfo=UTC) - timedelta(minutes=offset)
