"""
Send one POST to a place that somebody else chose, without being turned inward.

    parse_target          strict reading of the URL            (guard.py)
      └─ Courier.post     total deadline, caps on time and bytes
           └─ httpcore2   one pool of connections per event loop
                └─ GuardedBackend.connect_tcp
                     1. resolve once, with a deadline of its own
                     2. refuse if any answer is forbidden
                     3. dial the very addresses that were judged, as literals
                     4. judge the peer that the socket reports

The host of the URL stays the name in TLS and in the Host header, because pinning
happens below both. This stands on httpcore2 rather than on a full client, so what
must not happen can't: there is no code here that follows a redirect, reads proxies
from the environment, keeps a cookie, unpacks a body or logs a URL.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from typing import NamedTuple
from weakref import WeakKeyDictionary

import httpcore2

from fencepost.handlers.guard import Target, Verdict, judge

Resolver = Callable[[str, int], Awaitable[list[str]]]
"""Turns a name or a literal and a port into addresses; raises OSError when there are none."""

TOTAL_SECONDS = 20.0
RESOLVE_SECONDS = 3.0
CONNECT_SECONDS = 8.0
READ_SECONDS = 15.0
BODY_SECONDS = 5.0
"""How long an answer's body may keep the slot: its status has said what matters."""

BODY_BYTES = 64 * 1024
MOST_ADDRESSES = 4
"""How many of a name's addresses are tried in turn."""

_MAX_CONNECTIONS = 100
_MAX_IDLE_CONNECTIONS = 20
# Short, so that a change in DNS is soon followed, and because most servers
# close an idle connection after five seconds or more.
_IDLE_SECONDS = 4.0


class AddressRefused(Exception):
    """The host leads to an address that may not be dialled; nothing was sent to it."""

    def __init__(self, host: str, verdict: Verdict) -> None:
        super().__init__(f"{host!r} is, or resolves to, {verdict.reason}")
        self.private = verdict.private


class DeliveryFailed(Exception):
    """No answer came. The request may or may not have been received."""


class Answer(NamedTuple):
    """What the receiver said."""

    status: int
    retry_after: str | None
    body: bytes
    """As many bytes as came within the limits, as they were sent: nothing is decompressed."""
    truncated: bool
    """Whether the body was cut off, by size, by time or by the receiver."""


async def resolve(host: str, port: int) -> list[str]:
    """Ask the system's resolver for every address of *host*, in the order to try them."""
    loop = asyncio.get_running_loop()
    answers = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in answers))


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
        self.allow_private = allow_private
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


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Courier, httpcore2.AsyncConnectionPool]] = (
    WeakKeyDictionary()
)


async def close() -> None:
    """Close the connections of every courier in the running loop."""
    for courier in list(_pools.get(asyncio.get_running_loop(), {})):
        await courier.close()


class GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections to judged addresses, and to nothing else."""

    def __init__(
        self,
        resolver: Resolver,
        *,
        allow_private: bool,
        dialler: httpcore2.AsyncNetworkBackend | None = None,
    ) -> None:
        self._resolve = resolver
        self._allow_private = allow_private
        self._dialler = dialler or httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        addresses = await self._addresses(host, port)
        # One bad answer among good ones is an attack or a mistake, so none is dialled.
        for address in addresses:
            self._check(host, address)
        stream = await self._dial(addresses[:MOST_ADDRESSES], port, seconds=timeout or CONNECT_SECONDS)
        try:
            self._check(host, str(stream.get_extra_info("server_addr")[0]))
        except BaseException:
            await stream.aclose()
            raise
        return _Stream(stream)

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        raise httpcore2.ConnectError("unix sockets are never dialled")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _addresses(self, host: str, port: int) -> list[str]:
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                addresses = await self._resolve(host, port)
        except TimeoutError:
            raise DeliveryFailed(f"{host!r} wasn't resolved within {RESOLVE_SECONDS:g} seconds") from None
        except (OSError, UnicodeError) as error:
            raise DeliveryFailed(f"{host!r} can't be resolved: {error}") from error
        if not addresses:
            raise DeliveryFailed(f"{host!r} has no address")
        return addresses

    def _check(self, host: str, address: str) -> None:
        verdict = judge(address, allow_private=self._allow_private)
        if verdict is not None:
            raise AddressRefused(host, verdict)

    async def _dial(self, addresses: list[str], port: int, *, seconds: float) -> httpcore2.AsyncNetworkStream:
        until = time.monotonic() + seconds
        for tried, address in enumerate(addresses[:-1]):
            # A dead first address must leave time for the others.
            share = (until - time.monotonic()) / (len(addresses) - tried)
            with suppress(httpcore2.ConnectError, httpcore2.ConnectTimeout):
                return await self._dialler.connect_tcp(address, port, timeout=share)
        return await self._dialler.connect_tcp(
            addresses[-1], port, timeout=max(until - time.monotonic(), 0.001)
        )


class _Stream(httpcore2.AsyncNetworkStream):
    """A stream that closes its socket when a handshake is cancelled; the library's forgets it."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self.read = stream.read  # type: ignore[method-assign]
        self.write = stream.write  # type: ignore[method-assign]
        self.aclose = stream.aclose  # type: ignore[method-assign]
        self.get_extra_info = stream.get_extra_info  # type: ignore[method-assign]

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        try:
            return await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            await self._stream.aclose()
            raise


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
