"""
The service's log: one JSON object a line, or text for a terminal.

Libraries, ours included, call `logging.getLogger(…)` with `extra=`; this is where the
process that serves decides how their records look. Whatever a record holds, its line
comes out: what can't be written is replaced.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, WrappedLogger

from fencepost.settings import Settings

VALUE_CHARACTERS = 32_000
"""Longer texts are cut."""
_DEPTH = 6

_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}
"""What every record has; anything else came with `extra=`."""


def configure(settings: Settings, stream: TextIO | None = None) -> None:
    """
    Send every record of the process to *stream*, stdout by default.

    Ours from LOG_LEVEL on, other libraries' warnings and errors. Calling it again
    replaces what the last call set up.
    """
    stream = sys.stdout if stream is None else stream
    if hasattr(stream, "reconfigure"):
        # A terminal or pipe that isn't UTF-8 must not lose the line.
        stream.reconfigure(errors="backslashreplace")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_formatter(settings, is_terminal=stream.isatty()))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("fencepost").setLevel(settings.log_level.upper())
    logging.captureWarnings(True)


def _formatter(settings: Settings, *, is_terminal: bool) -> logging.Formatter:
    if (settings.log_format or ("text" if is_terminal else "json")) == "json":
        renderer: Callable[[WrappedLogger, str, EventDict], str] = _render_json
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=is_terminal, pad_event_to=0)
    return _Formatter(
        foreign_pre_chain=[_compose],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )


class _Formatter(structlog.stdlib.ProcessorFormatter):
    """Never fails: a record that can't be rendered is told as far as it can be."""

    def format(self, record: logging.LogRecord) -> str:
        try:
            return super().format(record)
        except Exception as error:  # noqa: BLE001 - from the arguments of whoever logged
            return msgspec.json.encode(
                {
                    "timestamp": _moment(record.created),
                    "level": record.levelname.lower(),
                    "logger": _text(record.name),
                    "event": _text(record.msg),
                    "log_error": f"this record could not be rendered: {type(error).__name__}",
                }
            ).decode()


def _compose(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """Put a record's own fields around its message, in the order that people read them."""
    record: logging.LogRecord = event["_record"]
    composed: dict[str, Any] = {
        "timestamp": _moment(record.created),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": event["event"],
    }
    for key, value in record.__dict__.items():
        if key not in _OWN and not key.startswith("_"):
            composed[key] = value
    if record.exc_info:
        composed["exception"] = logging.Formatter().formatException(record.exc_info)
    if record.stack_info:
        composed["stack"] = record.stack_info
    composed["_record"] = record
    composed["_from_structlog"] = False
    return composed


def _render_json(logger: WrappedLogger, name: str, event: EventDict) -> str:
    try:
        return msgspec.json.encode(event).decode()
    except Exception:  # noqa: BLE001 - some value can't be encoded: mend them all
        return msgspec.json.encode(_mend(event, _DEPTH)).decode()


def _mend(value: Any, depth: int) -> Any:
    """The same, as far as JSON can hold it."""
    if value is None or isinstance(value, bool | int | float):
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


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
