"""
Open connections to addresses that were judged, and to nothing else.

For each connection: resolve the host once, with a deadline of its own (see lookups.py);
refuse if any answer is forbidden; dial the very addresses that were judged, as literals;
judge the peer that the socket reports. Nothing is looked up a second time, so a name
can't change its answer between the judgement and the call.

Pinning happens beneath TLS and HTTP: the name in the handshake, in the certificate
and in the Host header stays that of the URL.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import httpcore2

from fencepost.handlers.guard import Verdict, judge

Resolver = Callable[[str, int], Awaitable[list[str]]]
"""
Turns a name or a literal and a port into addresses.

Raises OSError when there are none, and TimeoutError, which says what took too long.
"""

CONNECT_SECONDS = 8.0
MOST_ADDRESSES = 4
"""How many of a name's addresses are tried in turn."""


class AddressRefused(Exception):
    """The host leads to an address that may not be dialled; nothing was sent to it."""

    def __init__(self, host: str, verdict: Verdict) -> None:
        super().__init__(f"{host!r} is, or resolves to, {verdict.reason}")
        self.private = verdict.private


class DeliveryFailed(Exception):
    """No answer came. The request may or may not have been received."""


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
            addresses = await self._resolve(host, port)
        except TimeoutError as error:
            raise DeliveryFailed(f"{host!r} {error}") from None
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
        return await self._dialler.connect_tcp(addresses[-1], port, timeout=max(until - time.monotonic(), 0.001))


class _Stream(httpcore2.AsyncNetworkStream):
    """A stream that closes its socket when a handshake is cancelled; the library's forgets it."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        try:
            return await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            await self._stream.aclose()
            raise

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)
