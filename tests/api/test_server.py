"""The server on a real socket: what is cut, what is refused, what is survived."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress

import httpx2
import msgspec
import pytest

from fencepost.api.app import Services
from fencepost.api.connection import Bounds
from fencepost.api.exchange import head_of
from fencepost.api.server import bind_socket
from fencepost.errors import InvalidSettings
from fencepost.settings import Settings
from fencepost.store.jobs import Jobs
from tests.api.support import PATIENCE_SECONDS, serving
from tests.patience import TIMER_SECONDS, limit

pytestmark = pytest.mark.anyio

HEAD = b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GOOD = HEAD + b'Content-Length: 15\r\n\r\n{"type":"echo"}'


async def test_requests_over_a_real_socket(services: Services) -> None:
    async with serving(services) as served, httpx2.AsyncClient(base_url=served.url) as client:
        response = await client.post("/jobs", json={"type": "echo"})
        assert response.status_code == 201
        assert "server" not in response.headers
        assert response.headers["date"]
        assert (await client.get(response.headers["location"])).json() == response.json()
        assert (await client.head("/healthz")).status_code == 200


async def test_one_connection_serves_many_requests(services: Services) -> None:
    async with serving(services) as served, served.connection() as wire:
        await wire.send(GOOD + GOOD)
        await wire.send(GOOD)
        for _ in range(3):
            status, headers, _ = await wire.answer()
            assert (status, "connection" in headers) == (201, False)


async def test_large_bodies_leave_the_connection_as_it_was(services: Services) -> None:
    body = b'{"type":"echo","payload":"%s"}' % (b"x" * 200_000)
    async with serving(services) as served, served.connection() as wire:
        for _ in range(3):
            await wire.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            status, _, record = await wire.answer()
            assert (status, len(record) > 200_000) == (201, True)


async def test_what_answers_tell_apart_is_never_split_in_two() -> None:
    assert head_of(204, [(b"allow", b"GET")]) == b"HTTP/1.1 204 No Content\r\nallow: GET\r\n\r\n"
    for value in (b"a\r\nset-cookie: b", b"a\nb", b"a\rb"):
        with pytest.raises(RuntimeError, match="line end"):
            head_of(200, [(b"x-request-id", value)])


async def test_a_request_may_come_byte_by_byte(services: Services) -> None:
    async with serving(services) as served, served.connection() as wire:
        for n in range(len(GOOD)):
            await wire.send(GOOD[n : n + 1])
        assert (await wire.answer())[0] == 201


async def test_chunks_are_read(services: Services) -> None:
    async with serving(services) as served, served.connection() as wire:
        await wire.send(HEAD + b'Transfer-Encoding: chunked\r\n\r\n4\r\n{"ty\r\nb;x=y\r\npe":"echo"}\r\n0\r\n\r\n')
        assert (await wire.answer())[0] == 201


async def test_the_server_asks_for_a_body_that_waits_to_be_asked_for(services: Services) -> None:
    async with serving(services) as served, served.connection() as wire:
        await wire.send(HEAD + b"Content-Length: 15\r\nExpect: 100-continue\r\n\r\n")
        assert (await wire.answer())[0] == 100
        await wire.send(b'{"type":"echo"}')
        assert (await wire.answer())[0] == 201


async def test_a_body_that_announces_too_much_is_not_asked_for(services: Services) -> None:
    async with serving(services) as served, served.connection() as wire:
        await wire.send(HEAD + b"Content-Length: 1000000000\r\nExpect: 100-continue\r\n\r\n")
        status, headers, _ = await wire.answer()
        assert (status, headers["connection"]) == (413, "close")
        assert await wire.closed() == b""


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_refusal_for_size_reaches_its_sender(services: Services, *, chunked: bool) -> None:
    body = b'{"' + b"k" * 10_000_000 + b'":1}'

    async def pieces() -> object:
        for start in range(0, len(body), 1 << 16):
            yield body[start : start + (1 << 16)]

    async with serving(services) as served, httpx2.AsyncClient(base_url=served.url, timeout=PATIENCE_SECONDS) as client:
        response = await client.post(
            "/jobs",
            content=pieces() if chunked else body,  # type: ignore[arg-type]
            headers={"content-type": "application/json"},
        )
        assert response.status_code == 413
        assert "1,064,960 bytes" in response.json()["error"]
        assert (await client.post("/jobs", json={"type": "echo"})).status_code == 201


NOT_HTTP: list[tuple[str, bytes]] = [
    ("both lengths", HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("both lengths, reversed", HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
    ("two lengths", HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef"),
    ("negative length", HEAD + b"Content-Length: -5\r\n\r\n"),
    ("signed length", HEAD + b"Content-Length: +15\r\n\r\n"),
    ("worded length", HEAD + b"Content-Length: many\r\n\r\n"),
    ("odd encoding", HEAD + b"Transfer-Encoding: gzip\r\n\r\nabc"),
    ("chunked twice over", HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
    ("chunk garbage", HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
    ("chunk longer than said", HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabcdef\r\n0\r\n\r\n"),
    ("bare line feeds", b"GET / HTTP/1.1\nHost: localhost\n\n"),
    ("space before a colon", b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n"),
    ("folded header", b"GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n"),
    ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    ("not a method", b"HELLO WORLD\r\n\r\n"),
    ("raw bytes in the path", b"GET /\xff HTTP/1.1\r\n\r\n"),
    ("raw bytes in the query", b"GET /jobs?type=\xff HTTP/1.1\r\n\r\n"),
    ("a tunnel", b"CONNECT example.org:443 HTTP/1.1\r\n\r\n"),
]


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in NOT_HTTP])
async def test_what_is_not_http_is_refused_and_cut(services: Services, jobs: Jobs, data: bytes) -> None:
    async with serving(services) as served:
        async with served.connection() as wire:
            await wire.send(data)
            status, headers, body = await wire.answer()
            assert status == 400
            assert body == b'{"error":"this can\'t be read as an HTTP/1.1 request"}'
            assert (headers["connection"], headers["x-error-code"]) == ("close", "bad_request")
            assert headers["x-request-id"]
            assert await wire.closed() == b""
        assert (await jobs.audit())["jobs"] == 0
        async with served.connection() as wire:
            await wire.send(GOOD)
            assert (await wire.answer())[0] == 201


async def test_a_good_request_before_a_bad_one_is_answered(services: Services) -> None:
    async with serving(services) as served, served.connection() as wire:
        await wire.send(GOOD + b"garbage\r\n\r\n")
        status, _, _ = await wire.answer()
        assert status == 201
        assert await wire.closed() == b""


async def test_a_missing_length_is_an_empty_body(services: Services) -> None:
    async with serving(services) as served, served.connection() as wire:
        await wire.send(HEAD + b"\r\n")
        status, _, body = await wire.answer()
        assert (status, b"empty" in body) == (400, True)


async def test_a_length_that_is_too_short_makes_two_bad_requests(services: Services, jobs: Jobs) -> None:
    async with serving(services) as served, served.connection() as wire:
        await wire.send(HEAD + b'Content-Length: 5\r\n\r\n{"type":"echo"}')
        status, _, body = await wire.answer()
        assert (status, b"not valid JSON" in body) == (400, True)
        await wire.closed()
    assert (await jobs.audit())["jobs"] == 0


async def test_a_length_that_is_too_long_stores_nothing(services: Services, jobs: Jobs) -> None:
    async with serving(services) as served:
        async with served.connection() as wire:
            await wire.send(HEAD + b'Content-Length: 500\r\n\r\n{"type":"echo"}')
            wire.writer.write_eof()
            await wire.closed()
        async with served.connection() as wire:
            await wire.send(GOOD)
            assert (await wire.answer())[0] == 201
    assert (await jobs.audit())["jobs"] == 1


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nA: " + b"x" * 70_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: " + b"b" * 1_000_000,
        GOOD + b"GET / HTTP/1.1\r\nA: " + b"x" * 70_000 + b"\r\n\r\n",
    ],
    ids=["one field", "path", "fields", "endless", "second request"],
)
async def test_a_large_head_is_refused_and_cut(services: Services, head: bytes) -> None:
    async with serving(services) as served, served.connection() as wire:
        wire.writer.write(head)
        status, headers, _ = await wire.answer()
        if head.startswith(GOOD):
            assert status == 201
        else:
            assert (status, headers["x-error-code"], headers["connection"]) == (431, "headers_too_large", "close")
        await wire.closed()


async def test_an_upgrade_is_answered_as_if_not_asked_for(services: Services) -> None:
    async with serving(services) as served, served.connection() as wire:
        await wire.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert (await wire.answer())[0] == 200
        assert await wire.closed() == b""


# --- deadlines, one at a time made short: a machine that stalls would have one that isn't meant come first

PATIENT = Bounds(idle_seconds=60, keep_alive_seconds=60, head_seconds=60, body_seconds=60)


async def test_a_silent_connection_is_closed(services: Services) -> None:
    bounds = msgspec.structs.replace(PATIENT, idle_seconds=0.15)
    async with serving(services, bounds=bounds) as served, served.connection() as wire:
        assert await wire.closed() == b""


@pytest.mark.parametrize("start", [b"GET /", b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"\r\n"])
async def test_a_trickled_head_is_cut(services: Services, start: bytes) -> None:
    bounds = msgspec.structs.replace(PATIENT, head_seconds=0.15)
    async with serving(services, bounds=bounds) as served, served.connection() as wire:
        await wire.send(start)

        async def trickle() -> None:
            # Each byte would push back a deadline that counts from the last one. Past the transport, which lets go of
            # an answer that it hasn't read yet when a byte comes too late to be written.
            number = wire.writer.get_extra_info("socket").fileno()
            with suppress(ConnectionError):
                while True:
                    os.write(number, b"\r\n" if start == b"\r\n" else b"a")
                    await asyncio.sleep(0.02)

        trickling = asyncio.create_task(trickle())
        status, headers, _ = await wire.answer()
        trickling.cancel()
        assert (status, headers["x-error-code"], headers["connection"]) == (408, "timeout", "close")
        await wire.closed()
        await asyncio.wait([trickling])
        assert trickling.cancelled() or trickling.exception() is None


async def test_a_trickled_body_is_cut_where_it_is_read(services: Services, jobs: Jobs) -> None:
    async with serving(services, bounds=PATIENT, body_seconds=0.15) as served, served.connection() as wire:
        await wire.send(HEAD + b'Content-Length: 500\r\n\r\n{"type"')
        status, headers, body = await wire.answer()
        assert (status, headers["x-error-code"], headers["connection"]) == (408, "timeout", "close")
        assert b"did not arrive within 0.15 seconds" in body
        assert await wire.closed() == b""
    assert (await jobs.audit())["jobs"] == 0


async def test_a_trickled_body_is_cut_where_nobody_reads_it(services: Services) -> None:
    bounds = msgspec.structs.replace(PATIENT, body_seconds=0.15)
    async with serving(services, bounds=bounds) as served, served.connection() as wire:
        await wire.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\nabc")
        assert (await wire.answer())[0] == 200
        # Which is late, if this machine stands still here.
        with suppress(ConnectionError):
            await wire.send(b"d")
        assert await wire.closed() == b""


async def test_slow_connections_do_not_hold_up_others(services: Services) -> None:
    async with serving(services) as served:
        slow = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(200)]
        for _, writer in slow:
            writer.write(b"POST /jobs HTTP/1.1\r\nHost: localhost\r\n")
        async with served.connection() as wire:
            await wire.send(GOOD)
            assert (await wire.answer())[0] == 201
        for _, writer in slow:
            writer.close()


@pytest.mark.slow
async def test_a_kept_connection_is_closed_so_long_after_its_last_answer(services: Services) -> None:
    # Twice the pause is longer than the deadline, which begins anew with each answer.
    kept, pause = 2, 1.1
    bounds = msgspec.structs.replace(PATIENT, keep_alive_seconds=kept)
    async with serving(services, bounds=bounds) as served, served.connection() as wire:
        for _ in range(3):
            # It is answered after this, and its answer may have been under way for a while when it is read.
            asked_at = asyncio.get_running_loop().time()
            await wire.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await wire.answer())[0] == 200
            await asyncio.sleep(pause)
        assert await wire.closed() == b""
        assert kept - TIMER_SECONDS <= asyncio.get_running_loop().time() - asked_at < kept + limit(4)


# --- start and stop


async def test_requests_in_flight_finish(services: Services) -> None:
    entered, release = asyncio.Event(), asyncio.Event()
    enqueue = services.jobs.enqueue

    async def slowly(*arguments: object) -> object:
        entered.set()
        await release.wait()
        return await enqueue(*arguments)  # type: ignore[arg-type]

    services.jobs.enqueue = slowly  # type: ignore[method-assign,assignment]
    async with serving(services) as served, served.connection() as wire:
        await wire.send(GOOD)
        await asyncio.wait_for(entered.wait(), PATIENCE_SECONDS)
        services.readiness.start_draining()
        served.server.stop()
        release.set()
        status, headers, _ = await wire.answer()
        assert (status, headers["connection"]) == (201, "close")
        assert await wire.closed() == b""


async def test_draining_ends_connections(services: Services) -> None:
    async with serving(services) as served, served.connection() as wire:
        await wire.send(GOOD)
        assert (await wire.answer())[0] == 201
        services.readiness.start_draining()
        await wire.send(GOOD)
        status, headers, _ = await wire.answer()
        assert (status, headers["connection"]) == (201, "close")
        assert await wire.closed() == b""


def test_a_port_in_use_is_said_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidSettings, match=f"HTTP_ADDR: port {port} on 127.0.0.1 is in use; "):
            bind_socket(Settings(http_port=port))


def test_two_of_ours_do_not_share_a_port() -> None:
    with bind_socket(Settings(http_port=0)) as first, pytest.raises(InvalidSettings, match="is in use"):
        bind_socket(Settings(http_port=first.getsockname()[1]))


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("no-such-host.invalid", "HTTP_ADDR: the host 'no-such-host.invalid' has no address"),
        ("192.0.2.1", "HTTP_ADDR: 192.0.2.1 is not an address of this machine"),
        ("x" * 300, "has no address"),
    ],
)
def test_an_address_that_is_not_ours_is_said_so(host: str, says: str) -> None:
    with pytest.raises(InvalidSettings, match=says):
        bind_socket(Settings(http_host=host, http_port=0))
