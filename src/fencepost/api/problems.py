"""Errors as answers: `{"error": "…"}` by default, RFC 9457 for those who ask for it."""

from __future__ import annotations

import http
from uuid import UUID

import msgspec

from fencepost.api.http import CLOSE, JSON_TYPE, HttpError, Request, Response
from fencepost.domain.jitter import between
from fencepost.errors import FencepostError, InvalidJob
from fencepost.logger import get_logger
from fencepost.store.failures import DataError

PROBLEM_TYPE = b"application/problem+json"

_logger = get_logger("fencepost.api")


class ErrorBody(msgspec.Struct, frozen=True):
    """Every error, unless another form is asked for. `X-Error-Code` says the same for machines."""

    error: str


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error with `Accept: application/problem+json`."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    error: str
    """The same as `detail`."""
    code: str
    """The same as `X-Error-Code`."""
    field: str | None = None
    """The member of the request that is wrong."""
    index: int | None = None
    """The place in a bulk request of the job that is wrong."""


def respond(error: Exception, request: Request) -> Response:
    """Make the answer for *error*, and log it when it is ours rather than the caller's."""
    status, code, message = _verdict(error, request)
    headers = [(b"x-error-code", code.encode()), (b"vary", b"accept")]
    if isinstance(error, HttpError):
        headers += error.headers
    if status == 503:
        # Jittered, so that callers who were refused together don't come back together.
        headers.append((b"retry-after", b"%d" % int(between(1, 3.99))))
    if _wants_problem(request):
        problem = _problem(error, request, status, code, message)
        return Response(status, problem, [(b"content-type", PROBLEM_TYPE), *headers])
    return Response(status, msgspec.json.encode(ErrorBody(message)), [JSON_TYPE, *headers])


def _verdict(error: Exception, request: Request) -> tuple[int, str, str]:
    if isinstance(error, FencepostError) and error.http_status != 500:
        return error.http_status, error.code, str(error) or str(error.__class__.__doc__)
    if isinstance(error, DataError):
        # A value that got past our own checks; which one is for the log to say.
        _logger.warning(
            "the database refused a value of a request: %s",
            error,
            extra={"request_id": request.id, "route": request.route},
        )
        return 400, "invalid_request", "the request holds a value that the database can't store"
    _logger.error("unexpected error", exc_info=error, extra={"request_id": request.id, "route": request.route})
    return 500, "internal", f"internal error; the log has it under request id {request.id}"


def _wants_problem(request: Request) -> bool:
    accept = request.headers.get(b"accept")
    if accept is None or PROBLEM_TYPE not in accept.lower():
        return False
    for part in accept.lower().split(b","):
        media, *parameters = (piece.strip() for piece in part.split(b";"))
        if media == PROBLEM_TYPE:
            return not any(_is_zero(parameter) for parameter in parameters)
    return False


def _is_zero(parameter: bytes) -> bool:
    name, _, value = parameter.partition(b"=")
    return name.strip() == b"q" and value.strip().rstrip(b"0") in (b"", b"0.", b".")


def _problem(error: Exception, request: Request, status: int, code: str, message: str) -> bytes:
    invalid = error if isinstance(error, InvalidJob) else None
    return msgspec.json.encode(
        Problem(
            type="about:blank",
            title=http.HTTPStatus(status).phrase,
            status=status,
            detail=message,
            instance=_instance(request.id),
            error=message,
            code=code,
            field=None if invalid is None else invalid.field,
            index=None if invalid is None else invalid.index,
        )
    )


def _instance(request_id: str) -> str:
    try:
        return f"urn:uuid:{UUID(request_id)}"
    except ValueError:
        return f"urn:fencepost:request:{request_id}"


def refusal(status: int, code: str, message: str, request_id: str) -> Response:
    """The answer to what never became a request: its head can't be read, or didn't come in time."""
    body = msgspec.json.encode(ErrorBody(message))
    headers = [
        JSON_TYPE,
        (b"content-length", b"%d" % len(body)),
        (b"x-error-code", code.encode()),
        (b"x-request-id", request_id.encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        CLOSE,
    ]
    return Response(status, body, headers)
