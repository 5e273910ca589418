"""
Send one POST to a place that somebody else chose, without being turned inward.

    parse_target            strict reading of the URL            (guard.py)
      └─ Courier.post       total deadline, caps on time and bytes
           └─ httpcore2     one pool of connections per event loop
                └─ GuardedBackend    resolves, judges, dials     (lookups.py, dialler.py)

This stands on httpcore2 rather than on a full client, so what must not happen can't:
there is no code here that follows a redirect, reads proxies from the environment,
keeps a cookie, unpacks a body or logs a URL.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from contextlib import aclosing
from typing import NamedTuple
from weakref import WeakKeyDictionary

import httpcore2

from fencepost.handlers.dialler import (
    CONNECT_SECONDS,
    DeliveryFailed,
    GuardedBackend,
    Resolver,
)
from fencepost.handlers.guard import Target
from fencepost.handlers.lookups import resolve

TOTAL_SECONDS = 20.0
READ_SECONDS = 15.0
BODY_SECONDS = 5.0
"""How long an answer's body may keep the slot: its status has said what matters."""

BODY_BYTES = 64 * 1024

_MAX_CONNECTIONS = 100
_MAX_IDLE_CONNECTIONS = 20
# Short, so that a change in DNS is soon followed, and because most servers
# close an idle connection after five seconds or more.
_IDLE_SECONDS = 4.0


class Answer(NamedTuple):
    """What the receiver said."""

    status: int
    retry_after: str | None
    body: bytes
    """As many bytes as came within the limits, as they were sent: nothing is decompressed."""
    truncated: bool
    """Whether the body was cut off, by size, by time or by the receiver."""


class Courier:
    """
    A client that delivers only where it may.

    Keeps one pool of connections for each event loop that uses it, made on first
    use; `close` gives up those of the running loop.
    """

    def __init__(
        self,
        *,
        allow_private: bool,
        resolver: Resolver = resolve,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._backend = GuardedBackend(resolver, allow_private=allow_private)
        self._ssl_context = ssl_context

    async def post(
        self, target: Target, body: bytes, *, headers: list[tuple[str, str]], seconds: float = TOTAL_SECONDS
    ) -> Answer:
        """
        POST *body*, and return the answer whatever its status, within *seconds*.

        Once a status has come it counts, even if the body then stalls or breaks off.

        Raises AddressRefused before anything is sent, DeliveryFailed if no answer came.
        """
        deadline = time.monotonic() + seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(target, body, headers=headers, deadline=deadline)
        except TimeoutError:
            raise DeliveryFailed(f"no answer within {seconds:g} seconds") from None
        except httpcore2.TimeoutException as error:
            raise DeliveryFailed(_sentence(error, "timed out")) from error
        except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError) as error:
            raise DeliveryFailed(_sentence(error, "the connection broke")) from error

    async def _exchange(
        self, target: Target, body: bytes, *, headers: list[tuple[str, str]], deadline: float
    ) -> Answer:
        url = httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
        request = self._pool().stream(
            "POST",
            url,
            headers=[("Host", target.authority), *headers, ("Accept-Encoding", "identity")],
            content=body,
            extensions={"timeout": {"connect": CONNECT_SECONDS, "read": READ_SECONDS, "write": READ_SECONDS}},
        )
        async with request as response:
            excerpt, truncated = await _read(response, deadline=deadline)
            return Answer(response.status, _header(response, b"retry-after"), excerpt, truncated)

    def _pool(self) -> httpcore2.AsyncConnectionPool:
        pools = _pools.setdefault(asyncio.get_running_loop(), {})
        if self not in pools:
            pools[self] = httpcore2.AsyncConnectionPool(
                ssl_context=self._ssl_context or httpcore2.default_ssl_context(),
                max_connections=_MAX_CONNECTIONS,
                max_keepalive_connections=_MAX_IDLE_CONNECTIONS,
                keepalive_expiry=_IDLE_SECONDS,
                network_backend=self._backend,
            )
        return pools[self]

    async def close(self) -> None:
        """Close the running loop's connections. The next delivery opens new ones."""
        pool = _pools.get(asyncio.get_running_loop(), {}).pop(self, None)
        if pool is not None:
            await pool.aclose()


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Courier, httpcore2.AsyncConnectionPool]] = WeakKeyDictionary()


async def close() -> None:
    """Close the connections of every courier in the running loop."""
    for courier in list(_pools.get(asyncio.get_running_loop(), {})):
        await courier.close()


async def _read(response: httpcore2.Response, *, deadline: float) -> tuple[bytes, bool]:
    received = bytearray()
    seconds = min(BODY_SECONDS, deadline - time.monotonic() - 0.05)
    try:
        async with asyncio.timeout(seconds), aclosing(response.aiter_stream()) as chunks:
            async for chunk in chunks:
                received += chunk
                if len(received) > BODY_BYTES:
                    return bytes(received[:BODY_BYTES]), True
    except (TimeoutError, httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError):
        return bytes(received), True
    return bytes(received), False


def _header(response: httpcore2.Response, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in response.headers if key.lower() == name), None)


def _sentence(error: BaseException, otherwise: str) -> str:
    # The libraries wrap what happened, often under "all connection attempts failed",
    # and asyncio's own text names the address, which is nobody's business.
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the certificate can't be trusted: {cause.verify_message}"
        if isinstance(cause, OSError) and cause.errno and not isinstance(cause, ssl.SSLError):
            return os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return str(error) or otherwise
