"""Every spelling that has been used to turn a server against its own network."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.handlers.guard import forbidden, judge, parse_target

PUBLIC = """
    1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 93.184.215.14 100.63.255.255 100.128.0.0 126.255.255.255
    128.0.0.0 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 191.255.255.255 192.0.1.0 192.0.3.0
    192.88.98.255 192.88.100.0
    192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 198.51.99.255 198.51.101.0
    203.0.112.255 203.0.114.0 223.255.255.255 168.63.129.15 168.63.129.17
    2001:200:: 2001:db7:ffff:: 2001:db9:: 2003:: 2000:: 2606:4700:4700::1111 2a00:1450:4001:80b::200e
    3ffe:: 3fff:1000:: ::ffff:1.1.1.1 ::ffff:8.8.8.8 ::ffff:0808:0808
"""

PRIVATE = """
    127.0.0.0 127.0.0.1 127.0.0.2 127.1.2.3 127.255.255.255 ::1 0:0:0:0:0:0:0:1
    ::ffff:127.0.0.1 ::ffff:7f00:1 0:0:0:0:0:ffff:7f00:0001 ::FFFF:127.255.255.255
    10.0.0.0 10.0.0.1 10.255.255.255 172.16.0.0 172.31.255.255 192.168.0.0 192.168.255.255
    ::ffff:10.0.0.1 ::ffff:172.16.0.1 ::ffff:192.168.1.1 ::ffff:c0a8:101
    169.254.0.0 169.254.1.1 169.254.255.255 ::ffff:169.254.1.1
    100.64.0.0 100.64.0.1 100.127.255.255 ::ffff:100.64.0.1 198.18.0.0 198.19.255.255
    fc00:: fc00::1 fd00::1 fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff
    fe80:: fe80::1 fe80::1%eth0 fe80::1%1 febf:ffff:: fec0:: fec0::1 feff:ffff::
    64:ff9b::1.1.1.1 64:ff9b::808:808 64:ff9b::127.0.0.1 64:ff9b::10.0.0.1 64:ff9b::7f00:1
    2606:4700:4700::1111%eth0 ::ffff:1.1.1.1%eth0 ::1%lo
"""

NEVER = """
    0.0.0.0 0.0.0.1 0.255.255.255 :: ::ffff:0.0.0.0
    192.0.0.0 192.0.0.1 192.0.0.8 192.0.0.170 192.0.0.255
    192.0.2.0 192.0.2.255 198.51.100.0 198.51.100.255 203.0.113.0 203.0.113.255
    192.88.99.0 192.88.99.1 192.88.99.255 ::ffff:192.88.99.1
    224.0.0.0 224.0.0.1 239.255.255.255 ::ffff:224.0.0.1 240.0.0.0 255.255.255.254 255.255.255.255
    ::ffff:255.255.255.255
    169.254.169.254 ::ffff:169.254.169.254 ::ffff:a9fe:a9fe 64:ff9b::169.254.169.254 64:ff9b::a9fe:a9fe
    169.254.170.2 169.254.170.23 100.100.100.200 ::ffff:100.100.100.200 192.0.0.192 168.63.129.16
    ::ffff:168.63.129.16 64:ff9b::168.63.129.16 fd00:ec2::254 fd00:ec2::23 fd20:ce::254 64:ff9b::0.0.0.0
    ::2 ::7f00:1 ::127.0.0.1 ::10.0.0.1 ::8.8.8.8 ::ffff:0:127.0.0.1 ::ffff:0:7f00:1
    64:ff9b:1::1 64:ff9b:1::127.0.0.1 64:ff9b:1:ffff:ffff:ffff:ffff:ffff 64:ff9b:0:0:1:: 65::
    100:: 100::1 100:0:0:1::1
    2001:: 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:0:7f00:1:: 2001::1 2001:1::1 2001:2::1 2001:4:112::1
    2001:10::1 2001:20::1 2001:1ff:ffff:: 2001:db8:: 2001:db8:ffff::1 3fff:: 3fff:fff:ffff::
    2002:: 2002:7f00:1:: 2002:7f00:1::1 2002:a00:1:: 2002:c0a8:101:: 2002:a9fe:a9fe:: 2002:808:808::1
    5f00:: 5f00::1 4000:: 8000:: a000:: c000:: e000:: f000:: fbff:: fe00:: fe7f::
    ff00:: ff01::1 ff02::1 ff02::fb ff05::2 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff
