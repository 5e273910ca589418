"""Valid requests of every route: what the mutations start from."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import msgspec

TOKEN = "fuzz-token"
CROWD_OF_KEYS = 400
"""So many idempotency keys and unique keys: few enough that they meet."""


class Known(msgspec.Struct, frozen=True):
    """What was there before the first request: the rest of a request depends on its number alone."""

    ids: tuple[str, ...]
    """Jobs in every status."""
    queues: tuple[str, ...] = ("default", "quiet", "odd.name:1")


class Sent(msgspec.Struct):
    """One request before it is written down: mutations change it."""

    number: int
    route: str
    """The route as the table of routes names it: `POST /jobs`."""
    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes | None = None
    value: Any = None
    """What the body says, where it is one JSON value."""
    mutation: str = "none"
    expected: frozenset[int] | None = None
    """The only statuses that will do; None where what was done to the request leaves it open."""
    version: bytes = b"HTTP/1.1"
    framed: bool = True
    """Whether it can be told where the request ends: then exactly one answer comes."""
    alone: bool = False
    """Whether the connection may close after it, so that nothing is sent behind it."""
    complete: bool = True
    """Whether all of it is sent. No job may come from a part."""
    chunked: bool = False
    raw: bytes | None = None
    """The whole request, where it isn't made from the parts above."""
    pauses: int = 0
    """In how many pieces it trickles in."""
    rude: bool = False
    """Whether the sender leaves without waiting for the answer."""

    @property
    def request_id(self) -> str:
        """What the request, and each job that it makes, is known by."""
        return f"fuzz-{self.number}"

    def written(self) -> bytes:
        """The bytes of it."""
        if self.raw is not None:
            return self.raw
        lines = [self.method.encode("latin-1") + b" " + self.target + b" " + self.version]
        lines += [name + b": " + value for name, value in self.headers]
        body = b"" if self.body is None else self.body
        if self.chunked:
            lines.append(b"Transfer-Encoding: chunked")
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in _pieces(body)) + b"0\r\n\r\n"
        elif self.body is not None:
            lines.append(b"Content-Length: %d" % len(body))
        return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _pieces(body: bytes) -> list[bytes]:
    size = max(1, len(body) // 3)
    return [body[start : start + size] for start in range(0, len(body), size)]


def valid(seed: int, number: int, known: Known) -> tuple[Sent, random.Random]:
    """Request *number* of a campaign before anything is done to it, and the dice for what is."""
    dice = random.Random(f"{seed}:{number}")
    make = dice.choices(_MAKERS, cum_weights=_WEIGHTS)[0]
    sent = Sent(
        number=number,
        route="",
        method="",
        target=b"/",
        headers=[
            (b"Host", b"127.0.0.1"),
            (b"Authorization", b"Bearer " + TOKEN.encode()),
            (b"X-Request-ID", b"fuzz-%d" % number),
        ],
    )
    make(sent, dice, known)
    return sent, dice


def with_value(sent: Sent, value: Any, media: bytes = b"application/json") -> None:
    """Give it a body."""
    sent.value = value
    sent.body = json.dumps(value).encode()
    sent.headers.append((b"Content-Type", media))


def one_job(dice: random.Random) -> dict[str, Any]:
    """A job as a caller may ask for it; the optional members come and go."""
    job: dict[str, Any] = {"type": dice.choice(("send_email", "send_email", "fail_test", "sleep"))}
    if job["type"] == "sleep":
        job["payload"] = {"duration": "1ms"}
    elif dice.random() < 0.8:
        job["payload"] = {"to": "ada@example.org", "n": dice.randrange(1 << 60), "list": [1, 2.5, None, True, "ü"]}
    optional: dict[str, Callable[[], Any]] = {
        "queue": lambda: dice.choice(("default", "quiet", "odd.name:1")),
        "priority": lambda: dice.randrange(3),
        "max_attempts": lambda: dice.randint(1, 3),
        "delay": lambda: dice.choice(("0s", "1h", "90m", "250ms")),
        "timeout": lambda: dice.choice(("1s", "20s")),
        "tags": lambda: dice.sample(["red", "grün", "with space", "x" * 20], dice.randint(0, 3)),
        "metadata": lambda: {"source": "fuzz", "depth": [[[]]]},
        "expires": lambda: dice.choice(("1h", "10d", "2099-01-01T00:00:00Z")),
        "idempotency_key": lambda: f"key-{dice.randrange(CROWD_OF_KEYS)}",
        "unique": lambda: {"key": f"unique-{dice.randrange(CROWD_OF_KEYS)}", "mode": dice.choice(("skip", "replace"))},
    }
    for name, make in optional.items():
        if dice.random() < 0.12:
            job[name] = make()
    return job


def _submission(sent: Sent, status: set[int]) -> None:
    # A key that stands for another request is a conflict, and keys meet here.
    sent.expected = frozenset(status | {409})


def _one(sent: Sent, dice: random.Random, known: Known) -> None:
    sent.route, sent.method, sent.target = "POST /jobs", "POST", b"/jobs"
    with_value(sent, one_job(dice))
    _submission(sent, {200, 201})


def _many(sent: Sent, dice: random.Random, known: Known) -> None:
    sent.route, sent.method, sent.target = "POST /jobs", "POST", b"/jobs"
    with_value(sent, [one_job(dice) for _ in range(dice.randint(1, 4))])
    # Two jobs of one request may ask for one key.
    _submission(sent, {200, 201, 400})


def _lines(sent: Sent, dice: random.Random, known: Known) -> None:
    sent.route, sent.method, sent.target = "POST /jobs", "POST", b"/jobs"
    sent.body = b"\n".join(json.dumps(one_job(dice)).encode() for _ in range(dice.randint(1, 4)))
    sent.headers.append((b"Content-Type", b"application/x-ndjson"))
    _submission(sent, {200, 201, 400})


def _submit(sent: Sent, dice: random.Random, known: Known) -> None:
    sent.route, sent.method, sent.target = "POST /submit", "POST", b"/submit"
    value: dict[str, Any] = {"payload": {"task": "send_email", "to": "bob@example.org"}}
    if dice.random() < 0.5:
        value |= {"priority": dice.randrange(3), "max_retries": dice.randrange(4)}
    with_value(sent, value)
    _submission(sent, {200, 201})


def _list(sent: Sent, dice: random.Random, known: Known) -> None:
    sent.route, sent.method = "GET /jobs", "GET"
    filters = {
        "status": dice.choice(("pending", "completed", "failed", "dead_letter", "cancelled", "processing")),
        "type": "send_email",
        "queue": dice.choice(known.queues),
        "tag": "red",
        "since": "2020-01-01T00:00:00Z",
        "until": "2099-01-01T00:00:00%2B02:00",
        "limit": str(dice.randint(1, 5)),
        "include": "payload",
    }
    chosen = dice.sample(sorted(filters), dice.randint(0, 3))
    chosen = [*{*chosen, "limit"}]
    sent.target = b"/jobs?" + "&".join(f"{name}={filters[name]}" for name in sorted(chosen)).encode()
    sent.expected = frozenset({200})


def _of_job(method: str, tail: str, *statuses: int) -> Callable[[Sent, random.Random, Known], None]:
    def make(sent: Sent, dice: random.Random, known: Known) -> None:
        sent.route, sent.method = f"{method} /jobs/{{id}}{tail}", method
        sent.target = f"/jobs/{dice.choice(known.ids)}{tail}".encode()
        sent.expected = frozenset(statuses)
        if method == "POST":
            sent.body = dice.choice((b"", b"{}"))

    return make


def _of_queue(method: str, tail: str) -> Callable[[Sent, random.Random, Known], None]:
    def make(sent: Sent, dice: random.Random, known: Known) -> None:
        sent.route, sent.method = f"{method} /queues/{{name}}{tail}", method
        sent.target = f"/queues/{dice.choice(known.queues)}{tail}".encode()
        sent.expected = frozenset({200})
        if method == "POST":
            sent.body = b""

    return make


def _plain(path: str) -> Callable[[Sent, random.Random, Known], None]:
    def make(sent: Sent, dice: random.Random, known: Known) -> None:
        sent.route, sent.method, sent.target = f"GET {path}", "GET", path.encode()
        sent.expected = frozenset({200})

    return make


_WEIGHTED: list[tuple[int, Callable[[Sent, random.Random, Known], None]]] = [
    (300, _one),
    (60, _many),
    (50, _lines),
    (100, _submit),
    (60, _list),
    (90, _of_job("GET", "", 200)),
    (60, _of_job("GET", "/status", 200)),
    (50, _of_job("POST", "/retry", 200, 409)),
    (50, _of_job("POST", "/cancel", 200, 202, 409)),
    (15, _plain("/queues")),
    (30, _of_queue("GET", "")),
    (10, _of_queue("POST", "/pause")),
    (15, _of_queue("POST", "/resume")),
    (20, _plain("/")),
    (30, _plain("/healthz")),
    (20, _plain("/health")),
    (20, _plain("/readyz")),
    (5, _plain("/metrics")),
    (15, _plain("/openapi.json")),
]
_WEIGHTS = list(itertools.accumulate(weight for weight, _ in _WEIGHTED))
_MAKERS = [make for _, make in _WEIGHTED]
