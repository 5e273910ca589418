"""The job type `webhook`: POST a job's body to a URL, and end the attempt as the answer says."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from datetime import UTC
from email.utils import parsedate_to_datetime

import msgspec

import fencepost
from fencepost.domain.context import Context
from fencepost.errors import Permanent, Retry
from fencepost.handlers.delivery import TOTAL_SECONDS, Answer, Courier
from fencepost.handlers.dialler import AddressRefused, DeliveryFailed
from fencepost.handlers.guard import Target, parse_target

EXCERPT_BYTES = 4096
"""How much of an answer is kept with the job."""
LONGEST_WAIT_SECONDS = 24 * 3600.0
"""The most that a receiver's Retry-After may ask for."""


class WebhookPayload(msgspec.Struct, kw_only=True):
    """What a job of type `webhook` carries."""

    url: str
    body: msgspec.Raw = msgspec.Raw(b"{}")
    """Any JSON. It is sent as it was stored, without being taken apart."""
    headers: dict[str, str] = {}
    """Sent as well. They may replace Content-Type and User-Agent."""


WebhookHandler = Callable[[Context, WebhookPayload], Awaitable[dict[str, object]]]


def webhook(*, allow_private: bool, courier: Courier | None = None) -> WebhookHandler:
    """
    Make the handler.

    Only public addresses are reached, unless *allow_private*. The handler returns
    the receiver's answer if its status is 2xx. It raises Retry if there was no
    answer, or 429, or 5xx; everything else can't be helped by trying again, and
    raises Permanent.
    """
    sender = courier or Courier(allow_private=allow_private)

    async def handler(context: Context, payload: WebhookPayload) -> dict[str, object]:
        target = _read_url(payload.url, any_port=allow_private)
        headers = [*_own_headers(context, payload.headers), *payload.headers.items()]
        seconds = min(TOTAL_SECONDS, context.timeout_seconds)
        started = time.monotonic()
        try:
            answer = await sender.post(target, bytes(payload.body), headers=headers, seconds=seconds)
        except AddressRefused as refusal:
            raise Permanent(_explain(target, refusal)) from refusal
        except DeliveryFailed as failure:
            raise Retry(f"POST {target}: {failure}") from failure
        duration_ms = round((time.monotonic() - started) * 1000)
        _raise_for_status(target, answer)
        return {
            "status_code": answer.status,
            "duration_ms": duration_ms,
            "body": excerpt(answer.body),
            "truncated": answer.truncated or len(answer.body) > EXCERPT_BYTES,
        }

    return handler


def _read_url(url: str, *, any_port: bool) -> Target:
    try:
        return parse_target(url, any_port=any_port)
    except ValueError as error:
        raise Permanent(f"url: {error}") from None


def _explain(target: Target, refusal: AddressRefused) -> str:
    remedy = "; set WEBHOOK_ALLOW_PRIVATE=true to allow it" if refusal.private else ", which is never allowed"
    return f"POST {target}: {refusal}{remedy}"


_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"(?:[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)?")
_RESERVED_HEADERS = frozenset(
    [
        # What frames the message or belongs to one connection: with these a payload
        # could smuggle in a second request.
        *("connection", "content-length", "expect", "host", "http2-settings", "keep-alive"),
        *("proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
        # What the receiver, or the reading of its answer, relies on.
        *("accept-encoding", "webhook-id", "x-fencepost-attempt", "x-fencepost-job-id"),
    ]
)


def _own_headers(context: Context, given: dict[str, str]) -> list[tuple[str, str]]:
    """
    Headers that every delivery has, less those that *given* replaces.

    Raises Permanent if *given* has a header that may not be sent.
    """
    names: set[str] = set()
    for name, value in given.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise Permanent(f"headers: {name[:50]!r} isn't a valid name or doesn't have a valid value")
        if name.lower() in _RESERVED_HEADERS:
            raise Permanent(f"headers: {name!r} is set by fencepost and can't be given")
        if name.lower() in names:
            raise Permanent(f"headers: {name!r} is given twice")
        names.add(name.lower())
    own = {
        "Content-Type": "application/json",
        "User-Agent": f"fencepost/{fencepost.__version__}",
        "Webhook-Id": str(context.id),
        "X-Fencepost-Job-Id": str(context.id),
        "X-Fencepost-Attempt": str(context.attempt),
    }
    return [(name, value) for name, value in own.items() if name.lower() not in names]


def _raise_for_status(target: Target, answer: Answer) -> None:
    status = answer.status
    if 200 <= status < 300:
        return
    words = excerpt(answer.body[:200])
    message = f"POST {target}: the answer was {status}" + (f": {' '.join(words.split())}" if words else "")
    if status == 429 or status >= 500:
        raise Retry(message, after=read_retry_after(answer.retry_after, now=time.time()))
    if 300 <= status < 400:
        raise Permanent(f"POST {target}: the answer was {status}, and redirects aren't followed; use the final URL")
    raise Permanent(message)


def read_retry_after(value: str | None, *, now: float) -> float | None:
    """
    Read a Retry-After header as seconds from *now*, at most a day.

    Both of its forms are understood: seconds and an HTTP date. None when there is
    none, when it makes no sense, and when it has passed.
    """
    text = (value or "").strip()
    if re.fullmatch(r"[0-9]+", text):
        # Python refuses to read numbers of thousands of digits.
        seconds = float(text[:10]) if len(text) <= 10 else LONGEST_WAIT_SECONDS
    else:
        try:
            when = parsedate_to_datetime(text)
            # A date without a zone is in GMT, as every HTTP date is; here it would be local.
            seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - now
        except (ValueError, TypeError, OverflowError, IndexError):
            return None
    return min(seconds, LONGEST_WAIT_SECONDS) if seconds > 0 else None


_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def excerpt(body: bytes) -> str:
    """
    Make text of the beginning of *body*, fit to be stored as JSON.

    The text is at most `EXCERPT_BYTES` long in UTF-8, and holds neither NUL, which
    PostgreSQL refuses, nor other control characters but tabs and line ends.
    """
    text = _CONTROL.sub("\ufffd", body[:EXCERPT_BYTES].decode("utf-8", "replace"))
    return text.encode()[:EXCERPT_BYTES].decode("utf-8", "ignore")