"""

NO_ADDRESS = [
    "",
    "localhost",
    "127.1",
    "0177.0.0.1",
    "0x7f000001",
    "2130706433",
    "1.2.3",
    "1.2.3.4.5",
    "[::1]",
    "::1]",
]


@pytest.mark.parametrize("address", PUBLIC.split())
def test_public_addresses_are_allowed(address: str) -> None:
    assert forbidden(address) is None
    assert forbidden(ip_address(address)) is None


@pytest.mark.parametrize("address", PRIVATE.split())
def test_the_operators_own_network_takes_a_setting(address: str) -> None:
    assert forbidden(address)
    assert forbidden(address, allow_private=True) is None


@pytest.mark.parametrize("address", NEVER.split())
def test_no_setting_opens_what_is_nobodys_webhook(address: str) -> None:
    assert forbidden(address)
    assert forbidden(address, allow_private=True)


@pytest.mark.parametrize("text", NO_ADDRESS)
def test_what_is_no_address_is_forbidden(text: str) -> None:
    assert forbidden(text, allow_private=True) == "not an address"


def test_the_reason_never_tells_the_address() -> None:
    for address in (PRIVATE + NEVER).split():
        verdict = judge(address)
        assert verdict is not None
        assert address not in verdict.reason


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1", "a loopback address"),
        ("::ffff:10.0.0.1", "a private address"),
        ("169.254.169.254", "a cloud metadata service"),
        ("192.0.0.192", "a cloud metadata service"),
        ("::", "an unspecified address"),
        ("ff02::1", "a multicast address"),
        ("2001::1", "a Teredo address"),
        ("2002:7f00:1::", "a 6to4 address"),
        ("64:ff9b::1.1.1.1", "a NAT64 address"),
    ],
)
def test_the_reason_says_what_the_address_is(address: str, reason: str) -> None:
    assert forbidden(address) == reason


@given(st.integers(0, 2**32 - 1))
def test_a_mapped_address_is_judged_as_the_one_inside(number: int) -> None:
    mapped = IPv6Address((0xFFFF << 32) | number)
    assert judge(mapped) == judge(IPv4Address(number))


@given(st.ip_addresses())
def test_what_python_calls_private_is_never_public(address: IPv4Address | IPv6Address) -> None:
    if address.is_private and not (isinstance(address, IPv6Address) and address.ipv4_mapped):
        assert forbidden(address)


# What a URL's host is read as. None means that the URL is refused.
HOSTS: list[tuple[str, str | None]] = [
    ("example.com", "example.com"),
    ("EXAMPLE.com", "example.com"),
    ("example.com.", "example.com"),
    ("my_service", "my_service"),
    ("xn--bcher-kva.example", "xn--bcher-kva.example"),
    ("bücher.example", "xn--bcher-kva.example"),
    ("BÜCHER.example", "xn--bcher-kva.example"),
    ("straße.example", "xn--strae-oqa.example"),
    ("例え.テスト", "xn--r8jz45g.xn--zckzah"),
    ("1.2.3.4", "1.2.3.4"),
    ("127.0.0.1", "127.0.0.1"),
    ("127.0.0.1.", "127.0.0.1"),
    ("127.0.0.1.nip.io", "127.0.0.1.nip.io"),
    ("1.2.3.4x", "1.2.3.4x"),
    ("localhost", "localhost"),
    ("localhost.", "localhost"),
    ("[::1]", "::1"),
    ("[0:0:0:0:0:0:0:1]", "::1"),
    ("[::ffff:127.0.0.1]", "::ffff:7f00:1"),
    ("[2606:4700::1111]", "2606:4700::1111"),
    # Digits that Unicode calls the same are read as what they stand for.
    ("１２７.０.０.１", "127.0.0.1"),
    ("①②⑦.⓪.⓪.①", "127.0.0.1"),
    ("127。0。0。1", "127.0.0.1"),
    ("ｌｏｃａｌｈｏｓｔ", "localhost"),
    ("ⓔxample.com", "example.com"),
    ("0x7f.0.0.1", None),
    ("0x7f000001", None),
    ("0X7F000001", None),
    ("0x7f.1", None),
    ("0x", None),
    ("127.0.0.0x1", None),
    ("0177.0.0.1", None),
    ("017700000001", None),
    ("00000177.0.0.1", None),
    ("127.0.0.01", None),
    ("127.0.0.001", None),
    ("2130706433", None),
    ("2130706433.", None),
    ("3232235777", None),
    ("127.1", None),
    ("127.0.1", None),
    ("127", None),
    ("0", None),
    ("256.1.1.1", None),
    ("1.2.3.4.5", None),
    ("1.2.3.256", None),
    ("１２７.１", None),
    ("x.0x7f", None),
    ("example.123", None),
    ("[::1%lo]", None),
    ("[fe80::1%25eth0]", None),
    ("[::1", None),
    ("::1]", None),
    ("::1", None),
    ("[]", None),
    ("[127.0.0.1]", None),
    ("[localhost]", None),
    ("[[::1]]", None),
    ("[::1]x", None),
    ("[v1.x]", None),
    ("", None),
    (".", None),
    ("..", None),
    ("example..com", None),
    ("example.com..", None),
    (".example.com", None),
    ("-example.com", None),
    ("example-.com", None),
    ("a" * 64 + ".com", None),
    (".".join(["a" * 60] * 5), None),
    ("ü" * 300, None),
    ("exa mple.com", None),
    ("exa%6dple.com", None),
    ("127%2e0.0.1", None),
    ("%6c%6f%63%61%6c%68%6f%73%74", None),
    ("example.com%00.internal", None),
    ("user@example.com", None),
    ("user:secret@example.com", None),
    ("example.com@127.0.0.1", None),
    ("@127.0.0.1", None),
    ("example.com\\@127.0.0.1", None),
    ("127.0.0.1\\.example.com", None),
    ("example.com\t", None),
    ("example.com\r\nHost: x", None),
    ("example.com\x00", None),
    ("example.com\u200b", None),
    ("example.com\u00ad", None),
    ("exam\u2028ple.com", None),
    ("a,b", None),
    ("a;b", None),
    ("a!b", None),
    ("$(x)", None),
    ("{x}", None),
    ("*", None),
]


@pytest.mark.parametrize(("written", "read"), HOSTS)
def test_hosts_are_read_in_one_way_or_not_at_all(written: str, read: str | None) -> None:
    if read is None:
        with pytest.raises(ValueError, match=r"^(has|must|needs|is) "):
            parse_target(f"http://{written}/")
    else:
        assert parse_target(f"http://{written}/").host == read


URLS = """
    ftp://example.com/ file:///etc/passwd gopher://example.com/ javascript:alert(1) data:,x ws://example.com/
    unix:///run/docker.sock http:/example.com http:example.com http:///path http:// https:// // example.com
    /path http://example.com#fragment http://example.com/#x http://example.com:/ http://example.com:0/
    http://example.com:65536/ http://example.com:99999/ http://example.com:-1/ http://example.com:+80/
    http://example.com:80:80/ http://example.com:8O/ http://example.com:８０/ http://example.com:000080/
    http://?x http://#x httpx://example.com/ http+unix://x/ https//example.com ://example.com
