"""A small HTTP client for the load test: kept-alive connections, and patience."""

from __future__ import annotations

import asyncio
import time

import httpcore2

from fencepost.errors import FencepostError, InvalidSettings


class Unreachable(FencepostError):
    """The service doesn't answer."""

    code = "unreachable"
    exit_code = 6


class Client:
    """Just enough HTTP for this: kept-alive connections, and the same request again when an answer is missing."""

    def __init__(self, url: str, token: str | None, connections: int, *, patience_seconds: float) -> None:
        self._url = url.rstrip("/")
        self._headers = [(b"Content-Type", b"application/json")]
        if token:
            self._headers.append((b"Authorization", f"Bearer {token}".encode()))
        self._pool = httpcore2.AsyncConnectionPool(
            max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=4
        )
        self._patience_seconds = patience_seconds
        self.repeated = 0

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.aclose()

    async def call(self, method: str, path: str, body: bytes | None = None, *, key: str | None = None) -> bytes | None:
        """
        The body of a successful answer; None for a 404.

        A request that gets no answer, or a 503, is sent again until patience ends: with an
        idempotency key that is safe. Raises Unreachable, or FencepostError for a refusal.
        """
        headers = self._headers if key is None else [*self._headers, (b"Idempotency-Key", key.encode())]
        deadline = time.monotonic() + self._patience_seconds
        while True:
            try:
                answer = await self._pool.request(
                    method,
                    self._url + path,
                    headers=headers,
                    content=body,
                    extensions={"timeout": {"connect": 5, "read": 30, "write": 30, "pool": 60}},
                )
                if answer.status < 300:
                    return bytes(answer.content)
                if answer.status == 404:
                    return None
                if answer.status == 401:
                    raise InvalidSettings(f"{self._url} wants an API token: set API_TOKENS, or give --token-file")
                if answer.status != 503:
                    raise FencepostError(f"{method} {path} was answered {answer.status}: {_text(answer.content)}")
                reason = "it answers 503"
            except (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError) as error:
                reason = str(error) or type(error).__name__
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"{self._url} can't be reached ({reason}); does `fencepost serve` run there? Else give --url"
                )
            self.repeated += 1
            await asyncio.sleep(0.1)


def _text(body: bytes) -> str:
    return body[:300].decode(errors="replace").strip()
