"""The queues that a worker takes jobs from."""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.store.queues import Queues


class Served:
    """The queues of these names; of no names: all there are."""

    def __init__(self, names: Sequence[str], queues: Queues) -> None:
        self._names = names
        self._queues = queues
        self._ids: frozenset[int] | None = None if not names else frozenset()

    async def find(self) -> None:
        """Learn which they are now, and make those that aren't there. Raises DatabaseUnavailable."""
        if self._names:
            self._ids = frozenset([await self._queues.ensure(name, 0) for name in self._names])

    def __contains__(self, queue_id: int) -> bool:
        """Whether jobs are taken from this queue."""
        return self._ids is None or queue_id in self._ids
