"""
What is around every request: its id, one line in the log, its time in the metrics, and
an answer in our own form whatever happens inside.

Plain ASGI, one layer: each layer costs every request.
"""

from __future__ import annotations

import logging
import os
import re
import time
from typing import Any, Protocol

from fencepost.api.auth import Guard
from fencepost.api.http import ClientGone, Headers, Receive, Request, Response, Scope, Send
from fencepost.api.problems import respond
from fencepost.api.routes import Routes
from fencepost.logger import get_logger

CLIENT_GONE_STATUS = 499
"""What log and metrics show for a request whose sender left; nothing is sent."""
PATH_CHARACTERS = 300
PROBES = frozenset(("/healthz", "/health", "/readyz", "/metrics"))
"""Asked for every few seconds by machines: logged at debug."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._~-]{1,128}").fullmatch
_logger = get_logger("fencepost.api")


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
    """The API as an ASGI application: from a request to the handler that answers it, and back."""

    def __init__(
        self, guard: Guard, routes: Routes, *, times: RequestTimes, readiness: Draining, body_seconds: float
    ) -> None:
        self._guard = guard
        self._routes = routes
        self._times = times
        self._readiness = readiness
        self._body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"fencepost's API speaks HTTP only, not {scope['type']}")
        started = time.perf_counter()
        request = Request(scope, receive, _request_id(scope["headers"]), body_seconds=self._body_seconds)
        status = CLIENT_GONE_STATUS
        try:
            response = await self._response(request)
            if response is not None:
                status = response.status
                close = self._readiness.draining
                await response.send(send, request_id=request.id, head=request.method == "HEAD", close=close)
        finally:
            self._record(request, status, time.perf_counter() - started)

    async def _response(self, request: Request) -> Response | None:
        """The answer, whatever happens; None when nobody is there to get it."""
        try:
            self._guard.check(request)
            return await self._routes.handler(request)(request)
        except ClientGone:
            return None
        except Exception as error:  # noqa: BLE001 - becomes an answer, and is logged where it is ours
            return respond(error, request)

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


def shown_path(path: str) -> str:
    """A path for one line of a log: printable and not endless."""
    if len(path) > PATH_CHARACTERS:
        path = path[:PATH_CHARACTERS] + "…"
    return path if path.isprintable() else path.encode("unicode_escape").decode("ascii")


def _request_id(headers: Headers) -> str:
    for name, value in headers:
        if name == b"x-request-id":
            return value.decode("ascii") if _REQUEST_ID(value) else _new_request_id()
    return _new_request_id()


def _new_request_id() -> str:
    """A UUIDv7 as text: nothing but its text is needed, and a UUID would have to be made first."""
    milliseconds, random = f"{time.time_ns() // 1_000_000:012x}", os.urandom(9).hex()
    return f"{milliseconds[:8]}-{milliseconds[8:12]}-7{random[:3]}-8{random[3:6]}-{random[6:]}"
