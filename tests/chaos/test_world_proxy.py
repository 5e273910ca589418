"""The proxy does to a connection what it says, to the byte, and to no other connection."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from chaos.world import Proxy, WorldError
from tests.chaos.world_support import eventually
from tests.patience import TIMER_SECONDS


class Echo:
    """A server that answers each byte with itself, and remembers what came."""

    def __init__(self) -> None:
        self.received = b""
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._server.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        with link:
            try:
                while data := link.recv(65536):
                    self.received += data
                    link.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        if self._server.fileno() >= 0:
            self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.address) as proxy:
        yield proxy


def connect(proxy: Proxy, name: str = "one") -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.listen(name)), timeout=10)


def ask(link: socket.socket, text: bytes) -> bytes:
    """Send *text*, and take as many bytes back, or those that came before the end."""
    link.sendall(text)
    return take(link, len(text))


def take(link: socket.socket, count: int) -> bytes:
    got = b""
    try:
        while len(got) < count and (data := link.recv(count - len(got))):
            got += data
    except ConnectionResetError:
        pass
    return got


def is_silent(link: socket.socket) -> bool:
    link.settimeout(0.2)
    try:
        link.recv(1)
    except TimeoutError:
        return True
    except OSError:
        return False
    finally:
        link.settimeout(10)
    return False


def test_it_passes_everything_on(proxy: Proxy) -> None:
    text = bytes(range(256)) * 20_000
    with connect(proxy) as link:
        sender = threading.Thread(target=link.sendall, args=(text,))
        sender.start()
        assert take(link, len(text)) == text
        sender.join()
    figures = proxy.figures()["one"]
    assert (figures.accepted, figures.requests_bytes, figures.answers_bytes) == (1, len(text), len(text))


def test_cut_resets_one_client_and_no_other(proxy: Proxy) -> None:
    with connect(proxy, "one") as one, connect(proxy, "two") as two:
        assert (ask(one, b"a"), ask(two, b"b")) == (b"a", b"b")
        proxy.cut("one")
        with pytest.raises(ConnectionResetError):
            one.recv(1)
        assert ask(two, b"c") == b"c"
    with connect(proxy, "one") as again:
        assert ask(again, b"d") == b"d"


def test_refuse_is_a_refused_connection_and_the_port_stays_the_same(proxy: Proxy) -> None:
    port = proxy.listen("one")
    with connect(proxy) as link:
        assert ask(link, b"a") == b"a"
        proxy.refuse("one")
        assert take(link, 1) == b""
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.restore("one")
    assert proxy.listen("one") == port
    with connect(proxy) as link:
        assert ask(link, b"b") == b"b"


def test_swallow_keeps_everything_open_and_silent(proxy: Proxy, echo: Echo) -> None:
    with connect(proxy) as before:
        assert ask(before, b"a") == b"a"
        proxy.swallow("one")
        before.sendall(b"lost")
        with connect(proxy) as during:
            during.sendall(b"lost too")
            assert is_silent(before)
            assert is_silent(during)
        assert echo.received == b"a"
        proxy.restore("one")
        assert take(before, 1) == b""


def test_a_forgotten_connection_stays_silent_for_ever(proxy: Proxy) -> None:
    with connect(proxy) as before:
        assert ask(before, b"a") == b"a"
        proxy.forget("one")
        before.sendall(b"b")
        with connect(proxy) as after:
            assert ask(after, b"c") == b"c"
        proxy.restore("one")
        assert is_silent(before)


def test_a_lost_answer_is_to_a_request_that_was_carried_out(proxy: Proxy, echo: Echo) -> None:
    with connect(proxy) as link:
        assert ask(link, b"a") == b"a"
        proxy.lose_answers("one")
        link.sendall(b"commit")
        assert is_silent(link)
        assert eventually(lambda: echo.received == b"acommit")
        proxy.restore("one")
        assert take(link, 1) == b""


def test_delay_is_there_each_way_and_keeps_the_order(proxy: Proxy) -> None:
    with connect(proxy) as link:
        assert ask(link, b"a") == b"a"
        proxy.delay("one", seconds=0.1)
        begun = time.monotonic()
        link.sendall(b"first,")
        assert ask(link, b"second")[:6] == b"first,"
        assert time.monotonic() - begun >= 0.2 - 2 * TIMER_SECONDS
        assert take(link, 6) == b"second"
        proxy.restore("one")
        assert ask(link, b"third") == b"third"


def test_throttle_passes_no_more_than_that(proxy: Proxy) -> None:
    with connect(proxy) as link:
        proxy.throttle("one", bytes_per_second=100_000)
        begun = time.monotonic()
        assert len(ask(link, b"x" * 30_000)) == 30_000
        assert time.monotonic() - begun >= 0.3 - TIMER_SECONDS


@pytest.mark.parametrize("direction", ["requests", "answers"])
def test_cut_after_cuts_in_the_middle_of_a_message(proxy: Proxy, echo: Echo, direction: str) -> None:
    with connect(proxy) as link:
        assert ask(link, b"a") == b"a"
        proxy.cut_after("one", count=5, direction=direction)
        answer = ask(link, b"0123456789")
    # Of requests the server may have answered some before the end, or none.
    assert b"01234".startswith(answer) if direction == "requests" else answer == b"01234"
    assert eventually(lambda: echo.received == (b"a01234" if direction == "requests" else b"a0123456789"))
    with connect(proxy) as again:
        assert len(ask(again, b"abcdefgh")) <= 5
    proxy.restore("one")
    with connect(proxy) as healthy:
        assert ask(healthy, b"abcdefgh") == b"abcdefgh"


def test_target_leads_everybody_elsewhere(proxy: Proxy) -> None:
    other = Echo()
    elsewhere = Echo()
    with (
        connect(proxy) as link,
        socket.create_connection(("127.0.0.1", proxy.listen("fixed", target=elsewhere.address)), timeout=10) as fixed,
    ):
        assert ask(link, b"a") == b"a"
        assert ask(fixed, b"b") == b"b"
        proxy.target(other.address)
        assert take(link, 1) == b""
        assert ask(fixed, b"c") == b"c"
    with connect(proxy) as link:
        assert ask(link, b"d") == b"d"
    assert other.received == b"d"
    assert elsewhere.received == b"bc"
    other.close()
    elsewhere.close()


def test_a_server_that_is_away_ends_the_connection(proxy: Proxy, echo: Echo) -> None:
    echo.close()
    # It may be over before this end has seen that it began.
    with suppress(ConnectionResetError), connect(proxy) as link:
        assert take(link, 1) == b""
    assert eventually(lambda: proxy.figures()["one"].open == 0)


def test_mistakes_are_named(proxy: Proxy) -> None:
    with pytest.raises(WorldError, match="nobody"):
        proxy.cut("nobody")
    proxy.close()
    with pytest.raises(WorldError, match="does not run"):
        proxy.cut()
