"""Job ids: UUIDv7, made where the job is made."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

from fencepost.errors import InvalidJob

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICKS = (1 << 60) - 1
_LEAD = 1 << 12
"""How far ids may run ahead of the clock, in ticks: a millisecond. A clock that was set back further is followed."""


_RANDOM = struct.Struct("512Q")


class _Sequence:
    """What the ids of one process have in common: each comes after the last, and no random bits are used twice."""

    def __init__(self) -> None:
        self._latest = 0
        self._start()
        os.register_at_fork(after_in_child=self._start)

    def _start(self) -> None:
        """Begin anew: a child process must not make its parent's ids, nor wait for a thread that isn't there."""
        self._lock = threading.Lock()
        self._entropy: list[int] = []

    def take(self, tick: int) -> tuple[int, int]:
        """A tick not before *tick*, and 62 random bits."""
        with self._lock:
            if tick <= self._latest < tick + _LEAD:
                # At the end of what 60 bits can say the random bits alone tell ids apart.
                tick = min(self._latest + 1, _TICKS)
            self._latest = tick
            if not self._entropy:
                # A system call for each id would cost as much as the rest of it.
                self._entropy.extend(_RANDOM.unpack(os.urandom(_RANDOM.size)))
            return tick, self._entropy.pop() >> 2


_sequence = _Sequence()


def new_id(*, now_ns: Callable[[], int] = time.time_ns) -> UUID:
    """
    Make a UUIDv7: 48 bits of milliseconds, 12 of their fraction, 62 random bits (RFC 9562 §5.7 and §6.2, method 3).

    Ids of one process ascend, so that what is stored one after the other is neighbours in
    the indexes. The id says when the job was made, and time partitions follow from it. It
    decides nothing else: due times and leases come from the database's clock, so a
    client with a wrong clock only files its jobs in another partition.
    """
    tick, random = _sequence.take((now_ns() << 12) // 1_000_000 & _TICKS)
    return UUID(int=(tick >> 12 << 16 | 0x7000 | tick & 0xFFF) << 64 | 0b10 << 62 | random)


def first_id_at(moment: datetime) -> UUID:
    """The smallest id that can be made at *moment*: what a time range over ids starts from."""
    milliseconds = int((moment - _EPOCH) / timedelta(milliseconds=1))
    return UUID(int=max(0, min(milliseconds, (1 << 48) - 1)) << 80)


def parse_id(text: str) -> UUID:
    """
    Read a job id. Raises InvalidJob when *text* isn't a UUID in its usual form.
    """
    try:
        if len(text) != 36:
            raise ValueError
        return UUID(text)
    except ValueError:
        raise InvalidJob(
            f"{text[:60]!r} is not a job id; ids look like 01890a5d-ac96-774b-bcce-b302099a8057", field="id"
        ) from None
