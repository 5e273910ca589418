"""Job types to try fencepost out with: `sleep`, `fail_test` and `send_email`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec

from fencepost.domain.context import Context
from fencepost.domain.durations import parse_duration
from fencepost.errors import Permanent, Retry
from fencepost.logger import get_logger

_logger = get_logger("fencepost.handlers")

Recipient = Annotated[str, msgspec.Meta(pattern=r"\S")]


class SleepPayload(msgspec.Struct, kw_only=True):
    """What a job of type `sleep` carries."""

    duration: str
    """As Go writes it: `2s`, `1m30s`, `250ms`."""


class EmailPayload(msgspec.Struct, kw_only=True):
    """What a job of type `send_email` carries; anything more is ignored."""

    to: Recipient | Annotated[list[Recipient], msgspec.Meta(min_length=1)]
    subject: str = ""


async def sleep(context: Context, payload: SleepPayload) -> dict[str, object]:
    """
    Wait as long as the payload says, and end at once when cancelled.

    Raises Permanent if the duration makes no sense.
    """
    try:
        seconds = parse_duration(payload.duration)
    except ValueError as error:
        raise Permanent(f"duration: {error}") from None
    await asyncio.sleep(seconds)
    return {"slept_seconds": seconds}


async def fail_test(context: Context, payload: object) -> object:
    """Fail, whatever the payload, to show retries and what comes after the last."""
    raise Retry(f"fail_test fails on purpose: attempt {context.attempt} of {context.max_attempts}")


async def send_email(context: Context, payload: EmailPayload) -> dict[str, object]:
    """Log what would be sent. Nothing is sent."""
    recipients = [payload.to] if isinstance(payload.to, str) else payload.to
    _logger.info("would send an email to %r with the subject %r, for job %s", recipients, payload.subject, context.id)
    return {"sent": False, "to": recipients}
