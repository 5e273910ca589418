"""
What a child logs: from its loggers into the worker's.

Neither end trusts the other's logging to work: an application may have filters that raise,
and factories whose records have fields of their own.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from fencepost.domain.text import clean_text
from fencepost.logger import STANDARD_FIELDS, get_logger
from fencepost.worker.children.messages import Logged

log = get_logger("fencepost.worker")

MESSAGE_CHARACTERS = 16_000
FIELD_CHARACTERS = 16_000
FIELDS = 100
"""What is beyond these is cut off, in the child already."""


class Forward(logging.Handler):
    """
    In the child: passes records on with *say*.

    In processes that the child has forked, where *is_muted*, they go to stderr as text: two
    that write to one socket would garble each other.
    """

    def __init__(self, say: Callable[[Logged], None], *, is_muted: Callable[[], bool]) -> None:
        super().__init__()
        self._say = say
        self._is_muted = is_muted

    def emit(self, record: logging.LogRecord) -> None:
        """Pass it on, cut to a length that harms nobody."""
        try:
            if self._is_muted():
                sys.stderr.write(clean_text(self.format(record), MESSAGE_CHARACTERS) + "\n")
            else:
                self._say(_packed(record))
        except Exception:  # noqa: BLE001 - as the handlers of logging do
            self.handleError(record)


def write(logger: logging.Logger, level: int, message: str, fields: Mapping[str, Any]) -> None:
    """
    In the worker: log what a child has said. Never raises.

    A field takes the place of one that the worker's own record factory has made: it is from
    where the job ran. The standard attributes stay.
    """
    try:
        if logger.isEnabledFor(level):
            record = logger.makeRecord(logger.name, level, "(child process)", 0, message, (), None)
            vars(record).update((name, value) for name, value in fields.items() if name not in STANDARD_FIELDS)
            logger.handle(record)
    except Exception:
        # Which may well raise for this record too.
        with contextlib.suppress(Exception):
            log.exception("what a child process has logged can't be logged here")


def _packed(record: logging.LogRecord) -> Logged:
    found = [(name, value) for name, value in vars(record).items() if name not in STANDARD_FIELDS][:FIELDS]
    fields = {clean_text(str(name), 200): _storable(value) for name, value in found}
    if record.exc_info:
        trace = logging.Formatter().formatException(record.exc_info)
        fields["exception"] = clean_text(trace, FIELD_CHARACTERS, keep_end=True)
    return Logged(
        logger=clean_text(record.name, 200),
        level=int(record.levelno),
        message=clean_text(record.getMessage(), MESSAGE_CHARACTERS),
        fields=msgspec.json.encode(fields),
    )


def _storable(value: object) -> object:
    """The value as JSON, or, where it can't be or is too long, the start of how it looks."""
    if isinstance(value, str):
        return clean_text(value, FIELD_CHARACTERS)
    try:
        raw = msgspec.json.encode(value, enc_hook=repr)
    except Exception:  # noqa: BLE001 - whatever is wrong with it, the record is wanted
        raw = None
    if raw is not None and len(raw) <= FIELD_CHARACTERS:
        return msgspec.Raw(raw)
    return clean_text(repr(value) if raw is None else raw.decode(), FIELD_CHARACTERS)


def read_fields(fields: bytes) -> dict[str, Any]:
    """The fields of a Logged. Raises ValueError."""
    found = json.loads(fields)
    if not isinstance(found, dict):
        raise ValueError("the fields of a record are not an object")
    return found
