"""
Ending an attempt in somebody else's transaction.

The statement runs in a connection of the caller's, whichever driver that has: one text
goes in, one comes out. Nothing here knows the driver.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from fencepost.domain.job import Lease
from fencepost.store.statements import text


class _Attempt(msgspec.Struct, omit_defaults=True):
    """What `fencepost.complete` is told (migrations/0004_attempts.sql)."""

    id: UUID
    queue_id: int
    token: int
    result: msgspec.Raw | None = None


def complete_sql(schema: str) -> str:
    """
    `complete.sql`, with one parameter, spelled `:attempt`: the text of `encode`.
    """
    return text("complete", schema)


def encode(lease: Lease, result: bytes | None) -> str:
    """Name an attempt and its result, which is JSON text or None, as the statement takes them."""
    raw = None if result is None else msgspec.Raw(result)
    return msgspec.json.encode(_Attempt(id=lease.id, queue_id=lease.queue_id, token=lease.token, result=raw)).decode()
