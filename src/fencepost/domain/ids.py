"""Job ids: UUIDv7, made where the job is made."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

from fencepost.errors import InvalidJob

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def new_id(*, now_ns: Callable[[], int] = time.time_ns) -> UUID:
    """
    Make a UUIDv7 (RFC 9562 §5.7): 48 bits of milliseconds, then 74 random bits.

    The id says roughly when the job was made, so time partitions follow from it. It
    decides nothing else: due times and leases come from the database's clock, so a
    client with a wrong clock only files its jobs in another partition.
    """
    milliseconds = now_ns() // 1_000_000 & 0xFFFF_FFFF_FFFF
    random = int.from_bytes(os.urandom(10), "big")
    value = milliseconds << 80 | 0x7 << 76 | (random >> 68 & 0xFFF) << 64 | 0b10 << 62 | random & (1 << 62) - 1
    return UUID(int=value)


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
