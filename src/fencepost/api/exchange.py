"""
One request and its answer on a connection, in fewer steps than the server's own.

What the API answers is always whole: one head with its length, one body. So both leave in
one write, and what a general server has to find out about each header is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from uvicorn._types import ASGI3Application, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

_CLOSE = (b"connection", b"close")


class Exchange(RequestResponseCycle):
    """Answers with one `http.response.start` that says the length, and one `http.response.body`."""

    _head = b""
    tasks: set[asyncio.Task[None]]
    """The requests that are being answered."""

    async def run_asgi(self, app: ASGI3Application) -> None:
        """Answer, and be done."""
        try:
            await super().run_asgi(app)
        finally:
            task = asyncio.current_task()
            assert task is not None
            self.tasks.discard(task)

    async def send(self, message: ASGISendEvent) -> None:
        """Take the head; write it along with the body."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start":
            headers = [*self.default_headers, *message["headers"]]
            if _CLOSE in headers:
                self.keep_alive = False
            elif not self.keep_alive:
                headers.append(_CLOSE)
            self._head = head_of(message["status"], headers)
            self.response_started = True
            self.waiting_for_100_continue = False
        elif message["type"] == "http.response.body" and self.response_started and not self.response_complete:
            self.transport.write(self._head + message["body"])
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()
        else:
            raise RuntimeError(f"the API sent {message['type']!r} out of turn")


def head_of(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The head of an answer. Raises RuntimeError for a header that would be read as two."""
    lines = [STATUS_LINE[status]]
    for name, value in headers:
        lines.append(b"%b: %b\r\n" % (name, value))
    head = b"".join(lines)
    # Each line has one end, its own.
    if not head.count(b"\r") == head.count(b"\n") == len(lines):
        raise RuntimeError("a header of the API's holds a line end")
    return head + b"\r\n"
