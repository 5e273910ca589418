"""What may stand between us and PostgreSQL."""

from __future__ import annotations

from enum import StrEnum


class Pooler(StrEnum):
    """How a pooler shares out the server's connections, as PgBouncer's `pool_mode` says it."""

    NONE = "none"
    """There is none: each connection of ours is one of the server's."""
    SESSION = "session"
    """A connection of the server's is ours until we disconnect."""
    TRANSACTION = "transaction"
    """It is ours for one transaction; the next may be on another."""
