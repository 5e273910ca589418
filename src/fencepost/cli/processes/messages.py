"""
What a worker process and its parent say to each other: lines of JSON.

The parent's first line is a `Config`. After it come orders, and from the worker process
reports.
"""

from __future__ import annotations

import msgspec

from fencepost.settings import Settings
from fencepost.telemetry.tally import Counts

LAST_SECONDS = 25.0
"""What a worker may take beyond SHUTDOWN_TIMEOUT: to end a claim, to see cancelled handlers off, to write outcomes."""
LINE_LIMIT = 1 << 20
"""The longest line, in bytes. A report has some hundred bytes for each way in which attempts end."""


class Config(msgspec.Struct, frozen=True):
    """What a worker process is to be. Holds the password, so it is never an argument of a command."""

    number: int
    """Its place among the worker processes, from 1 on; a successor takes it over."""
    dsn: str
    app: str | None
    """MODULE:APP."""
    settings: Settings
    """Without secrets, and without what only the parent needs."""
    listen_dsn: str | None
    """DATABASE_LISTEN_URL."""
    turn: int | None
    """The descriptor whose lock is the turn to write to stdout."""


class StopClaiming(msgspec.Struct, frozen=True, tag=True):
    """Claim and recover no more; answered with `Quiet`."""


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Stop: let running jobs finish for so long, give the rest back, end. Answered with `Drained`."""

    timeout_seconds: float


Order = StopClaiming | Drain


class Ready(msgspec.Struct, frozen=True, tag=True):
    """It claims."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """It can't start, and says why."""

    reason: str
    exit_code: int


class Counted(msgspec.Struct, frozen=True, tag=True):
    """What has happened since the last report."""

    counts: Counts


class Quiet(msgspec.Struct, frozen=True, tag=True):
    """It claims no more."""


class Drained(msgspec.Struct, frozen=True, tag=True):
    """It is done, and ends."""

    handlers_left: int
    """How many handlers ignored even their cancellation."""


Report = Ready | Refused | Counted | Quiet | Drained


def line(message: Config | Order | Report) -> bytes:
    """The message as a line."""
    return msgspec.json.encode(message) + b"\n"
