"""The service's log: one line a record, whatever the record holds."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from fencepost.settings import Settings
from fencepost.telemetry.logs import configure

log = logging.getLogger("fencepost.test")


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    """Leave logging as it was: it belongs to the whole process."""
    root, ours = logging.getLogger(), logging.getLogger("fencepost")
    before = (
        root.handlers[:],
        root.level,
        ours.level,
        logging.logThreads,
        logging.logProcesses,
        logging.logMultiprocessing,
        logging._srcfile,
    )
    yield
    logging.captureWarnings(False)
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
    logging.logThreads, logging.logProcesses, logging.logMultiprocessing = before[3:6]
    logging._srcfile = before[6]


@pytest.fixture
def stream() -> io.StringIO:
    stream = io.StringIO()
    configure(Settings(), stream)
    return stream


def only(stream: io.StringIO) -> dict[str, Any]:
    text = stream.getvalue()
    assert text.endswith("\n")
    assert text.count("\n") == 1
    fields: dict[str, Any] = json.loads(text)
    return fields


def test_a_line_is_one_object(stream: io.StringIO) -> None:
    log.info("job %s", "started", extra={"job_id": UUID(int=1), "attempt": 2, "seconds": 0.5, "ok": None})
    fields = only(stream)
    assert list(fields) == ["timestamp", "level", "logger", "event", "job_id", "attempt", "seconds", "ok"]
    assert fields["timestamp"].endswith("Z")
    assert datetime.fromisoformat(fields["timestamp"]).utcoffset() == timedelta(0)
    assert (fields["level"], fields["logger"], fields["event"]) == ("info", "fencepost.test", "job started")
    assert (fields["job_id"], fields["attempt"], fields["seconds"], fields["ok"]) == (str(UUID(int=1)), 2, 0.5, None)


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "value",
    [
        "a\x00b", "\ud800", "line\nbreak\r\u2028", "\x1b[31m", Hostile(), [Hostile()], {Hostile(): 1}, {1: {2, 3}},
        object(),
        float("nan"), float("inf"), 10**400, b"\xff\x00", "x" * 1_000_000, LOOP, {"\ud800": "\udfff"}, lambda: 1,
        ValueError("\ud800"), {(1, 2): 3},
    ],
    ids=range(19),
)  # fmt: skip
def test_no_value_breaks_a_line(stream: io.StringIO, value: Any) -> None:
    log.info("hostile", extra={"value": value, "request_id": "r1"})
    fields = only(stream)
    assert (fields["event"], fields["request_id"]) == ("hostile", "r1")
    assert len(stream.getvalue()) < 1_200_000


@pytest.mark.parametrize("arguments", [("%d", "text"), ("%s %s", 1), ("%s", Hostile()), (Hostile(),), ("\ud800",)])
def test_no_message_breaks_a_line(stream: io.StringIO, arguments: tuple[Any, ...]) -> None:
    configure(Settings(), stream)  # Again, to be alone: pytest's own handler does break.
    log.warning(*arguments)
    fields = only(stream)
    assert fields["level"] == "warning"
    assert fields["logger"] == "fencepost.test"


def test_an_exception_is_one_field(stream: io.StringIO) -> None:
    try:
        raise ValueError("lost\ncause")
    except ValueError:
        log.exception("it failed", extra={"job_id": "j"})
    fields = only(stream)
    assert fields["exception"].startswith("Traceback")
    assert fields["exception"].endswith("ValueError: lost\ncause")


def test_an_exception_that_cannot_be_printed(stream: io.StringIO) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    try:
        raise Unprintable
    except Unprintable:
        log.exception("it failed")
    assert only(stream)["event"] == "it failed"


def test_levels(stream: io.StringIO) -> None:
    log.debug("hidden")
    logging.getLogger("httpx2").info("hidden")
    logging.getLogger("someone").warning("shown")
    assert only(stream)["event"] == "shown"


def test_debug_is_asked_for() -> None:
    stream = io.StringIO()
    configure(Settings(log_level="debug"), stream)
    log.debug("shown")
    assert only(stream)["level"] == "debug"


def test_warnings_are_lines(stream: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old ways", stacklevel=1)
    assert "old ways" in only(stream)["event"]


def test_configuring_again_replaces_the_first(stream: io.StringIO) -> None:
    second = io.StringIO()
    configure(Settings(), second)
    log.info("once")
    assert stream.getvalue() == ""
    assert only(second)["event"] == "once"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "asked", "is_json"),
    [
        (io.StringIO(), None, True),
        (io.StringIO(), "text", False),
        (Terminal(), None, False),
        (Terminal(), "json", True),
    ],
)
def test_the_form_follows_the_stream_unless_set(stream: io.StringIO, asked: str | None, *, is_json: bool) -> None:
    configure(Settings(log_format=asked), stream)
    log.info("hello", extra={"job_id": "j1"})
    text = stream.getvalue()
    assert text.startswith("{") == is_json
    assert "hello" in text
    assert "j1" in text


@pytest.mark.parametrize("value", [Hostile(), "\ud800", "a\nb", LOOP])
def test_text_survives_the_same(value: Any) -> None:
    stream = io.StringIO()
    configure(Settings(log_format="text"), stream)
    log.info("hostile", extra={"value": value})
    log.warning("%d", "text")
    assert "hostile" in stream.getvalue()
    assert stream.getvalue().count("\n") >= 2


def test_a_record_made_elsewhere_shows_its_extras(stream: io.StringIO) -> None:
    made = {"name": "elsewhere", "levelno": logging.INFO, "levelname": "INFO", "msg": "received", "job_id": "j1"}
    logging.getLogger().handle(logging.makeLogRecord(made))
    fields = only(stream)
    assert (fields["logger"], fields["event"], fields["job_id"]) == ("elsewhere", "received", "j1")


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_line_is_out_at_once(log_format: str) -> None:
    program = (
        "import logging, os\n"
        "from fencepost.settings import Settings\n"
        "from fencepost.telemetry import logs\n"
        f"logs.configure(Settings(log_format={log_format!r}))\n"
        "logging.getLogger('fencepost.test').info('the last words')\n"
        "os._exit(3)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30, check=False)
    assert ended.returncode == 3
    assert b"the last words" in ended.stdout
    assert ended.stdout.count(b"\n") == 1


def test_bytes_and_text_of_a_stream_are_out_at_once() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="utf-8")
    configure(Settings(), stream)
    print("printed", file=stream)
    log.info("größer", extra={"value": "値"})
    lines = raw.getvalue().decode().splitlines()
    assert "printed" in lines
    (fields,) = (json.loads(line) for line in lines if line != "printed")
    assert (fields["event"], fields["value"]) == ("größer", "値")


def test_a_pipe_that_is_not_utf8_loses_nothing() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    configure(Settings(), stream)
    log.info("größer", extra={"value": "値"})
    stream.flush()
    assert b"gr\\xf6\\xdfer" in raw.getvalue()


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_log_that_nobody_reads_any_more_is_no_trace_a_line(
    log_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    read, write = os.pipe()
    os.close(read)
    unread = os.fdopen(write, "w", encoding="utf-8")
    configure(Settings(log_format=log_format), unread)
    log.info("hello")
    assert capsys.readouterr().err == ""
    with suppress(BrokenPipeError):
        unread.close()
