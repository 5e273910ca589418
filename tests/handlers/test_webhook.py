"""How a webhook's answer ends the attempt, and what a payload may not do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fencepost
from fencepost.errors import Permanent, Retry
from fencepost.handlers.delivery import Courier
from fencepost.handlers.webhook import EXCERPT_BYTES, WebhookPayload, excerpt, read_retry_after, webhook

from .receiver import Names, Receiver, Respond, a_context, answering, receiving, writing

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


async def deliver(receiver: Receiver, *, path: str = "/in?token=secret", **payload: Any) -> dict[str, object]:
    handler = webhook(allow_private=True, courier=Courier(allow_private=True, resolver=Names()))
    given = msgspec.json.encode({"url": f"http://hooks.test:{receiver.port}{path}", **payload})
    return await handler(a_context(), msgspec.json.decode(given, type=WebhookPayload, strict=True))


async def deliver_to(respond: Respond) -> dict[str, object]:
    async with receiving(respond) as receiver:
        return await deliver(receiver)


@pytest.mark.anyio
async def test_what_is_sent() -> None:
    async with receiving(answering("200 OK", b'{"ok":true}')) as receiver:
        body = msgspec.Raw(b'{"big":12345678901234567890123,"n":1.00,"s":"\\u00e9"}')
        result = await deliver(receiver, body=body, headers={"Authorization": "Bearer x", "X-Empty": ""})
    duration = result.pop("duration_ms")
    assert isinstance(duration, int)
    assert duration >= 0
    assert result == {"status_code": 200, "body": '{"ok":true}', "truncated": False}
    (request,) = receiver.requests
    assert request.line == "POST /in?token=secret HTTP/1.1"
    assert request.body == bytes(body)
    assert {name.lower(): value for name, value in request.headers} == {
        "host": f"hooks.test:{receiver.port}",
        "content-type": "application/json",
        "user-agent": f"fencepost/{fencepost.__version__}",
        "webhook-id": str(a_context().id),
        "x-fencepost-job-id": str(a_context().id),
        "x-fencepost-attempt": "3",
        "authorization": "Bearer x",
        "x-empty": "",
        "accept-encoding": "identity",
        "content-length": str(len(request.body)),
    }


@pytest.mark.anyio
async def test_a_body_left_out_is_an_empty_object() -> None:
    async with receiving(answering("204 No Content")) as receiver:
        await deliver(receiver)
    assert receiver.requests[0].body == b"{}"


@pytest.mark.anyio
async def test_a_payload_may_name_its_own_content() -> None:
    async with receiving(answering("200 OK")) as receiver:
        await deliver(receiver, headers={"content-type": "application/cloudevents+json", "USER-AGENT": "mine"})
    assert receiver.requests[0].header("Content-Type") == "application/cloudevents+json"
    assert receiver.requests[0].header("User-Agent") == "mine"


@pytest.mark.parametrize(
    "headers",
    [
        *({name: "x"} for name in ("Host", "hOsT", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade")),
        *({name: "x"} for name in ("Keep-Alive", "TE", "Trailer", "Proxy-Authorization", "Proxy-Connection", "Expect")),
        *({name: "x"} for name in ("Accept-Encoding", "Webhook-Id", "X-Fencepost-Job-Id", "x-fencepost-attempt")),
        *({name: "x"} for name in ("", " ", "a b", "a:", "a\r\nb", "a\x00", "ä", " a", "a ")),
        *({"X": value} for value in ("a\r\nHost: b", "a\nb", "a\rb", "a\x00b", "ä", " a", "a ", "\x7f", "\n")),
        {"X-A": "1", "x-a": "2"},
    ],
)
@pytest.mark.anyio
async def test_headers_that_are_refused(headers: dict[str, str]) -> None:
    async with receiving(answering("200 OK")) as receiver:
        with pytest.raises(Permanent, match=r"^headers: "):
            await deliver(receiver, headers=headers)
        assert receiver.connections == 0


@pytest.mark.parametrize("status", ["200 OK", "201 Created", "202 Accepted", "204 No Content", "299 Odd"])
@pytest.mark.anyio
async def test_success(status: str) -> None:
    assert (await deliver_to(answering(status)))["status_code"] == int(status[:3])


@pytest.mark.parametrize("status", ["429 Slow Down", "500 Oops", "502 Bad", "503 Busy", "504 Late", "599 Odd"])
@pytest.mark.anyio
async def test_what_may_pass_is_tried_again(status: str) -> None:
    with pytest.raises(Retry) as caught:
        await deliver_to(answering(status, b"come\x00 back\nlater"))
    assert str(caught.value).startswith("POST http://hooks.test:")
    assert str(caught.value).endswith(f"/in: the answer was {status[:3]}: come\ufffd back later")
    assert caught.value.after is None


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 408, 409, 410, 413, 418, 422, 425, 451])
@pytest.mark.anyio
async def test_what_will_not_pass_is_not_tried_again(status: int) -> None:
    with pytest.raises(Permanent, match=f"the answer was {status}: no"):
        await deliver_to(answering(f"{status} No", b"no", "Retry-After: 5"))


REDIRECTS: list[Callable[[Receiver, Receiver], str]] = [
    lambda own, other: "http://169.254.169.254/latest/meta-data/",
    lambda own, other: f"http://127.0.0.1:{other.port}/",
    lambda own, other: f"http://elsewhere.test:{other.port}/",
    lambda own, other: f"https://hooks.test:{own.port}/in",
    lambda own, other: f"http://hooks.test:{own.port}/in?token=secret",
    lambda own, other: "/elsewhere",
    lambda own, other: "//elsewhere.test/",
    lambda own, other: "file:///etc/passwd",
    lambda own, other: "http://[bad",
    lambda own, other: "",
]


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308])
@pytest.mark.parametrize("location", REDIRECTS)
@pytest.mark.anyio
async def test_redirects_are_not_followed(status: int, location: Callable[[Receiver, Receiver], str]) -> None:
    async with receiving(answering("200 OK")) as other:
        targets: list[str] = []

        async def redirect(writer: Any) -> None:
            await answering(f"{status} Go", b"", f"Location: {targets[0]}")(writer)

        async with receiving(redirect) as own:
            targets.append(location(own, other))
            with pytest.raises(Permanent, match=rf"the answer was {status}, and redirects aren't followed"):
                await deliver(own)
        assert (len(own.requests), other.connections) == (1, 0)


@pytest.mark.parametrize(
    ("value", "after"),
    [
        ("60", 60.0),
        (" 60 ", 60.0),
        ("0", None),
        ("315360000", 86400.0),
        ("9" * 5000, 86400.0),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90.0),
        (format_datetime(NOW - timedelta(seconds=90), usegmt=True), None),
        (format_datetime(NOW + timedelta(days=3650), usegmt=True), 86400.0),
        ("Sunday, 01-Mar-26 12:01:00 GMT", 60.0),
        ("Sun, 01 Mar 2026 12:01:00", 60.0),
        ("Sun, 01 Mar 2026 12:01:00 -0000", 60.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86400.0),
        ("Fri, 31 Dec 99999 23:59:59 GMT", None),
        ("Sun, 99 Mar 2026 12:01:00 GMT", None),
        ("-5", None),
        ("1.5", None),
        ("1e9", None),
        ("inf", None),
        ("nan", None),
        ("６０", None),
        ("soon", None),
        ("60 seconds", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after(value: str | None, after: float | None) -> None:
    assert read_retry_after(value, now=NOW.timestamp()) == after


@given(st.text())
def test_no_retry_after_is_too_odd(value: str) -> None:
    after = read_retry_after(value, now=NOW.timestamp())
    assert after is None or 0 < after <= 86400


@pytest.mark.parametrize("status", ["429 Slow Down", "503 Busy"])
@pytest.mark.anyio
async def test_retry_after_is_honoured(status: str) -> None:
    with pytest.raises(Retry) as caught:
        await deliver_to(answering(status, b"", "Retry-After: 60"))
    assert caught.value.after == 60.0


@pytest.mark.anyio
async def test_no_answer_is_tried_again_and_says_nothing_secret() -> None:
    with pytest.raises(Retry, match=r"^POST http://hooks\.test:\d+/in: ") as caught:
        await deliver_to(writing())
    assert "secret" not in str(caught.value)
    assert "127.0.0.1" not in str(caught.value)


@pytest.mark.anyio
async def test_the_attempts_own_timeout_counts() -> None:
    async with receiving(writing(then_hang=True)) as receiver:
        handler = webhook(allow_private=True, courier=Courier(allow_private=True, resolver=Names()))
        with pytest.raises(Retry, match=r"no answer within 0\.1 seconds"):
            await handler(a_context(timeout_seconds=0.1), WebhookPayload(url=f"http://hooks.test:{receiver.port}/"))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            "10.1.2.3",
            "'hooks.test' is, or resolves to, a private address; set WEBHOOK_ALLOW_PRIVATE=true to allow it",
        ),
        (
            "169.254.169.254",
            "'hooks.test' is, or resolves to, a cloud metadata service, which is never allowed",
        ),
    ],
)
@pytest.mark.anyio
async def test_a_forbidden_address_is_permanent_and_not_told(answer: str, message: str) -> None:
    handler = webhook(allow_private=False, courier=Courier(allow_private=False, resolver=Names([[answer]])))
    with pytest.raises(Permanent) as caught:
        await handler(a_context(), WebhookPayload(url="https://hooks.test/in?token=secret"))
    assert str(caught.value) == f"POST https://hooks.test/in: {message}"


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8080/", "http://localhost/", "http://[::1]/", "http://[::ffff:7f00:1]/"]
)
@pytest.mark.anyio
async def test_the_handler_as_shipped_refuses_loopback(url: str) -> None:
    with pytest.raises(Permanent, match="WEBHOOK_ALLOW_PRIVATE=true"):
        await webhook(allow_private=False)(a_context(), WebhookPayload(url=url))


@pytest.mark.parametrize(
    "url", ["", "x", "ftp://x/", "http://user:secret@hooks.test/", "http://2130706433/", "http://x:22/"]
)
@pytest.mark.anyio
async def test_a_bad_url_is_permanent(url: str) -> None:
    with pytest.raises(Permanent, match=r"^url: ") as caught:
        await webhook(allow_private=False)(a_context(), WebhookPayload(url=url))
    assert "secret" not in str(caught.value)


@pytest.mark.anyio
async def test_only_the_beginning_of_an_answer_is_kept() -> None:
    result = await deliver_to(answering("200 OK", b"x" * 5000))
    assert (result["body"], result["truncated"]) == ("x" * EXCERPT_BYTES, True)


@given(st.binary(max_size=EXCERPT_BYTES * 2))
def test_an_excerpt_is_always_fit_to_be_stored(body: bytes) -> None:
    text = excerpt(body)
    assert len(text.encode()) <= EXCERPT_BYTES
    assert not any(character < " " and character not in "\t\r\n" for character in text)


def test_an_excerpt_of_noise_stays_small() -> None:
    assert len(excerpt(b"\xff" * EXCERPT_BYTES).encode()) <= EXCERPT_BYTES
    assert excerpt(b"x" * (EXCERPT_BYTES - 1) + "é".encode()).strip("x") in ("", "\ufffd")


def test_the_http_client_is_not_loaded_before_it_is_needed() -> None:
    program = "import sys, fencepost, fencepost.handlers; print([m for m in sys.modules if 'httpcore' in m])"
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=20, env=environment
    )
    assert done.stdout.strip() == "[]"
