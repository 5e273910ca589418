"""
One connection of the HTTP server, and its deadlines:

    opened ── idle: 30 s ──> first byte ── head: 10 s ──> body: 30 s ──> answered ── idle: 5 s ──> …

No trickle of bytes pushes one back, and what can't be read as a request is answered in the
API's own form.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote

import httptools
import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fencepost.api.exchange import Exchange, head_of
from fencepost.api.http import BODY_KEY
from fencepost.api.problems import refusal
from fencepost.domain.ids import new_id

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


class Config(uvicorn.Config):
    """uvicorn's configuration, and ours."""

    bounds: Bounds


class _Refused(Exception):
    """A head that can be read and is still too much."""


class Deadlines(HttpToolsProtocol):
    """
    One connection, with deadlines that start once and are never pushed back.

    A request that arrives in one piece costs no timer.
    """

    config: Config
    scope: Any

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
        self._kept_since: float | None = None
        """When the last answer was sent; None while there is something to do."""
        self._keeping: asyncio.TimerHandle | None = None
        self._is_new = False
        """Whether the request began in this very chunk, so that nothing has been done with it yet."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a first byte."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self._bounds.idle_seconds, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the connection."""
        self._watch(None)
        if self._keeping is not None:
            self._keeping.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, and see which deadline holds from here."""
        if not self._deaf:
            self._read(data)

    def _read(self, data: bytes) -> None:
        self._is_new = False
        self._chunk_bytes = len(data)
        self._head_bytes = len(data) if self._phase == _IDLE else self._head_bytes + len(data)
        super().data_received(data)
        if self._deaf:
            return
        if self._phase == _HEAD and self._head_bytes > self._bounds.head_bytes:
            self._refuse(_HEAD_TOO_LARGE)
        elif self._phase == _IDLE and (self._answering or self._kept_since is not None):
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
        self._begin()
        self._phase = _BODY
        self._is_new = True

    def _begin(self) -> None:
        """Make an exchange of the request, and start it when the one before has been answered."""
        version = self.parser.get_http_version()
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        self.scope.update(
            method=self.parser.get_method().decode("ascii"),
            http_version=version,
            path=self.root_path + (unquote(path) if "%" in path else path),
            raw_path=self.root_path.encode("ascii") + url.path,
            query_string=url.query or b"",
        )
        before = self.cycle
        self.cycle = Exchange(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            # We speak nothing else than HTTP/1.1; what follows an upgrade would be read as if we did.
            keep_alive=version != "1.0" and self.parser.should_keep_alive() and not self.parser.should_upgrade(),
            on_response=self.on_response_complete,
        )
        self.cycle.tasks = self.tasks
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self.tasks.add(self.loop.create_task(cycle.run_asgi(app)))

    def on_message_complete(self) -> None:
        """It is complete."""
        self._phase = _IDLE
        self._head_bytes = self._chunk_bytes
        if self._is_new:
            self.scope[BODY_KEY] = bytes(self.cycle.body)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request, or wait for one."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._kept_since = None
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._kept_since = self.loop.time()
            if self._keeping is None:
                self._keeping = self.loop.call_later(self.timeout_keep_alive, self._end_of_keeping)

    def _unset_keepalive_if_required(self) -> None:
        self._kept_since = None

    def _end_of_keeping(self) -> None:
        """Close a connection that has been idle for long enough; a timer made anew for each answer would cost more."""
        self._keeping = None
        if self._kept_since is not None:
            left = self._kept_since + self.timeout_keep_alive - self.loop.time()
            if left <= 0:
                self.transport.close()
            else:
                self._keeping = self.loop.call_later(left, self._end_of_keeping)

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
            self.transport.write(head_of(answer.status, answer.headers) + answer.body)
        self.transport.close()
