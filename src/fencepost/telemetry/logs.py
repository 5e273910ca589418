"""
The service's log: one JSON object a line, or text for a terminal.

Libraries, ours included, call `logging.getLogger(…)` with `extra=`; this is where the
process that serves decides how their records look. Whatever a record holds, its line
comes out: what can't be written is replaced.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from itertools import islice
from typing import Any, BinaryIO, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, WrappedLogger

from fencepost.settings import Settings
from fencepost.telemetry.shared_output import SharedHandler
from fencepost.telemetry.unconfigured import OWN

VALUE_CHARACTERS = 32_000
"""Longer texts are cut."""
_DEPTH = 6
_ENCODER = msgspec.json.Encoder()

_COMMON = len(logging.makeLogRecord({}).__dict__)


def configure(
    settings: Settings, stream: TextIO | None = None, *, worker_process: int | None = None, turn: int | None = None
) -> None:
    """
    Send every record of the process to *stream*, stdout by default.

    Ours from LOG_LEVEL on, other libraries' warnings and errors. Calling it again
    replaces what the last call set up. Processes that share their stdout share a *turn*
    (telemetry/shared_output.py), and show which *worker_process* they are.
    """
    stream = sys.stdout if stream is None else stream
    if hasattr(stream, "reconfigure"):
        # A terminal or pipe that isn't UTF-8 must not lose the line.
        stream.reconfigure(errors="backslashreplace")
    handler: logging.Handler = _Lines(stream)
    if turn is not None:
        handler = SharedHandler(stream, turn=turn, worker_process=worker_process)
    handler.setFormatter(_formatter(settings, is_terminal=stream.isatty()))
    # What no line of ours shows needn't be found out for each (the optimisations that logging's documentation names).
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    # Its pool logs a trace each time it can't connect; ours says what that means, once, in a line.
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)
    logging.getLogger("fencepost").setLevel(settings.log_level.upper())
    logging.captureWarnings(True)


def _formatter(settings: Settings, *, is_terminal: bool) -> logging.Formatter:
    if (settings.log_format or ("text" if is_terminal else "json")) == "json":
        return _JsonFormatter()
    renderer = structlog.dev.ConsoleRenderer(colors=is_terminal, pad_event_to=0)
    return _TextFormatter(
        foreign_pre_chain=[_of_record],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )


class _JsonFormatter(logging.Formatter):
    """One object a line. By hand, because it is on the path of every request and every job."""

    def format(self, record: logging.LogRecord) -> str:
        return self.encode(record).decode()

    def encode(self, record: logging.LogRecord) -> bytes:
        """The line as UTF-8."""
        try:
            return _ENCODER.encode(_fields(record))
        except Exception:  # noqa: BLE001 - some value can't be encoded: mend them all
            return _ENCODER.encode(_mend(_fields_or_less(record), _DEPTH))


class _Lines(logging.StreamHandler[TextIO]):
    """
    Writes each line at once, and in one piece.

    JSON goes to a UTF-8 stream as the bytes that it is made as, without the way through text.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        is_utf8 = (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8"
        self._bytes: BinaryIO | None = getattr(stream, "buffer", None) if is_utf8 else None

    def emit(self, record: logging.LogRecord) -> None:
        formatter = self.formatter
        if self._bytes is None or not isinstance(formatter, _JsonFormatter):
            return super().emit(record)
        try:
            self._bytes.write(formatter.encode(record) + b"\n")
            # The stream, not its bytes: what somebody printed goes along.
            self.stream.flush()
        except Exception:  # noqa: BLE001 - as the handlers of logging do
            self.handleError(record)
        return None

    def handleError(self, record: logging.LogRecord) -> None:
        # Whoever read the log has closed it: nobody is left to tell, least of all with a trace for each line.
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            super().handleError(record)


class _TextFormatter(structlog.stdlib.ProcessorFormatter):
    def format(self, record: logging.LogRecord) -> str:
        try:
            return super().format(record)
        except Exception:  # noqa: BLE001 - the same
            return repr(_mend(_fields_or_less(record), _DEPTH))


def _of_record(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """Take all fields from the record."""
    record: logging.LogRecord = event["_record"]
    return {
        **_fields(record),
        "timestamp": f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
        "_record": record,
        "_from_structlog": False,
    }


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What a line says, in the order that people read it."""
    fields: dict[str, Any] = {
        "timestamp": datetime.fromtimestamp(record.created, UTC),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": record.getMessage(),
    }
    # What every record has comes first, and needn't be looked at.
    for key, value in islice(record.__dict__.items(), _COMMON, None):
        if key not in OWN:
            fields[key] = value
    if record.exc_info:
        fields["exception"] = logging.Formatter().formatException(record.exc_info)
    if record.stack_info:
        fields["stack"] = record.stack_info
    return fields


def _fields_or_less(record: logging.LogRecord) -> dict[str, Any]:
    """The same, or what is left when the message itself can't be made."""
    try:
        return _fields(record)
    except Exception as error:  # noqa: BLE001 - arguments that don't fit, or whose repr raises
        return {
            "timestamp": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.msg,
            "log_error": f"this record could not be rendered: {type(error).__name__}",
        }


def _mend(value: Any, depth: int) -> Any:
    """The same, as far as JSON can hold it."""
    if value is None or isinstance(value, bool | int | float | datetime):
        return value
    if depth and isinstance(value, dict):
        return {_text(key): _mend(item, depth - 1) for key, item in value.items()}
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [_mend(item, depth - 1) for item in value]
    return _text(value)


def _text(value: object) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception as error:  # noqa: BLE001 - a value that can't be shown must not lose the line
        text = f"(a {type(value).__name__} whose repr raised {type(error).__name__})"
    if len(text) > VALUE_CHARACTERS:
        text = text[:VALUE_CHARACTERS] + "…"
    return text.encode("utf-8", "backslashreplace").decode()
