"""
Where a list goes on, as text to hand back unread.

A cursor holds the id of the last job shown and a checksum over that id and the filter,
so that one that was cut, altered or moved to another filter is refused, rather than
silently showing the wrong page. It isn't a secret: whoever may list jobs may see ids.
"""

from __future__ import annotations

import base64
import hashlib
from uuid import UUID

import msgspec

from fencepost.errors import InvalidJob
from fencepost.store.listing import Filter

_CHECK_BYTES = 8


def write_cursor(last: UUID, which: Filter) -> str:
    """Make the cursor for what comes after *last*."""
    return base64.urlsafe_b64encode(last.bytes + _check(last, which)).decode("ascii")


def read_cursor(text: str, which: Filter) -> UUID:
    """Read a cursor made for the same filter. Raises InvalidJob for anything else."""
    try:
        raw = base64.b64decode(text, altchars=b"-_", validate=True)
        last = UUID(bytes=raw[:16])
        if raw[16:] != _check(last, which) or write_cursor(last, which) != text:
            raise ValueError
    except ValueError:
        raise InvalidJob(
            "isn't one that this list gave out for the same filter; start again without it", field="cursor"
        ) from None
    return last


def _check(last: UUID, which: Filter) -> bytes:
    content = last.bytes + msgspec.json.encode(which)
    return hashlib.blake2b(content, digest_size=_CHECK_BYTES, person=b"fencepost-cursor").digest()
