"""Looking at queues, pausing and resuming them."""

from __future__ import annotations

from fencepost.api.http import Request, Response, answer
from fencepost.api.jobs import refuse_body
from fencepost.api.schemas import QueueList, queue_record
from fencepost.api.shared import Shared
from fencepost.domain.fields import check_queue
from fencepost.store.queues import COUNT_LIMIT, Queues, QueueState


class QueueViews:
    """The routes about queues."""

    def __init__(self, queues: Queues, overview: Shared[list[QueueState]]) -> None:
        self._queues = queues
        self._overview = overview

    async def overview(self, request: Request) -> Response:
        """Show every queue, as it was at most a second ago."""
        states = await self._overview.get()
        return answer(QueueList([queue_record(state, COUNT_LIMIT) for state in states]))

    async def get(self, request: Request) -> Response:
        """Show one queue."""
        return _answer(await self._queues.state(_name(request)))

    async def pause(self, request: Request) -> Response:
        """Stop claims from a queue."""
        await refuse_body(request)
        return _answer(await self._queues.pause(_name(request)))

    async def resume(self, request: Request) -> Response:
        """Allow claims again."""
        await refuse_body(request)
        return _answer(await self._queues.resume(_name(request)))


def _name(request: Request) -> str:
    name = request.parameter("name")
    check_queue(name)
    return name


def _answer(state: QueueState) -> Response:
    return answer(queue_record(state, COUNT_LIMIT))
