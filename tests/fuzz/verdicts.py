"""What every answer must be, whatever was asked; and which jobs it says there are."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from tests.fuzz.requests import Sent
from tests.fuzz.wire import Answer

OUTSIDE = {400: "bad_request", 408: "timeout", 431: "headers_too_large"}
"""What the connection itself refuses, before there is a route."""
UNROUTED = {
    401: "unauthorized",
    403: "cross_origin",
    404: "not_found",
    405: "method_not_allowed",
    421: "misdirected",
}
"""What is refused before a route is asked."""
PROBLEM = {"type", "title", "status", "detail", "instance", "error", "code"}
LEAKS = ("Traceback", "asyncpg", "PostgresError", 'File "/', "fencepost.store")


def faults_of(answer: Answer, sent: Sent, documented: dict[str, set[int]]) -> list[str]:
    """What is wrong with an answer to *sent*, in words; nothing for a good one."""
    faults = []
    if answer.status >= 500:
        faults.append(f"status {answer.status}")
    if not 200 <= answer.status < 500:
        return faults
    if not answer.headers.get("x-request-id"):
        faults.append("no X-Request-ID")
    if sent.framed and sent.expected is not None and answer.status not in sent.expected:
        faults.append(f"status {answer.status} where only {sorted(sent.expected)} will do")
    if not _is_documented(answer, sent, documented):
        code = answer.headers.get("x-error-code")
        faults.append(f"status {answer.status} ({code}) is not in the document for {sent.route}")
    if sent.method == "HEAD" or answer.status == 204:
        return faults
    return faults + (_error_faults(answer) if answer.status >= 400 else _body_faults(answer))


def _is_documented(answer: Answer, sent: Sent, documented: dict[str, set[int]]) -> bool:
    code = answer.headers.get("x-error-code")
    if OUTSIDE.get(answer.status) == code or UNROUTED.get(answer.status) == code:
        return True
    changed = sent.raw is not None or any(
        part.startswith(("path", "method", "version")) for part in sent.mutation.split("+")
    )
    if changed:
        return answer.status < 500
    return answer.status in documented[sent.route]


def _body_faults(answer: Answer) -> list[str]:
    kind = answer.headers.get("content-type", "")
    if kind.startswith("text/plain; version="):
        return []
    if kind != "application/json":
        return [f"a {answer.status} of type {kind!r}"]
    try:
        strict_json(answer.body)
    except ValueError as error:
        return [f"a {answer.status} that is not JSON: {error}"]
    return []


def _error_faults(answer: Answer) -> list[str]:
    kind = answer.headers.get("content-type", "")
    code = answer.headers.get("x-error-code", "")
    try:
        body = strict_json(answer.body)
    except ValueError as error:
        return [f"a {answer.status} that is not JSON: {error}"]
    faults = []
    if kind == "application/json" and set(body) != {"error"}:
        faults.append(f"an error with the members {sorted(body)}")
    elif kind == "application/problem+json" and (
        not set(body) >= PROBLEM or body["code"] != code or body["status"] != answer.status
    ):
        faults.append(f"a problem that says {body}")
    elif kind not in ("application/json", "application/problem+json"):
        faults.append(f"an error of type {kind!r}")
    words = body.get("error")
    if not isinstance(words, str) or len(words) < 5 or not words.isprintable():
        faults.append(f"an error that says {words!r}")
    elif any(leak in words for leak in LEAKS) or len(words) > 2000:
        faults.append(f"an error that tells too much: {words[:300]!r}")
    if not code.replace("_", "").isalpha():
        faults.append(f"the X-Error-Code {code!r}")
    return faults


def made_by(answer: Answer, sent: Sent) -> set[UUID]:
    """The jobs that an answer says were made."""
    if answer.status != 201 or sent.method == "HEAD":
        return set()
    said = strict_json(answer.body)
    if "count" in said:
        return {UUID(item["id"]) for item in said["jobs"] if item["effect"] in ("created", "replaced")}
    return {UUID(said["id"])}


def strict_json(body: bytes) -> Any:
    """Read JSON in UTF-8, without what Python's reader forgives. Raises ValueError."""
    return msgspec.json.decode(body)
