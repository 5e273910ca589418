"""
Decide where a webhook may go.

`parse_target` reads a URL and `forbidden` judges an address. The two are apart on
purpose: a name says nothing about where it leads, so what counts is the verdict on
the address that is about to be dialled, literal or resolved alike.

The ranges are our own table and not `ipaddress.is_global`, whose answer depends on
the version of Python and has called relays, site-local and NAT64 addresses public.
What the table can't know is a NAT64 prefix that a network chose for itself: where
one is in use, block it at the network's edge.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import quote

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


def _networks(*rows: tuple[str, str]) -> list[tuple[Network, str]]:
    return [(ip_network(network), reason) for networks, reason in rows for network in networks.split()]


_METADATA = _networks(
    ("169.254.169.254/32 fd00:ec2::254/128 fd20:ce::254/128", "a cloud metadata service"),
    ("169.254.170.2/32 169.254.170.23/32 fd00:ec2::23/128", "a cloud credentials service"),
    ("100.100.100.200/32 192.0.0.192/32 168.63.129.16/32", "a cloud metadata service"),
)
"""Hands out credentials to whoever asks from inside, so no setting opens it."""

_PRIVATE = _networks(
    ("127.0.0.0/8 ::1/128", "a loopback address"),
    ("10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7", "a private address"),
    ("169.254.0.0/16 fe80::/10", "a link-local address"),
    ("100.64.0.0/10", "a carrier's shared address"),
    ("198.18.0.0/15", "an address for benchmarks"),
    ("fec0::/10", "a site-local address"),
)
"""An operator's own network, which WEBHOOK_ALLOW_PRIVATE opens."""

_SPECIAL = _networks(
    ("0.0.0.0/8 ::/128", "an unspecified address"),
    ("192.0.0.0/24", "an address reserved for protocols"),
    ("192.0.2.0/24 198.51.100.0/24 203.0.113.0/24 2001:db8::/32 3fff::/20", "an address for documentation"),
    ("192.88.99.0/24", "a 6to4 relay"),
    ("224.0.0.0/4 ff00::/8", "a multicast address"),
    ("240.0.0.0/4", "a reserved or broadcast address"),
    ("2001::/32", "a Teredo address"),
    ("2001::/23", "an address reserved for protocols"),
    ("2002::/16", "a 6to4 address"),
)
"""Nobody's webhook lives here."""

_MAPPED = IPv6Network("::ffff:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST = IPv6Network("2000::/3")


class Verdict(NamedTuple):
    """Why an address is refused."""

    reason: str
    """What the address is, as in "a loopback address". Never the address itself."""
    private: bool
    """Whether WEBHOOK_ALLOW_PRIVATE would allow it."""


def forbidden(address: str | Address, *, allow_private: bool = False) -> str | None:
    """
    Say why *address* may not be dialled, or None when it may.

    Anything that can't be read as an address is refused, and so is any IPv6 address
    outside the space in use for the public internet.
    """
    verdict = judge(address, allow_private=allow_private)
    return None if verdict is None else verdict.reason


def judge(address: str | Address, *, allow_private: bool = False) -> Verdict | None:
    """The same as `forbidden`, and whether WEBHOOK_ALLOW_PRIVATE would make a difference."""
    try:
        verdict = _judge(ip_address(address))
    except ValueError:
        return Verdict("not an address", private=False)
    return None if verdict is not None and verdict.private and allow_private else verdict


def _judge(address: Address) -> Verdict | None:
    if verdict := _in_tables(address):
        return verdict
    if isinstance(address, IPv4Address):
        return None
    if address.scope_id is not None:
        return Verdict("an address bound to one interface", private=True)
    if address in _MAPPED:
        return _in_tables(_last_four_bytes(address))
    if address in _NAT64:
        return _judge_nat64(address)
    if address not in _GLOBAL_UNICAST:
        return Verdict("outside the public address space", private=False)
    return None


def _judge_nat64(address: IPv6Address) -> Verdict:
    # Refused whole rather than decoded. A network that has IPv6 alone reaches
    # everything through this prefix, though, so its operator can open it, except
    # for what stays closed whichever way it is spelled.
    inner = _in_tables(_last_four_bytes(address))
    if inner and not inner.private:
        return inner
    return Verdict("a NAT64 address", private=True)


def _last_four_bytes(address: IPv6Address) -> IPv4Address:
    return IPv4Address(address.packed[12:])


def _in_tables(address: Address) -> Verdict | None:
    # The order matters: the metadata services lie inside private ranges.
    for table, private in ((_METADATA, False), (_PRIVATE, True), (_SPECIAL, False)):
        for network, reason in table:
            if address in network:
                return Verdict(reason, private)
    return None


_LONGEST_URL = 4096
_URL = re.compile(r"(?P<scheme>[a-z]+)://(?P<authority>[^/?#]*)(?P<path>/[^?#]*)?(?P<query>\?[^#]*)?", re.I)
_AUTHORITY = re.compile(r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[0-9]{1,5}))?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")

