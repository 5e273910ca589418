"""
Loggers that don't raise.

An application may have filters that fail, and record factories whose fields have the names
of ours, which logging refuses with a KeyError. A line in the log is not worth the job, the
loop or the request that it tells of.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

STANDARD_FIELDS = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}
"""What every record has by itself."""
_last_resort = logging.Handler()


class Logger(logging.Logger):
    """A logger whose own faults are told on stderr, as those of logging's handlers are."""

    def makeRecord(
        self,
        name: str,
        level: int,
        fn: str,
        lno: int,
        msg: object,
        args: Any,
        exc_info: Any,
        func: str | None = None,
        extra: Mapping[str, object] | None = None,
        sinfo: str | None = None,
    ) -> logging.LogRecord:
        """Make a record; a field of *extra* takes the place of one that the application's factory has made."""
        what = (name, level, fn, lno, msg, args, exc_info, func)
        try:
            record = super().makeRecord(*what, sinfo=sinfo)
        except Exception:  # noqa: BLE001 - whatever the application's factory raises
            record = logging.LogRecord(*what, sinfo=sinfo)
        if extra:
            vars(record).update((field, value) for field, value in extra.items() if field not in STANDARD_FIELDS)
        return record

    def handle(self, record: logging.LogRecord) -> None:
        """Pass a record to the filters and handlers."""
        try:
            super().handle(record)
        except Exception:  # noqa: BLE001 - whatever the application's filters raise
            with suppress(Exception):
                _last_resort.handleError(record)


def get_logger(name: str) -> logging.Logger:
    """Return the logger of this name, which is `logging.getLogger`'s too; it doesn't raise from now on."""
    logger = logging.getLogger(name)
    # Made anew it would be without what the application has set up already. One of the application's own class stays.
    if type(logger) is logging.Logger:
        logger.__class__ = Logger
    return logger
