"""The job types to play with, and the list of all that ship."""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec
import pytest

from fencepost import handlers
from fencepost.errors import Permanent, Retry
from fencepost.handlers.demo import EmailPayload, SleepPayload, fail_test, send_email, sleep
from fencepost.handlers.webhook import WebhookPayload
from tests.patience import TIMER_SECONDS

from .receiver import a_context


@pytest.mark.anyio
async def test_sleep_waits() -> None:
    started = time.monotonic()
    assert await sleep(a_context(), SleepPayload(duration="50ms")) == {"slept_seconds": 0.05}
    assert time.monotonic() - started >= 0.05 - TIMER_SECONDS


@pytest.mark.anyio
async def test_sleep_can_be_cancelled() -> None:
    task = asyncio.ensure_future(sleep(a_context(), SleepPayload(duration="1h")))
    await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("duration", ["", "2", "soon", "-2s", "2 s", "1s2", "999999999999h"])
@pytest.mark.anyio
async def test_a_bad_duration_is_permanent(duration: str) -> None:
    with pytest.raises(Permanent, match=r"^duration: "):
        await sleep(a_context(), SleepPayload(duration=duration))


@pytest.mark.parametrize("payload", [None, {}, [], "x", 3])
@pytest.mark.anyio
async def test_fail_test_always_fails(payload: object) -> None:
    with pytest.raises(Retry, match="attempt 3 of 5") as caught:
        await fail_test(a_context(), payload)
    assert caught.value.after is None


@pytest.mark.parametrize("to", ["a@example.com", ["a@example.com", "b@example.com"]])
@pytest.mark.anyio
async def test_send_email_only_says_what_it_would_do(to: str | list[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fencepost.handlers"):
        result = await send_email(a_context(), EmailPayload(to=to, subject="Hi\nthere"))
    assert result == {"sent": False, "to": [to] if isinstance(to, str) else to}
    (record,) = caplog.records
    assert "a@example.com" in record.getMessage()
    assert "\n" not in record.getMessage()


@pytest.mark.parametrize(
    ("payload_type", "payload", "field"),
    [
        (SleepPayload, {}, "duration"),
        (SleepPayload, {"duration": 2}, "duration"),
        (WebhookPayload, {}, "url"),
        (WebhookPayload, {"url": 1}, "url"),
        (WebhookPayload, {"url": "x", "headers": {"a": 1}}, "headers"),
        (WebhookPayload, {"url": "x", "headers": None}, "headers"),
        (EmailPayload, {}, "to"),
        (EmailPayload, {"to": ""}, "to"),
        (EmailPayload, {"to": "  "}, "to"),
        (EmailPayload, {"to": []}, "to"),
        (EmailPayload, {"to": ["a", ""]}, "to"),
        (EmailPayload, {"to": {"a": 1}}, "to"),
    ],
)
def test_a_bad_payload_names_its_field(payload_type: type, payload: object, field: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=field):
        msgspec.json.decode(msgspec.json.encode(payload), type=payload_type, strict=True)


def test_unknown_fields_are_ignored() -> None:
    for _, _, payload_type in handlers.shipped(allow_private=False):
        raw = b'{"duration":"1s","url":"x","to":"a","more":1}'
        msgspec.json.decode(raw, type=payload_type, strict=True)


@pytest.mark.anyio
async def test_the_shipped_job_types() -> None:
    assert [name for name, *_ in handlers.shipped(allow_private=True)] == [
        "sleep",
        "webhook",
        "fail_test",
        "send_email",
    ]
    await handlers.close()
    await handlers.close()
