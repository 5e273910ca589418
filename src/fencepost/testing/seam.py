"""Where a kit takes hold of an app: its address, and its way to enqueue. Everything is put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fencepost.settings.pooler import Pooler

if TYPE_CHECKING:
    from fencepost.app import Fencepost
    from fencepost.client.producer import Producer


def producer_of(app: Fencepost) -> Producer:
    """What the app enqueues with."""
    return app._producer


class Elsewhere:
    """An app whose database is another one for a time. What it had open meanwhile stays open, and unused."""

    def __init__(self, app: Fencepost, dsn: str) -> None:
        self._producer = producer_of(app)
        self._had_portal = self._producer._portal is not None
        producer = self._producer
        self._before = (producer._dsn, producer._own, producer._settings, producer._address, producer._clients)
        # What stands between the app and its own database has nothing to do with this one.
        producer._own = producer._own | {"database_pooler": Pooler.NONE, "listen_url": None}
        producer._dsn, producer._settings = dsn, None
        producer._address = producer._clients = None

    def back(self) -> None:
        """Be where it was. Blocks, and closes what sync callers have opened meanwhile."""
        producer = self._producer
        if producer._portal is not None:
            # By its own door: a kit may be left in a running loop, too.
            producer._portal.run(producer.close_here())
            if not self._had_portal:
                producer.stop()
        producer._dsn, producer._own, producer._settings, producer._address, producer._clients = self._before

    async def close_here(self) -> None:
        """Close what was opened in the running loop meanwhile."""
        await self._producer.close_here()


@contextmanager
def enqueueing(app: Fencepost, enqueue: Any, enqueue_sync: Any) -> Iterator[None]:
    """Have these two functions in place of the app's own."""
    # Put on the object, where they hide the methods of its class.
    own: dict[str, Any] = vars(producer_of(app))
    names = ("enqueue", "enqueue_sync")
    before = {name: own[name] for name in names if name in own}
    own["enqueue"], own["enqueue_sync"] = enqueue, enqueue_sync
    try:
        yield
    finally:
        for name in names:
            own.pop(name, None)
        own.update(before)
