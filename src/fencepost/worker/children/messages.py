"""What a worker and its child say to each other: msgpack in frames, over a socket pair."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from fencepost.domain.job import Lease
from fencepost.domain.outcome import Judgement

_HEAD = struct.Struct(">I")
MOST_BYTES = 256 << 20
"""A longer frame isn't one: somebody else has written to the socket."""


class Run(msgspec.Struct, frozen=True, tag="run", kw_only=True):
    """Run a job."""

    number: int = 0
    """Counts the runs of this child; what is said of one names it."""
    path: str
    lease: Lease
    timeout_seconds: float
    remaining_seconds: float
    max_result_bytes: int
    schema: str
    main: str | None
    """The file that is `__main__` in the worker, for functions that are defined there."""
    log_levels: dict[str, int]
    """From which level on records are of interest, by logger."""
    span: str | None = None
    """The attempt's span, as a `traceparent`."""


class Interrupt(msgspec.Struct, frozen=True, tag="interrupt"):
    """The running job should stop: it is killed if it doesn't."""


Order = Run | Interrupt


class OfRun(msgspec.Struct, frozen=True):
    """What is said of one run. A thread that a job has left behind may say it when another one runs."""

    run: int


class Returned(OfRun, frozen=True, tag="returned"):
    """The handler returned."""

    result: bytes | None
    """As JSON; None when there is none, or none that can be kept."""
    unstored: str | None = None
    """Why it can't be kept."""


class Raised(OfRun, frozen=True, tag="raised"):
    """The handler raised, or could not be called."""

    judgement: Judgement


class Progressed(OfRun, frozen=True, tag="progressed"):
    """The handler said how far it is."""

    fraction: float
    message: str | None


class Extended(OfRun, frozen=True, tag="extended"):
    """The handler wants more time."""

    seconds: float


class Completing(OfRun, frozen=True, tag="completing"):
    """The handler completes its job in a transaction of its own: goes about it, or (done) has."""

    done: bool


class Logged(msgspec.Struct, frozen=True, tag="logged"):
    """A record was logged, by whatever runs in the child: nobody can tell for which run."""

    logger: str
    level: int
    message: str
    fields: bytes
    """What came with `extra=`, as a JSON object."""


Report = Returned | Raised | Progressed | Extended | Completing | Logged

_encode = msgspec.msgpack.Encoder().encode
_orders = msgspec.msgpack.Decoder(Order)
_reports = msgspec.msgpack.Decoder(Report)


def frame(message: Order | Report) -> bytes:
    """A message as it goes over the wire."""
    body = _encode(message)
    return _HEAD.pack(len(body)) + body


class Frames:
    """Cuts what comes over the wire into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the bodies that are complete with *data*. Raises ValueError for what can't be a frame."""
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            (length,) = _HEAD.unpack_from(self._buffer)
            if length > MOST_BYTES:
                raise ValueError(f"a frame of {length:,} bytes")
            if len(self._buffer) < _HEAD.size + length:
                return
            body = bytes(self._buffer[_HEAD.size : _HEAD.size + length])
            del self._buffer[: _HEAD.size + length]
            yield body


def read_order(body: bytes) -> Order:
    """Raises msgspec.MsgspecError."""
    order: Order = _orders.decode(body)
    return order


def read_report(body: bytes) -> Report:
    """Raises msgspec.MsgspecError."""
    report: Report = _reports.decode(body)
    return report
