"""Which kind of body a request has."""

from __future__ import annotations

import enum

from fencepost.api.http import HttpError, Request


class Media(enum.Enum):
    """The kinds of bodies that are read."""

    JSON = "application/json"
    LINES = "application/x-ndjson"


_KINDS = {
    "application/json": Media.JSON,
    "application/x-ndjson": Media.LINES,
    "application/ndjson": Media.LINES,
    "application/jsonl": Media.LINES,
}
_CHARSETS = ("utf-8", "utf8")


def media_of(request: Request, *, lines: bool = False) -> Media:
    """
    Tell a body's kind from Content-Type; a request without one is taken for JSON.

    Raises HttpError 415 for any other kind, NDJSON too unless *lines*.
    """
    if request.headers.get(b"content-encoding", b"identity") != b"identity":
        raise HttpError(
            415, "unsupported_media_type", "a Content-Encoding isn't supported here; send the body as it is"
        )
    text = request.header(b"content-type")
    if text is None or text == "application/json":
        return Media.JSON
    name, *parameters = (part.strip().lower() for part in text.split(";"))
    kind = _KINDS.get(name)
    charsets = [part.partition("=")[2].strip('"') for part in parameters if part.startswith("charset=")]
    if kind is None or (kind is Media.LINES and not lines) or any(one not in _CHARSETS for one in charsets):
        allowed = "-H 'Content-Type: application/json'" + (
            " (or application/x-ndjson, for one job a line)" if lines else ""
        )
        message = f"the Content-Type {text[:100]!a} isn't supported here; send JSON in UTF-8 with {allowed}"
        raise HttpError(415, "unsupported_media_type", message)
    return kind
