"""The client against a receiver that misbehaves, and against names that lead inward."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpcore2
import pytest

from fencepost.handlers import delivery
from fencepost.handlers import dialler as dialling
from fencepost.handlers.delivery import Answer, Courier
from fencepost.handlers.dialler import AddressRefused, DeliveryFailed, GuardedBackend
from fencepost.handlers.guard import parse_target

from .receiver import Names, Receiver, Respond, answering, receiving, writing

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


async def post(
    courier: Courier,
    receiver: Receiver,
    *,
    name: str = "hooks.test",
    seconds: float = 5.0,
    scheme: str = "http",
) -> Answer:
    target = parse_target(f"{scheme}://{name}:{receiver.port}/in?token=secret", any_port=True)
    async with asyncio.timeout(8):
        return await courier.post(target, b"{}", headers=[], seconds=seconds)


async def post_to(respond: Respond, *, seconds: float = 5.0) -> Answer:
    async with receiving(respond) as receiver:
        return await post(Courier(allow_private=True, resolver=Names()), receiver, seconds=seconds)


async def test_an_answer_is_returned_whatever_its_status() -> None:
    assert await post_to(answering("200 OK", b"fine")) == Answer(200, None, b"fine", False)
    assert await post_to(answering("204 No Content")) == Answer(204, None, b"", False)
    assert await post_to(answering("503 Busy", b"", "Retry-After: 60")) == Answer(503, "60", b"", False)


async def test_a_connection_is_reused_for_its_own_host_only() -> None:
    async with receiving(answering("200 OK", b"fine")) as receiver:
        courier = Courier(allow_private=True, resolver=Names())
        for _ in range(3):
            await post(courier, receiver, name="one.test")
        assert receiver.connections == 1
        await post(courier, receiver, name="two.test")
        assert receiver.connections == 2
        assert [request.header("host") for request in receiver.requests[2:]] == [
            f"one.test:{receiver.port}",
            f"two.test:{receiver.port}",
        ]


async def test_cookies_are_not_kept() -> None:
    async with receiving(answering("200 OK", b"", "Set-Cookie: session=1; Path=/")) as receiver:
        courier = Courier(allow_private=True, resolver=Names())
        await post(courier, receiver)
        await post(courier, receiver)
        assert [request.header("cookie") for request in receiver.requests] == [None, None]


async def test_proxies_from_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving(answering("200 OK")) as proxy, receiving(answering("200 OK")) as receiver:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        await post(Courier(allow_private=True, resolver=Names()), receiver)
        assert (len(receiver.requests), proxy.connections) == (1, 0)


async def test_a_huge_body_is_cut_and_its_connection_given_up() -> None:
    chunk = b"x" * 65536
    huge = writing(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n", *[chunk] * 2000)
    async with receiving(huge) as receiver:
        courier = Courier(allow_private=True, resolver=Names())
        answer = await post(courier, receiver)
        assert (answer.status, len(answer.body), answer.truncated) == (200, delivery.BODY_BYTES, True)
        await post(courier, receiver)
        assert receiver.connections == 2


async def test_a_body_of_just_the_allowed_size_is_whole() -> None:
    body = b"x" * delivery.BODY_BYTES
    assert await post_to(answering("200 OK", body)) == Answer(200, None, body, False)


async def test_a_compressed_body_is_never_unpacked() -> None:
    bomb = gzip.compress(bytes(20_000_000))
    assert len(bomb) < delivery.BODY_BYTES
    async with receiving(answering("200 OK", bomb, "Content-Encoding: gzip")) as receiver:
        answer = await post(Courier(allow_private=True, resolver=Names()), receiver)
        assert answer.body == bomb
        assert receiver.requests[0].header("accept-encoding") == "identity"


async def test_an_endless_slow_body_gives_the_slot_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "BODY_SECONDS", 0.2)

    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"1\r\nx\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    answer = await post_to(drip, seconds=60.0)
    assert (answer.status, answer.truncated) == (200, True)
    assert set(answer.body) == set(b"x")


async def test_the_total_deadline_cuts_a_body_too() -> None:
    stalled = writing(b"HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\nhalf", then_hang=True)
    assert await post_to(stalled, seconds=0.4) == Answer(201, None, b"half", True)


async def test_a_body_that_breaks_off_keeps_its_status() -> None:
    broken = writing(b"HTTP/1.1 500 Oops\r\nContent-Length: 10\r\n\r\nhalf")
    assert await post_to(broken) == Answer(500, None, b"half", True)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b"HTTP/1.1 200 OK\r\nContent-Le"],
        [b"SSH-2.0-OpenSSH_9.6\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n"],
        [b"\x00\xff" * 50],
    ],
    ids=["closed at once", "half a head", "another protocol", "endless head", "noise"],
)
async def test_no_sensible_answer_is_a_failure(parts: list[bytes]) -> None:
    with pytest.raises(DeliveryFailed):
        await post_to(writing(*parts))


@pytest.mark.parametrize("parts", [[], [b"HTTP/1.1 200 OK\r\n"], [b"HTTP/1.1 100 Continue\r\n\r\n"]])
async def test_a_silent_receiver_costs_no_more_than_the_deadline(parts: list[bytes]) -> None:
    with pytest.raises(DeliveryFailed, match=r"no answer within 0\.2 seconds"):
        await post_to(writing(*parts, then_hang=True), seconds=0.2)


async def test_a_closed_port_is_a_failure_that_does_not_name_the_address() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(DeliveryFailed) as caught:
            await post(Courier(allow_private=True, resolver=Names()), Receiver(port=closed.getsockname()[1]))
    assert str(caught.value) == "Connection refused"


async def test_cancelling_closes_the_connection() -> None:
    arrived = asyncio.Event()

    async def hang(writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await asyncio.Event().wait()

    async with receiving(hang) as receiver:
        courier = Courier(allow_private=True, resolver=Names())
        task = asyncio.create_task(post(courier, receiver))
        async with asyncio.timeout(5):
            await arrived.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert courier._pool().connections == []


async def test_closing_twice_and_using_it_again() -> None:
    async with receiving(answering("200 OK")) as receiver:
        courier = Courier(allow_private=True, resolver=Names())
        for _ in range(2):
            await post(courier, receiver)
            await courier.close()
            await courier.close()
        await delivery.close()
        assert receiver.connections == 2


class Dialler(httpcore2.AsyncNetworkBackend):
    """Notes what would be dialled."""

    def __init__(self, peer: str | None = None, *, dead: Iterable[str] = ()) -> None:
        self.dialled: list[str] = []
        self.streams: list[Stream] = []
        self._peer = peer
        self._dead = set(dead)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        self.dialled.append(host)
        if host in self._dead:
            raise httpcore2.ConnectTimeout("dead")
        self.streams.append(Stream(self._peer or host))
        return self.streams[-1]


class Stream(httpcore2.AsyncNetworkStream):
    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.closed = False

    async def aclose(self) -> None:
        self.closed = True

    def get_extra_info(self, info: str) -> object:
        return (self.peer, 80) if info == "server_addr" else None


async def test_what_was_judged_is_dialled_though_the_next_answer_would_differ() -> None:
    names = Names([["93.184.215.14"], ["127.0.0.1"]])
    dialler = Dialler()
    await GuardedBackend(names, allow_private=False, dialler=dialler).connect_tcp("rebind.test", 80)
    assert (names.asked, dialler.dialled) == (["rebind.test"], ["93.184.215.14"])


@pytest.mark.parametrize(
    "answers",
    [
        ["127.0.0.1"],
        ["::1"],
        ["93.184.215.14", "10.0.0.1"],
        ["10.0.0.1", "93.184.215.14"],
        ["2606:4700::1111", "::ffff:127.0.0.1"],
        ["1.1.1.1", "1.1.1.1", "1.1.1.1", "1.1.1.1", "1.1.1.1", "169.254.169.254"],
        ["fe80::1%eth0"],
        ["nonsense"],
    ],
)
async def test_one_forbidden_answer_refuses_the_name(answers: list[str]) -> None:
    dialler = Dialler()
    backend = GuardedBackend(Names([answers]), allow_private=False, dialler=dialler)
    with pytest.raises(AddressRefused, match=r"^'inward\.test' is, or resolves to, "):
        await backend.connect_tcp("inward.test", 80)
    assert dialler.dialled == []


async def test_a_peer_other_than_the_one_judged_is_hung_up_on() -> None:
    dialler = Dialler(peer="127.0.0.1")
    backend = GuardedBackend(Names([["1.1.1.1"]]), allow_private=False, dialler=dialler)
    with pytest.raises(AddressRefused):
        await backend.connect_tcp("odd.test", 80)
    assert [stream.closed for stream in dialler.streams] == [True]


async def test_the_next_address_is_tried_when_one_is_dead() -> None:
    dialler = Dialler(dead=["1.1.1.1", "1.1.1.2"])
    backend = GuardedBackend(Names([["1.1.1.1", "1.1.1.2", "1.1.1.3"]]), allow_private=False, dialler=dialler)
    await backend.connect_tcp("three.test", 80)
    assert dialler.dialled == ["1.1.1.1", "1.1.1.2", "1.1.1.3"]


async def test_no_more_than_a_few_addresses_are_tried() -> None:
    addresses = [f"1.1.1.{n}" for n in range(1, 100)]
    dialler = Dialler(dead=addresses)
    with pytest.raises(httpcore2.ConnectTimeout):
        await GuardedBackend(Names([addresses]), allow_private=False, dialler=dialler).connect_tcp("many.test", 80)
    assert dialler.dialled == addresses[: dialling.MOST_ADDRESSES]


async def test_unix_sockets_are_never_dialled() -> None:
    with pytest.raises(httpcore2.ConnectError):
        await GuardedBackend(Names(), allow_private=True).connect_unix_socket("/run/docker.sock")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "localhost", "LOCALHOST.", "①②⑦.0.0.1"])
async def test_literals_and_real_names_take_the_same_path(host: str) -> None:
    async with receiving(answering("200 OK")) as receiver:
        with pytest.raises(AddressRefused, match="a loopback address"):
            await post(Courier(allow_private=False), receiver, name=host)
        assert receiver.connections == 0


async def test_an_ipv6_literal_is_in_brackets_in_the_host_header() -> None:
    async with receiving(answering("200 OK")) as receiver:
        courier = Courier(allow_private=True, resolver=Names())
        await post(courier, receiver, name="[2606:4700::1111]")
        assert receiver.requests[0].header("host") == f"[2606:4700::1111]:{receiver.port}"


async def test_a_literal_is_reached_when_allowed() -> None:
    async with receiving(answering("200 OK")) as receiver:
        assert (await post(Courier(allow_private=True), receiver, name="127.0.0.1")).status == 200
        assert receiver.requests[0].header("host") == f"127.0.0.1:{receiver.port}"


@pytest.mark.parametrize("error", [socket.gaierror(-2, "Name or service not known"), UnicodeError("too long")])
async def test_a_name_that_does_not_resolve_is_a_failure(error: Exception) -> None:
    async def fail(host: str, port: int) -> list[str]:
        raise error

    with pytest.raises(DeliveryFailed, match=r"'gone\.test' can't be resolved"):
        await post(Courier(allow_private=False, resolver=fail), Receiver(port=80), name="gone.test")


async def test_a_name_without_addresses_is_a_failure() -> None:
    with pytest.raises(DeliveryFailed, match="has no address"):
        await post(Courier(allow_private=False, resolver=Names([[]])), Receiver(port=80))


@pytest.fixture(scope="module")
def certificate() -> Path:
    """A key and a self-signed certificate for hooks.test, good for a hundred years and for nothing but this."""
    return Path(__file__).parent / "tls"


def server_context(certificate: Path, names: list[str | None]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    return context


async def test_tls_and_host_keep_the_name_while_a_literal_is_dialled(certificate: Path) -> None:
    indicated: list[str | None] = []
    trust = ssl.create_default_context(cafile=certificate / "cert.pem")
    async with receiving(answering("200 OK"), tls=server_context(certificate, indicated)) as receiver:
        names = Names()
        courier = Courier(allow_private=True, resolver=names, ssl_context=trust)
        assert (await post(courier, receiver, scheme="https")).status == 200
        assert indicated == ["hooks.test"]
        assert receiver.requests[0].header("host") == f"hooks.test:{receiver.port}"
        assert names.asked == ["hooks.test"]


@pytest.mark.parametrize(("name", "trusted"), [("other.test", True), ("127.0.0.1", True), ("hooks.test", False)])
async def test_a_certificate_for_somebody_else_is_a_failure(certificate: Path, name: str, trusted: bool) -> None:
    trust = ssl.create_default_context(cafile=certificate / "cert.pem") if trusted else None
    async with receiving(answering("200 OK"), tls=server_context(certificate, [])) as receiver:
        courier = Courier(allow_private=True, resolver=Names(), ssl_context=trust)
        with pytest.raises(DeliveryFailed, match="the certificate can't be trusted"):
            await post(courier, receiver, name=name, scheme="https")
        assert receiver.requests == []


@pytest.mark.slow
async def test_https_to_a_server_without_tls_is_a_failure() -> None:
    async with receiving(answering("200 OK")) as receiver:
        with pytest.raises(DeliveryFailed):
            await post(Courier(allow_private=True, resolver=Names()), receiver, scheme="https", seconds=1.0)
