"""The job types that ship with fencepost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fencepost.domain.context import Context

# The payload's type differs from handler to handler, and is named beside each.
Handler = Callable[[Context, Any], Awaitable[object]]


def shipped(*, allow_private: bool) -> list[tuple[str, Handler, type]]:
    """
    List every shipped job type as its name, its handler and the type of its payload.

    With *allow_private*, webhooks may reach the operator's own network.
    """
    # Imported here, so that the HTTP client is loaded by whoever runs these
    # job types, and needn't even be installed for those who only enqueue.
    from fencepost.handlers import demo
    from fencepost.handlers.webhook import WebhookPayload, webhook

    return [
        ("sleep", demo.sleep, demo.SleepPayload),
        ("webhook", webhook(allow_private=allow_private), WebhookPayload),
        ("fail_test", demo.fail_test, object),
        ("send_email", demo.send_email, demo.EmailPayload),
    ]


async def close() -> None:
    """Close what the shipped job types keep open in the running loop. Safe to call twice."""
    from fencepost.handlers import delivery

    await delivery.close()
