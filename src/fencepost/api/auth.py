"""
Who may ask: tokens, and what stands in for them on a machine of one's own.

With tokens, every path but the probes wants one, known or not, whatever the method.
Without, the API listens on loopback, where a browser is the way in: pages of other
origins may not change anything, and names that merely point here are not answered.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection
from urllib.parse import urlsplit

from fencepost.api.http import HttpError, Request
from fencepost.settings import Settings

PUBLIC = frozenset(("/healthz", "/health", "/readyz"))
"""What needs no token: it says nothing about jobs."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
_CHALLENGE = (b"www-authenticate", b'Bearer realm="fencepost"')


class Guard:
    """Lets through who may ask."""

    def __init__(self, settings: Settings, *, allowed_hosts: Collection[str] = ()) -> None:
        self._digests = [_digest(token.reveal().encode()) for token in settings.api_tokens]
        checks_host = not settings.api_tokens and settings.host in _LOOPBACK
        self._hosts = frozenset((*_LOOPBACK, *(host.lower() for host in allowed_hosts))) if checks_host else None

    def check(self, request: Request) -> None:
        """Raise HttpError for a request that isn't to be answered."""
        if self._digests:
            if request.path not in PUBLIC:
                self._check_token(request.headers.get(b"authorization", b""))
            return
        if self._hosts is not None and request.path not in PUBLIC:
            self._check_host(request, self._hosts)
        if request.method not in _SAFE:
            _check_origin(request)

    def _check_token(self, header: bytes) -> None:
        scheme, _, token = header.partition(b" ")
        presented = _digest(token.strip() if scheme.lower() == b"bearer" else b"")
        # Every token is compared, so that the time says nothing about which one came close.
        matches = [hmac.compare_digest(presented, known) for known in self._digests]
        if not any(matches):
            problem = "this token isn't known here" if token else "a token is needed"
            message = f"{problem}; send one of API_TOKENS as `Authorization: Bearer <token>`"
            raise HttpError(401, "unauthorized", message, headers=[_CHALLENGE])

    def _check_host(self, request: Request, allowed: frozenset[str]) -> None:
        """Refuse a name that isn't this machine's: somebody's page may have pointed it here (DNS rebinding)."""
        header = request.header(b"host")
        if header is not None and _hostname(header) not in allowed:
            message = (
                "without API_TOKENS this API answers on localhost and 127.0.0.1 only, not under the name that the "
                "request's Host header gives; set a token to serve other names"
            )
            raise HttpError(421, "misdirected", message)


def _check_origin(request: Request) -> None:
    """Refuse to change anything for a page of another origin, which a browser tells by these headers."""
    site = request.headers.get(b"sec-fetch-site")
    origin = request.header(b"origin")
    if site is not None:
        foreign = site not in (b"same-origin", b"none")
    else:
        foreign = origin is not None and _authority(origin) != (request.header(b"host") or "").lower()
    if foreign:
        message = "a page of another origin can't change anything here while no API token is set"
        raise HttpError(403, "cross_origin", message)


def _authority(url: str) -> str:
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""


def _hostname(header: str) -> str | None:
    name, _, port = header.partition(":")
    if name in _LOOPBACK and (not port or port.isdecimal()):
        return name
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:
        return None


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
