"""How the text of a variable is read. Each function raises ValueError with what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable

from fencepost.domain.durations import format_duration, parse_duration
from fencepost.domain.fields import check_queue
from fencepost.errors import InvalidJob
from fencepost.settings.pooler import Pooler

SHORTEST_RETENTION_SECONDS = 60.0
"""The least time that whoever made a job has to see how it ended."""
_YEAR_SECONDS = 86400.0 * 365


def whole(low: int, high: int) -> Callable[[str], int]:
    """For a whole number, written in digits alone."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 12 or not low <= int(text) <= high:
            raise ValueError(f"must be a whole number from {low:,} to {high:,}, not {text[:40]!r}")
        return int(text)

    return read


def duration(low: float, *, high: float = _YEAR_SECONDS, bare_seconds: bool = False) -> Callable[[str], float]:
    """For seconds, from *low* to *high*; with *bare_seconds* a number without a unit is seconds too."""

    def read(text: str) -> float:
        seconds = float(text) if bare_seconds and text.isascii() and text.isdigit() else parse_duration(text)
        if not low <= seconds <= high:
            longest = "a year" if high == _YEAR_SECONDS else format_duration(high)
            raise ValueError(f"must be from {format_duration(low)} to {longest}, not {text[:40]!r}")
        return seconds

    return read


def retention(text: str) -> float:
    """A time to keep things for; 0 is for ever."""
    seconds = parse_duration(text)
    if 0 < seconds < SHORTEST_RETENTION_SECONDS:
        raise ValueError(
            f"must be 0, to keep for ever, or at least {format_duration(SHORTEST_RETENTION_SECONDS)}, not {text[:40]!r}"
        )
    return seconds


def yes_or_no(text: str) -> bool:
    """True or false, in the usual words."""
    if text.lower() in ("true", "1", "yes", "on"):
        return True
    if text.lower() in ("false", "0", "no", "off"):
        return False
    raise ValueError(f"must be true or false, not {text[:40]!r}")


def share(text: str) -> float:
    """A share, from 0 to 1."""
    if not re.fullmatch(r"[0-9]*\.?[0-9]+", text) or not 0 <= float(text) <= 1:
        raise ValueError(f"must be a share from 0 to 1, such as 0.01, not {text[:40]!r}")
    return float(text)


def one_of(*allowed: str) -> Callable[[str], str]:
    """For one of these words, in any case."""

    def read(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}, not {text[:40]!r}")
        return text.lower()

    return read


def pooler(text: str) -> Pooler:
    """A kind of pooler, or none."""
    return Pooler(one_of(*Pooler)(text))


def queues(text: str) -> tuple[str, ...]:
    """Names of queues, separated by commas; each once."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError("names no queue; leave it empty to serve every queue")
    for name in names:
        try:
            check_queue(name)
        except InvalidJob as error:
            raise ValueError(f"each name {error.message}") from None
    return tuple(dict.fromkeys(names))


def address(text: str) -> dict[str, object]:
    """`host:port`, `:port` (every interface) or `[v6]:port`."""
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError(f"must be host:port or :port, not {text[:60]!r}")
    return {"http_host": host.strip("[]") or "0.0.0.0", "http_port": whole(0, 65535)(port)}  # noqa: S104 - asked for


def probe_address(text: str) -> dict[str, object]:
    """The same, for probes."""
    read = address(text)
    return {"probe_host": read["http_host"], "probe_port": read["http_port"]}


def database_address(text: str) -> str:
    """
    An address of PostgreSQL, as far as it can be told without going there.

    What is wrong is told without the text, parts of which may be a password.
    """
    scheme, separator, rest = text.partition("://")
    name, _, driver = scheme.partition("+")
    if not separator or name not in ("postgresql", "postgres"):
        raise ValueError("must be an address such as postgresql://user@host:5432/name")
    if driver:
        raise ValueError("must begin with postgresql:// alone; the name of a driver after a + is SQLAlchemy's")
    if not _names_hosts(re.split("[/?#]", rest, maxsplit=1)[0]):
        raise ValueError(
            "must be an address such as postgresql://user@host:5432/name; what comes after the host isn't a port. In a "
            "name or password, @ is written %40, : %3A, / %2F, # %23, ? %3F, [ %5B and ] %5D"
        )
    return text


_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:[0-9]{0,5})?")


def _names_hosts(text: str) -> bool:
    """Whether `name:password@host:port,host:port` is in order, as far as the driver minds."""
    who, _, hosts = text.rpartition("@")
    if "[" in who or "]" in who:
        return False
    found = [_HOST.fullmatch(host) for host in hosts.split(",")]
    return all(host is not None and 0 < int((host[2] or ":1")[1:] or 1) <= 65535 for host in found)
