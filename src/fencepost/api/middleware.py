"""
What is around every request: its id, one line in the log, its time in the metrics, and
an answer in our own form whatever happens inside.

Plain ASGI, one layer: each layer costs every request.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fencepost.api.http import CLOSE, SCOPE_KEY, ClientGone, Headers, Request
from fencepost.api.problems import respond
from fencepost.domain.ids import new_id

CLIENT_GONE_STATUS = 499
"""What log and metrics show for a request whose sender left; nothing is sent."""
PATH_CHARACTERS = 300
PROBES = frozenset(("/healthz", "/health", "/readyz", "/metrics"))
"""Asked for every few seconds by machines: logged at debug."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._~-]{1,128}").fullmatch
_logger = logging.getLogger("fencepost.api")


class Draining(Protocol):
    """Says whether connections should end after their answer."""

    @property
    def draining(self) -> bool:
        """Whether the process is about to stop."""
        ...


class RequestTimes(Protocol):
    """Takes the time of each request."""

    def requested(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered."""
        ...


class Outer:
    """The outermost layer of the API."""

    def __init__(self, app: ASGIApp, *, times: RequestTimes, readiness: Draining, body_seconds: float) -> None:
        self._app = app
        self._times = times
        self._readiness = readiness
        self._body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"fencepost's API speaks HTTP only, not {scope['type']}")
        started = time.perf_counter()
        request = Request(scope, receive, _request_id(scope["headers"]), body_seconds=self._body_seconds)
        scope[SCOPE_KEY] = request
        sender = _Sender(send, request.id, self._readiness)
        try:
            await self._answer(request, sender)
        finally:
            self._record(request, sender.status or CLIENT_GONE_STATUS, time.perf_counter() - started)

    async def _answer(self, request: Request, sender: _Sender) -> None:
        try:
            await self._app(request.scope, request.receive, sender)
        except ClientGone:
            return
        except Exception as error:
            response = respond(error, request)
            if sender.status:
                raise
            await response.send(sender, head=request.method == "HEAD")

    def _record(self, request: Request, status: int, seconds: float) -> None:
        self._times.requested(request.method, request.route, status, seconds)
        level = logging.DEBUG if request.path in PROBES else logging.INFO
        if _logger.isEnabledFor(level):
            fields: dict[str, Any] = {
                "request_id": request.id,
                "method": request.method,
                "path": shown_path(request.scope["path"]),
                "status": status,
                "duration_ms": round(seconds * 1000, 3),
            }
            _logger.log(level, "request", extra=fields)


class _Sender:
    """Adds the headers that every response has, and remembers its status."""

    __slots__ = ("_readiness", "_request_id", "_send", "status")

    def __init__(self, send: Send, request_id: str, readiness: Draining) -> None:
        self._send = send
        self._request_id = request_id
        self._readiness = readiness
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers: Headers = list(message.get("headers", ()))
            if not any(name == b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-store"))
            headers.append((b"x-request-id", self._request_id.encode()))
            headers.append((b"x-content-type-options", b"nosniff"))
            if self._readiness.draining and CLOSE not in headers:
                headers.append(CLOSE)
            message = {**message, "headers": headers}
        await self._send(message)


def shown_path(path: str) -> str:
    """A path for one line of a log: printable and not endless."""
    if len(path) > PATH_CHARACTERS:
        path = path[:PATH_CHARACTERS] + "…"
    return path if path.isprintable() else path.encode("unicode_escape").decode("ascii")


def _request_id(headers: Headers) -> str:
    for name, value in headers:
        if name == b"x-request-id":
            return value.decode("ascii") if _REQUEST_ID(value) else str(new_id())
    return str(new_id())
