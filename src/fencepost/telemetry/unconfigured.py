"""
Our warnings in a program that has set up no logging.

Python then shows them by its last resort: the bare message, which for ours is a constant, since what
matters is in the fields that came with `extra=`. This shows those too. It says nothing that the last
resort wouldn't, and nothing at all where any handler is set up.
"""

from __future__ import annotations

import copy
import logging

OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}
"""What every record has; anything else came with `extra=`."""


class _LastResort(logging.Handler):
    def handle(self, record: logging.LogRecord) -> bool:
        """Pass the record on to Python's last resort, with its fields in the message."""
        last = logging.lastResort
        if last is None or record.levelno < last.level or _has_others(record.name):
            return False
        # Others may still get the record as it was.
        readable = copy.copy(record)
        readable.msg, readable.args = describe(record), None
        return bool(last.handle(readable))


_handler = _LastResort()


def show_warnings() -> None:
    """From now on show the warnings of this package with their fields, unless the program says how to log."""
    logging.getLogger("fencepost").addHandler(_handler)


def describe(record: logging.LogRecord) -> str:
    """The message and the fields in words; a traceback follows in lines of its own."""
    fields = {name: value for name, value in record.__dict__.items() if name not in OWN and value is not None}
    trace = fields.pop("traceback", None)
    said = record.getMessage()
    if said == "job finished":
        said = f"{said}: {_attempt(fields)}"
    elif fields:
        said += f" ({', '.join(f'{name}: {value}' for name, value in fields.items())})"
    return said if trace is None else f"{said}\n{str(trace).rstrip()}"


def _attempt(fields: dict[str, object]) -> str:
    said = f"{fields.get('job_type')} {fields.get('job_id')} {_outcome(fields)} in attempt {fields.get('attempt')}"
    delay = fields.get("retry_delay_ms")
    if isinstance(delay, int):
        said += f", to be tried again {f'in {delay / 1000:.3g} s' if delay else 'at once'}"
    elif "status" in fields:
        said += f", now {fields['status']}"
    return f"{said}: {fields['error_type']}: {fields['error']}" if "error" in fields else said


def _outcome(fields: dict[str, object]) -> str:
    return {"permanent": "failed for good", "lost": "lost its lease"}.get(
        str(fields.get("outcome")), str(fields.get("outcome")).replace("_", " ")
    )


def _has_others(name: str) -> bool:
    """Whether anything else handles the records of this logger."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(handler is not _handler for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False