"""


@pytest.mark.parametrize("url", ["", " ", *URLS.split(), "http://example.com/" + "a" * 4096])
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"^(has|must|needs|is) "):
        parse_target(url)


@pytest.mark.parametrize("port", [1, 22, 25, 53, 81, 1023, 2375, 3306, 5432, 6379, 9200, 11211, 27017])
def test_ports_no_webhook_should_reach(port: int) -> None:
    with pytest.raises(ValueError, match="may not use port"):
        parse_target(f"http://example.com:{port}/")
    assert parse_target(f"http://example.com:{port}/", any_port=True).port == port


@pytest.mark.parametrize("port", [80, 443, 1024, 3000, 8080, 8443, 65535])
def test_ports_that_are_allowed(port: int) -> None:
    assert parse_target(f"http://example.com:{port}/").port == port


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("http://example.com", "example.com", "/"),
        ("HTTP://example.com?a=b", "example.com", "/?a=b"),
        ("http://example.com:80/a", "example.com", "/a"),
        ("https://example.com:443/a", "example.com", "/a"),
        ("https://example.com:80/a", "example.com:80", "/a"),
        ("https://[2606:4700::1111]:8443/a", "[2606:4700::1111]:8443", "/a"),
        ("http://example.com/a%20b%0d%0a/ü?q=ä|b", "example.com", "/a%20b%0d%0a/%C3%BC?q=%C3%A4%7Cb"),
        ("http://example.com/@a?b@c", "example.com", "/@a?b@c"),
        ("http://example.com/../x//y", "example.com", "/../x//y"),
    ],
)
def test_what_goes_into_the_request(url: str, authority: str, path: str) -> None:
    target = parse_target(url)
    assert (target.authority, target.path) == (authority, path)


def test_the_query_is_not_shown() -> None:
    assert str(parse_target("https://example.com/hook?token=secret")) == "https://example.com/hook"


def test_refusals_never_repeat_credentials() -> None:
    for url in (
        "http://user:secret@example.com/",
        "http://x:secret@/",
        "ftp://secret@x",
        "http://secret@127.1/",
    ):
        with pytest.raises(ValueError, match=r"^(has|must|needs|is) ") as caught:
            parse_target(url)
        assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="send an Authorization header instead"):
        parse_target("http://user:secret@example.com/")


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_any_host_is_refused_or_plain(text: str) -> None:
    try:
        target = parse_target(f"http://{text}")
    except ValueError:
        return
    assert target.host.isascii()
    assert not set(target.host) & set("/@%\\?#[] \r\n\t\0")
    assert target.path.isascii()
