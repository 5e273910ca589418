"""What is done to requests: each function changes one at one level, by the dice it is given."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.fuzz.json_mutations import AWKWARD, JSON_MUTATIONS
from tests.fuzz.requests import Known, Sent, valid

Mutation = Callable[[Sent, random.Random], None]


def request(seed: int, number: int, known: Known) -> Sent:
    """Request *number* of the campaign of *seed*: a quarter as they should be, the others changed."""
    sent, dice = valid(seed, number, known)
    if dice.random() < 0.25:
        return sent
    names = [_level(sent, dice)]
    # What is done to the bytes on the wire comes last, after which there are no parts to change.
    if dice.random() < 0.25:
        names.insert(0, dice.choice([*QUERIES, *TAME_HEADERS]))
    sent.mutation = "+".join(names)
    sent.expected = None
    for name in names:
        ALL[name](sent, dice)
    return sent


def _level(sent: Sent, dice: random.Random) -> str:
    levels: list[tuple[int, dict[str, Mutation]]] = [
        (20, HEADERS),
        (8, TAME_HEADERS),
        (14, TARGETS),
        (6, QUERIES),
        (5, METHODS),
        (4, VERSIONS),
        (7, WIRE),
    ]
    if sent.body:
        levels += [(25, BODIES)]
    if sent.value is not None:
        levels += [(60, JSON_MUTATIONS)]
    return dice.choice(list(dice.choices([level for _, level in levels], [weight for weight, _ in levels])[0]))


def _set(sent: Sent, name: bytes, value: bytes) -> None:
    sent.headers = [(key, old) for key, old in sent.headers if key.lower() != name.lower()]
    sent.headers.append((name, value))


def _slice(data: bytes, dice: random.Random) -> tuple[int, int]:
    start = dice.randrange(len(data) + 1)
    return start, min(len(data), start + dice.choice((1, 1, 2, 5, 20)))


# --- the bytes of the body; the length stays true


def _body(change: Callable[[bytes, random.Random], bytes]) -> Mutation:
    def mutate(sent: Sent, dice: random.Random) -> None:
        sent.body = change(sent.body or b"", dice)

    return mutate


def _flip(body: bytes, dice: random.Random) -> bytes:
    changed = bytearray(body or b"\0")
    for _ in range(dice.choice((1, 1, 1, 3, 10))):
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def _cut_out(body: bytes, dice: random.Random) -> bytes:
    start, end = _slice(body, dice)
    return body[:start] + body[end:]


def _insert(body: bytes, dice: random.Random) -> bytes:
    start, _ = _slice(body, dice)
    return body[:start] + dice.choice((dice.randbytes(dice.randint(1, 8)), *AWKWARD)) + body[start:]


def _double(body: bytes, dice: random.Random) -> bytes:
    start, end = _slice(body, dice)
    return body[:end] + body[start:]


BODIES: dict[str, Mutation] = {
    "body: bits flipped": _body(_flip),
    "body: bytes cut out": _body(_cut_out),
    "body: bytes put in": _body(_insert),
    "body: bytes doubled": _body(_double),
    "body: truncated": _body(lambda body, dice: body[: dice.randrange(len(body) + 1)]),
    "body: said twice": _body(lambda body, dice: body + body),
    "body: byte order mark": _body(lambda body, dice: b"\xef\xbb\xbf" + body),
    "body: other encoding": _body(
        lambda body, dice: body.decode(errors="replace").encode(dice.choice(("utf-16", "utf-32", "utf-16-le", "utf-7")))
    ),
    "body: Latin-1": _body(lambda body, dice: body.replace(b"a", b"\xe4")),
    "body: random": _body(lambda body, dice: dice.randbytes(dice.choice((1, 10, 1000)))),
    "body: blank": _body(lambda body, dice: dice.choice((b"", b" ", b"\n\n", b"\0", b"[]", b"{}", b"null"))),
    "body: white space around": _body(lambda body, dice: b" \r\n\t" * dice.choice((1, 1000)) + body + b"\n \t"),
}


# --- headers


def _header(name: bytes, *values: bytes) -> Mutation:
    def mutate(sent: Sent, dice: random.Random) -> None:
        _set(sent, name, dice.choice(values))
        sent.alone = True

    return mutate


def _unauthorized(sent: Sent, dice: random.Random) -> None:
    wrong = (
        b"",
        b"Bearer",
        b"Bearer wrong",
        b"Basic Zm9v",
        b"Bearer " + b"x" * 5000,
        b"Bearer fuzz-token2",
        b"\xff\xfe",
    )
    _set(sent, b"Authorization", dice.choice(wrong))
    if sent.route not in ("GET /healthz", "GET /health", "GET /readyz"):
        sent.expected = frozenset({401})


def _no_authorization(sent: Sent, dice: random.Random) -> None:
    sent.headers = [(name, value) for name, value in sent.headers if name != b"Authorization"]
    if sent.route not in ("GET /healthz", "GET /health", "GET /readyz"):
        sent.expected = frozenset({401})


def _many_headers(sent: Sent, dice: random.Random) -> None:
    sent.headers += [(b"X-Many-%d" % number, b"x") for number in range(dice.choice((50, 90, 101, 500)))]
    sent.alone = True


def _large_header(sent: Sent, dice: random.Random) -> None:
    sent.headers.append((b"X-Large", b"x" * dice.choice((1000, 30_000, 66_000, 200_000))))
    sent.alone = True


def _chunked(sent: Sent, dice: random.Random) -> None:
    if sent.body is not None:
        sent.chunked, sent.alone = True, True


def _broken_header(sent: Sent, dice: random.Random) -> None:
    broken = (
        b"X Y: 1",
        b"X-Y : 1",
        b": 1",
        b"X-Y",
        b"X-\0Y: 1",
        b"X-Y: a\0b",
        b"X-Y: a\r\n b",
        b"X-Y: a\rb",
        b"\xff: 1",
    )
    head, _, rest = sent.written().partition(b"\r\n")
    sent.raw, sent.framed = head + b"\r\n" + dice.choice(broken) + b"\r\n" + rest, False


def _wrong_length(sent: Sent, dice: random.Random) -> None:
    length = len(sent.body or b"")
    wrong = dice.choice(
        (
            *(b"%d" % max(0, length + difference) for difference in (-5, -1, 1, 10, 100_000)),
            *(b"-1", b"+5", b"0x10", b"1e3", b"", b"abc", b"9" * 30, b"18446744073709551616", b"5, 5", b"1 2"),
        )
    )
    head = sent.written().partition(b"\r\n\r\n")[0].split(b"\r\n")
    head = [line for line in head if not line.lower().startswith((b"content-length", b"transfer-encoding"))]
    lines = [*head, b"Content-Length: " + wrong, *([b"Content-Length: 3"] if dice.random() < 0.2 else [])]
    sent.raw, sent.framed = b"\r\n".join(lines) + b"\r\n\r\n" + (sent.body or b""), False


def _broken_chunks(sent: Sent, dice: random.Random) -> None:
    body = sent.body or b"{}"
    size = b"%x" % len(body)
    broken = dice.choice(
        (
            b"zz\r\n" + body,
            b"-1\r\n" + body,
            size + b"\n" + body + b"\n0\n\n",
            size + b"\r\n" + body,
            size + b"\r\n" + body + b"\r\n0\r\n",
            size + b"\r\n" + body + b"xx\r\n0\r\n\r\n",
            b"f" * 20 + b"\r\n" + body,
            size + b";ext=" + b"e" * 70_000 + b"\r\n" + body + b"\r\n0\r\n\r\n",
            size + b"\r\n" + body + b"\r\n0\r\nX-Trailer: 1\r\n\r\n",
        )
    )
    head = sent.written().partition(b"\r\n\r\n")[0].split(b"\r\n")
    lines = [line for line in head if not line.lower().startswith((b"content-length", b"transfer-encoding"))]
    if dice.random() < 0.3:
        lines.append(b"Content-Length: %d" % len(body))
    lines.append(b"Transfer-Encoding: " + dice.choice((b"chunked", b"chunked", b"gzip, chunked", b"chunked, chunked")))
    sent.raw, sent.framed = b"\r\n".join(lines) + b"\r\n\r\n" + broken, False


TAME_HEADERS: dict[str, Mutation] = {
    "header: Accept": _header(
        b"Accept", b"application/problem+json", b"text/html", b"*/*;q=0", b"application/problem+json;q=0", b"\xff", b","
    ),
    "header: Idempotency-Key": _header(
        *(b"Idempotency-Key", b"", b'""', b'"a', b"k" * 255, b"k" * 256, b"k" * 60_000, b"\xff\xfe", b"a\tb", b"k"),
        *(b'"quoted \\" key"', b"'; drop table fencepost.jobs; --", b"key-1", b"%00", b'"key-1"'),
    ),
    "header: traceparent": _header(
        *(b"traceparent", b"", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-00", b"x" * 300, b"\xff"),
        *(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",),
    ),
    "header: conditional": _header(b"If-None-Match", b"*", b'"x"', b"W/", b"\xff"),
    "header: modified since": _header(b"If-Modified-Since", b"Thu, 01 Jan 1970 00:00:00 GMT", b"never", b""),
    "header: Range": _header(b"Range", b"bytes=0-1", b"bytes=-", b"bytes=9-1", b"lines=1"),
    "header: forwarded": _header(b"X-Forwarded-For", b"1.2.3.4", b"' or 1=1", b"\xff"),
    "header: request id": _header(b"X-Request-ID", b"", b"a b", b"x" * 129, b"\xff", b'"', b"a;b"),
}
HEADERS: dict[str, Mutation] = {
    "header: Content-Type": _header(
        *(b"Content-Type", b"", b"text/plain", b"application/json; charset=utf-16", b"application/jsonx", b"\xff;;;="),
        *(b"application/x-ndjson", b"application/json;charset=UTF-8", b"multipart/form-data; boundary=x", b"a" * 5000),
    ),
    "header: Content-Encoding": _header(b"Content-Encoding", b"gzip", b"identity", b"br", b"", b"identity, gzip"),
    "header: Host": _header(b"Host", b"", b"evil.example", b"[::1", b"a b", b"127.0.0.1:99999999", b"\xff", b"@/?#"),
    "header: Expect": _header(b"Expect", b"100-continue", b"200-ok", b""),
    "header: Connection": _header(b"Connection", b"close", b"keep-alive", b"upgrade", b"close, keep-alive", b"\xff"),
    "header: Origin": _header(b"Origin", b"https://evil.example", b"null", b"", b"http://[", b"\xff"),
    "header: not authorized": _unauthorized,
    "header: no authorization": _no_authorization,
    "header: many": _many_headers,
    "header: large": _large_header,
    "header: chunked": _chunked,
    "header: broken": _broken_header,
    "header: length that lies": _wrong_length,
    "header: broken chunks": _broken_chunks,
}


# --- what is asked for


def _target(change: Callable[[bytes, random.Random], bytes]) -> Mutation:
    def mutate(sent: Sent, dice: random.Random) -> None:
        sent.target, sent.alone = change(sent.target, dice), True
        sent.expected = None

    return mutate


def _percent(target: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(1, len(target)) if len(target) > 1 else 0
    return target[:at] + b"%%%02X" % target[at] + target[at + 1 :]


_ODD = (
    b"%00",
    b"%",
    b"%z",
    b"%2F",
    b"%2e%2e/",
    b"%FF%FE",
    b"%C0%AF",
    b"%F0%9F%92%A9",
    b"%0d%0aX-Evil:1",
    b"..",
    b"//",
    b";",
)
TARGETS: dict[str, Mutation] = {
    "path: percent-encoded": _target(_percent),
    "path: odd bytes": _target(
        lambda target, dice: (at := dice.randrange(len(target) + 1), target[:at] + dice.choice(_ODD) + target[at:])[1]
    ),
    "path: traversal": _target(lambda target, dice: b"/../../etc/passwd" + target),
    "path: slashes": _target(
        lambda target, dice: dice.choice((b"/" + target, target + b"/", target.replace(b"/", b"//")))
    ),
    "path: another id": _target(
        lambda target, dice: (
            b"/jobs/"
            + dice.choice(
                (
                    b"0",
                    b"x" * 3000,
                    b"01890a5d-ac96-774b-bcce-b302099a8057",
                    b"00000000-0000-0000-0000-000000000000",
                    b"%27",
                )
            )
            + dice.choice((b"", b"/status", b"/retry", b"/cancel", b"/x"))
        )
    ),
    "path: another queue": _target(
        lambda target, dice: (
            b"/queues/" + dice.choice((b"none", b"%00", b"q" * 101, b"%C3%BC", b"a%20b", b"-", b"a%2Fb"))
        )
    ),
    "path: absolute": _target(
        lambda target, dice: dice.choice((b"http://127.0.0.1", b"https://evil.example:1")) + target
    ),
    "path: large": _target(lambda target, dice: target + b"/" + b"x" * dice.choice((300, 10_000, 70_000))),
    "path: none of these": _target(lambda target, dice: dice.choice((b"*", b"x", b"?", b"/%", b"http://", b"/#a"))),
    "path: another case": _target(lambda target, dice: target.swapcase()),
}
QUERIES: dict[str, Mutation] = {
    "query: unknown": _target(lambda target, dice: target + (b"&" if b"?" in target else b"?") + b"x=1"),
    "query: odd": _target(
        lambda target, dice: (
            target
            + (b"&" if b"?" in target else b"?")
            + dice.choice((b"limit", b"status", b"type", b"queue", b"tag", b"since", b"until", b"cursor", b"include"))
            + b"="
            + dice.choice(
                (b"", b"0", b"-1", b"9" * 400, b"%00", b"%FF", b"x", b"%F0%9F%92%A9", b"'--", b"1e3", b"a" * 5000, b"%")
            )
        )
    ),
    "query: a great many": _target(
        lambda target, dice: target + b"?" + b"&".join([b"limit=1"] * dice.choice((2, 2000)))
    ),
}


# --- the line before the headers


def _method(*methods: str) -> Mutation:
    def mutate(sent: Sent, dice: random.Random) -> None:
        sent.method, sent.alone, sent.expected = dice.choice(methods), True, None

    return mutate


def _odd_method(sent: Sent, dice: random.Random) -> None:
    sent.method = dice.choice(("CONNECT", "PRI", "get", "", "G\0T", "BREW", "M" * 5000, "POST POST", "\xff"))
    sent.framed = False


def _version(*versions: bytes) -> Mutation:
    def mutate(sent: Sent, dice: random.Random) -> None:
        sent.version, sent.framed = dice.choice(versions), False

    return mutate


METHODS: dict[str, Mutation] = {
    "method: another": _method("GET", "POST", "PUT", "DELETE", "PATCH", "TRACE", "PROPFIND", "OPTIONS"),
    "method: HEAD": _method("HEAD"),
    "method: OPTIONS": _method("OPTIONS"),
    "method: none of these": _odd_method,
}
VERSIONS: dict[str, Mutation] = {
    "version: 1.0": _version(b"HTTP/1.0"),
    "version: odd": _version(
        b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.2", b"HTTP/1.1x", b"http/1.1", b"", b"ICY/1.0", b"HTTP/9.9"
    ),
}


# --- how it is sent


def _gone(sent: Sent, dice: random.Random) -> None:
    whole = sent.written()
    sent.raw, sent.framed, sent.rude = whole[: dice.randrange(1, len(whole))], False, True
    sent.complete = False


def _unheard(sent: Sent, dice: random.Random) -> None:
    sent.framed, sent.rude = False, True


def _trickled(sent: Sent, dice: random.Random) -> None:
    sent.pauses, sent.alone = dice.choice((2, 5, 12)), True


def _noise(sent: Sent, dice: random.Random) -> None:
    other_protocols = (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"\0" * 100,
        b"*1\r\n$4\r\nPING\r\n",
        b"\r\n" * 50,
        dice.randbytes(200),
    )
    sent.raw, sent.framed = dice.choice(other_protocols), False


def _flipped(sent: Sent, dice: random.Random) -> None:
    # All but the id: with another request's, a job would be taken for that one's.
    before, name, after = sent.written().partition(b"X-Request-ID")
    sent.raw, sent.framed = _flip(before, dice) + name + after, False


WIRE: dict[str, Mutation] = {
    "wire: cut in the middle": _gone,
    "wire: left before the answer": _unheard,
    "wire: in pieces": _trickled,
    "wire: another protocol": _noise,
    "wire: bits of the head flipped": _flipped,
}
ALL: dict[str, Mutation] = {
    **BODIES,
    **JSON_MUTATIONS,
    **TAME_HEADERS,
    **HEADERS,
    **TARGETS,
    **QUERIES,
    **METHODS,
    **VERSIONS,
    **WIRE,
}