# Servers that would take the lines of a POST for commands, or that obey one from anybody.
_REFUSED_PORTS = frozenset(
    [
        *(1433, 1521, 2049, 2375, 2376, 2379, 2380, 3306, 3389, 5432, 5672, 6000, 6379),
        *(6665, 6666, 6667, 6668, 6669, 9200, 9300, 10250, 11211, 27017),
    ]
)


class Target(NamedTuple):
    """A URL taken apart, in the only form in which it is used from here on."""

    scheme: str
    """`http` or `https`."""
    host: str
    """An ASCII name without a trailing dot, or an address without brackets."""
    port: int
    path: str
    """Percent-encoded, begins with a slash; the query follows it."""

    @property
    def authority(self) -> str:
        """The host as a Host header has it, with the port unless it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        """The URL without its query, which may hold a secret."""
        return f"{self.scheme}://{self.authority}{self.path.partition('?')[0]}"


_DEFAULT_PORTS = {"http": 80, "https": 443}


def parse_target(url: str, *, any_port: bool = False) -> Target:
    """
    Read *url* so strictly that no other reader could understand it differently.

    Ports below 1024 other than 80 and 443, and those of well-known servers that no
    webhook should reach, are refused unless *any_port*.

    Raises ValueError with a sentence that repeats neither user names nor the query.
    """
    if len(url) > _LONGEST_URL:
        raise ValueError(f"is longer than {_LONGEST_URL} characters")
    if "\\" in url or any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("has a space, a backslash or a control character in it; percent-encode it")
    found = _URL.fullmatch(url)
    scheme = found["scheme"].lower() if found else ""
    if found is None or scheme not in _DEFAULT_PORTS:
        raise ValueError("must be http:// or https:// with a host, and without a fragment")
    if "@" in found["authority"]:
        raise ValueError("must not hold a user name or a password; send an Authorization header instead")
    authority = _AUTHORITY.fullmatch(found["authority"])
    if authority is None:
        raise ValueError("has a malformed host or port")
    port = _DEFAULT_PORTS[scheme] if authority["port"] is None else int(authority["port"])
    _check_port(port, any_port=any_port)
    host = _read_name(authority["name"]) if authority["v6"] is None else _read_v6(authority["v6"])
    path = quote((found["path"] or "/") + (found["query"] or ""), safe="/?%:@!$&'()*+,;=-._~")
    return Target(scheme, host, port, path)


def _check_port(port: int, *, any_port: bool) -> None:
    if not 0 < port < 65536:
        raise ValueError("has a port outside 1 to 65535")
    if not any_port and (port in _REFUSED_PORTS or (port < 1024 and port not in (80, 443))):
        raise ValueError(f"may not use port {port}, unless WEBHOOK_ALLOW_PRIVATE=true")


def _read_v6(text: str) -> str:
    try:
        address = IPv6Address(text)
    except ValueError:
        raise ValueError("has something in brackets that is no IPv6 address") from None
    if address.scope_id is not None:
        raise ValueError("must not name a network interface")
    return str(address)


def _read_name(text: str) -> str:
    name = _to_ascii(text).removesuffix(".")
    labels = name.split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("needs a valid host name")
    if _NUMBER.fullmatch(labels[-1]):
        # The system's resolver reads 127.1, 0177.0.0.1, 0x7f000001 and 2130706433 as
        # addresses; people don't, so the one form that everybody reads alike is left.
        try:
            return str(IPv4Address(name))
        except ValueError:
            raise ValueError("has a numeric host that isn't four decimal numbers") from None
    return name


def _to_ascii(text: str) -> str:
    if text.isascii():
        return text.lower()
    if len(text) > 253:
        raise ValueError("needs a valid host name")
    import idna  # only for the few names that need its tables

    try:
        return idna.encode(text, uts46=True).decode("ascii").lower()
    except idna.IDNAError:
        raise ValueError("needs a valid host name") from None
