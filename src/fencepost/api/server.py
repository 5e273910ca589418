"""
The HTTP server, inside our own event loop.

uvicorn with three changes: signals are left to the process that runs it, requests have
deadlines that no trickle of bytes can push back, and what can't be read as a request is
answered in the API's own form.

A connection's deadlines:

    opened ── idle: 30 s ──> first byte ── head: 10 s ──> body: 30 s ──> answered ── idle: 5 s ──> …
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from fencepost.api.problems import refusal
from fencepost.domain.ids import new_id
from fencepost.errors import InvalidSettings
from fencepost.settings import Settings

BACKLOG = 2048

_IDLE, _HEAD, _BODY = range(3)
_Refusal = tuple[int, str, str]
_BAD_REQUEST: _Refusal = (400, "bad_request", "this can't be read as an HTTP/1.1 request")
_HEAD_TOO_LARGE: _Refusal = (431, "headers_too_large", "the request's line and headers are larger than is allowed")
_TOO_SLOW: _Refusal = (408, "timeout", "the request did not arrive in time")


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a connection may take."""

    idle_seconds: float = 30.0
    """From the connection to its first byte."""
    keep_alive_seconds: int = 5
    """From an answer to the next request's first byte."""
    head_seconds: float = 10.0
    """From the first byte of a request to the end of its headers."""
    body_seconds: float = 35.0
    """From there to the end of its body: behind the deadline of whoever reads it, for bodies that nobody reads."""
    head_bytes: int = 64 << 10
    head_fields: int = 100


class _Config(uvicorn.Config):
    bounds: Bounds


class _Refused(Exception):
    """A head that can be read and is still too much."""


class Deadlines(HttpToolsProtocol):
    """
    One connection, with deadlines that start once and are never pushed back.

    A request that arrives in one piece costs no timer.
    """

    config: _Config

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._bounds = self.config.bounds
        self._phase = _IDLE
        self._message = 0
        self._chunk_bytes = 0
        self._head_bytes = 0
        """No less than what the head of this request takes so far."""
        self._watched: tuple[int, int] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deaf = False
        self._refusal = _BAD_REQUEST

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a first byte."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self._bounds.idle_seconds, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the connection."""
        self._watch(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, and see which deadline holds from here."""
        if not self._deaf:
            self._read(data)

    def _read(self, data: bytes) -> None:
        self._chunk_bytes = len(data)
        self._head_bytes = len(data) if self._phase == _IDLE else self._head_bytes + len(data)
        super().data_received(data)
        if self._deaf:
            return
        if self._phase == _HEAD and self._head_bytes > self._bounds.head_bytes:
            self._refuse(_HEAD_TOO_LARGE)
        elif self._phase == _IDLE and (self._answering or self.timeout_keep_alive_task is not None):
            self._watch(None)
        else:
            # Also for line ends before a request, which are no reason to wait longer.
            self._watch((self._message, self._phase))

    def on_message_begin(self) -> None:
        """A request starts."""
        self._phase = _HEAD
        self._message += 1
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head is there: refuse it here if it is too large, before anything is made of it."""
        bounds = self._bounds
        if len(self.headers) > bounds.head_fields or (
            self._head_bytes > bounds.head_bytes
            and len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > bounds.head_bytes
        ):
            self._refusal = _HEAD_TOO_LARGE
            raise _Refused
        super().on_headers_complete()
        self._phase = _BODY
        if self.parser.should_upgrade():
            # We speak nothing else; what follows would be read as if we did.
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """It is complete."""
        self._phase = _IDLE
        self._head_bytes = self._chunk_bytes
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what can't be read, in the API's own form."""
        self._refuse(self._refusal)

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing to warn of: the request is answered as if it hadn't asked for an upgrade."""

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _watch(self, what: tuple[int, int] | None) -> None:
        """Have a deadline for *what* (a request and a part of it), and no other one; it doesn't start again."""
        if self._timer is not None:
            if what is not None and what == self._watched:
                return
            self._timer.cancel()
            self._timer = None
        self._watched = what
        if what is not None:
            seconds = self._bounds.body_seconds if what[1] == _BODY else self._bounds.head_seconds
            self._timer = self.loop.call_later(seconds, self._refuse, _TOO_SLOW)

    def _refuse(self, refused: _Refusal) -> None:
        """Read no more; say why, unless an answer is on its way already; close."""
        self._deaf = True
        self._watch(None)
        if self.pipeline or (self._answering and self._phase != _BODY):
            self.cycle.keep_alive = False
            return
        if self._phase != _BODY or (self._answering and not self.cycle.response_started):
            answer = refusal(*refused, str(new_id()))
            lines = [STATUS_LINE[answer.status], *(b"%s: %s\r\n" % header for header in answer.headers), b"\r\n"]
            self.transport.write(b"".join(lines) + answer.body)
        self.transport.close()


class ApiServer(uvicorn.Server):
    """The server, run by awaiting `serve(sockets=[bind_socket(settings)])`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: the process that runs us decides what they mean."""
        yield

    def stop(self) -> None:
        """Take no more connections, finish the requests in flight, and return from `serve`."""
        self.should_exit = True


def make_server(app: ASGIApp, settings: Settings, *, bounds: Bounds | None = None) -> ApiServer:
    """Make the server for *app*."""
    bounds = bounds or Bounds()
    config = _Config(
        app,
        http=Deadlines,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=bounds.keep_alive_seconds,
        timeout_graceful_shutdown=max(1, math.ceil(settings.shutdown_timeout_seconds)),
    )
    config.bounds = bounds
    return ApiServer(config)


def bind_socket(settings: Settings) -> socket.socket:
    """
    Listen where the settings say, so that failing to is known before anything else starts.

    Raises InvalidSettings.
    """
    host, port = settings.host, settings.http_port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise InvalidSettings(f"HTTP_ADDR: the host {host!r} has no address: {error}") from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        # Here rather than in the server: two processes can bind one port, but only one of them can listen.
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise InvalidSettings(_cannot_listen(host, port, error)) from None
    return listening


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"HTTP_ADDR: port {port} on {host} is in use; stop the program that has it, or choose another port with "
            "HTTP_ADDR or PORT"
        )
    if error.errno == errno.EACCES:
        return f"HTTP_ADDR: port {port} on {host} needs rights that this process lacks; choose one above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"HTTP_ADDR: {host} is not an address of this machine; use 127.0.0.1, or 0.0.0.0 for all of its addresses"
        )
    return f"HTTP_ADDR: can't listen on port {port} on {host}: {error.strerror}"
