"""
Requests and responses, as small as the API needs them.

A `Request` is made once, by the outer layer, and handed from there on; whatever reads a
body reads it through here, so that its size and its time are bounded in one place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from uuid import UUID

import msgspec

from fencepost.errors import FencepostError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

BODY_KEY = "fencepost.body"
"""Where our own server puts a body that had come when the request was begun with. Other servers know nothing of it."""
UNMATCHED = "(unmatched)"
"""The `route` of a request for a path that isn't there."""
DISCARD_BYTES = 64 << 20
"""How much of a body that is refused for its size is still read, so that its sender gets to read the refusal."""

JSON_TYPE = (b"content-type", b"application/json")
CLOSE = (b"connection", b"close")
_NOT_STORED = (b"cache-control", b"no-store")
_NOT_GUESSED = (b"x-content-type-options", b"nosniff")


class HttpError(FencepostError):
    """A request is refused for a reason that only HTTP knows: its path, its method, its media type, its size."""

    def __init__(self, status: int, code: str, message: str, *, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(message)
        self.http_status = status
        self.code = code
        self.headers = list(headers)


class ClientGone(Exception):
    """The connection closed before the request was complete. Nobody is there to answer."""


class Request:
    """One request. Header names are lower case; of a repeated header the last value counts."""

    __slots__ = ("_body_seconds", "_receive", "headers", "id", "method", "parameters", "path", "route", "scope")

    def __init__(self, scope: Scope, receive: Receive, request_id: str, *, body_seconds: float) -> None:
        self.scope = scope
        self.id = request_id
        self.method: str = scope["method"]
        self.path = inner_path(scope)
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.route = UNMATCHED
        """The template of the route that answers, for metrics."""
        self.parameters: dict[str, str] = {}
        """The variable parts of the path."""
        self._receive = receive
        self._body_seconds = body_seconds

    def header(self, name: bytes) -> str | None:
        """A header's value as text, or None."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def parameter(self, name: str) -> str:
        """A variable part of the path."""
        return self.parameters[name]

    async def body(self, limit: int, *, bulk_limit: int | None = None) -> bytes:
        """
        Read the body, up to *limit* bytes, or to *bulk_limit* when it is a JSON array.

        Raises HttpError 413 when it is larger and 408 when it doesn't arrive in time; both
        close the connection.
        """
        whole: bytes | None = self.scope.get(BODY_KEY)
        if whole is not None and len(whole) <= limit:
            return whole
        most = bulk_limit or limit
        if self._announced() > max(most, DISCARD_BYTES) or (b"expect" in self.headers and self._announced() > most):
            raise _too_large(most)
        try:
            async with asyncio.timeout(self._body_seconds):
                return await self._read(limit, bulk_limit)
        except TimeoutError:
            message = f"the request's body did not arrive within {self._body_seconds:g} seconds"
            raise HttpError(408, "timeout", message, headers=[CLOSE]) from None

    def _announced(self) -> int:
        length = self.headers.get(b"content-length", b"")
        # What has more digits than int likes is larger than any limit all the same.
        return int(length[:19]) if length.isdigit() else 0

    async def _read(self, limit: int, bulk_limit: int | None) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size <= DISCARD_BYTES:
                chunks.append(chunk)
            if size > limit and bulk_limit is not None and b"".join(chunks).lstrip()[:1] == b"[":
                limit, bulk_limit = bulk_limit, None
            done = not message.get("more_body", False)
            if size > limit and (done or size > DISCARD_BYTES):
                raise _too_large(limit)
            if size > limit:
                chunks.clear()
                bulk_limit = None
            if done:
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class Response:
    """What a handler answers."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: bytes = b"", headers: Headers | None = None) -> None:
        self.status = status
        self.body = body
        self.headers = headers if headers is not None else []

    async def send(self, send: Send, *, request_id: str, head: bool = False, close: bool = False) -> None:
        """
        Send it, with the headers that every response has; with *head*, without its body.

        With *close* the connection ends after it.
        """
        headers = self.headers
        if self.status != 204:
            headers.append((b"content-length", b"%d" % len(self.body)))
        headers += (_NOT_STORED, (b"x-request-id", request_id.encode()), _NOT_GUESSED)
        if close and CLOSE not in headers:
            headers.append(CLOSE)
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if head else self.body})


def answer(value: Any, status: int = 200, headers: Iterable[tuple[bytes, bytes]] = ()) -> Response:
    """Answer with *value* as JSON."""
    return Response(status, msgspec.json.encode(value), [JSON_TYPE, *headers])


def inner_path(scope: Scope) -> str:
    """The path below the place the application is mounted at."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if root else path


def location(job_id: UUID) -> tuple[bytes, bytes]:
    """The header that says where a job is found."""
    return (b"location", f"/jobs/{job_id}".encode())


def _too_large(limit: int) -> HttpError:
    message = f"the request's body is larger than the {limit:,} bytes that are allowed here"
    return HttpError(413, "too_large", message, headers=[CLOSE])
