"""
Which types of job any process knows, as the database has it.

During a deployment a worker of the old version meets jobs of types that only the new one
has. It can tell those from jobs that nobody will ever run by what is declared here.
"""

from __future__ import annotations

from collections.abc import Iterable

from fencepost.store.database import Database

FRESH_SECONDS = 30.0
"""A type declared by anybody within this time isn't declared again. Less than the time between two declarations."""
KEPT_SECONDS = 24 * 3600.0
"""How long a type is kept that nobody declares any more."""


class JobTypes:
    """The declared job types of one schema."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def declare(self, names: Iterable[str]) -> None:
        """
        Say that this process knows *names*, now. Repeat it each minute.

        Costs one statement, which seldom writes. Raises DatabaseUnavailable.
        """
        await self._database.fetch(
            "declare_types", names=sorted(set(names)), fresh_seconds=FRESH_SECONDS, kept_seconds=KEPT_SECONDS
        )

    async def declared(self, *, within_seconds: float) -> frozenset[str]:
        """The types that somebody has declared within the last *within_seconds*. Raises DatabaseUnavailable."""
        rows = await self._database.fetch("declared_types", within_seconds=within_seconds)
        return frozenset(row["name"] for row in rows)

    async def is_declared(self, name: str, *, within_seconds: float) -> bool:
        """Whether somebody has declared this type within the last *within_seconds*. Raises DatabaseUnavailable."""
        return name in await self.declared(within_seconds=within_seconds)
