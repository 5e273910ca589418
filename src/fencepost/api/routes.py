"""
The table of routes: what dispatches requests is also what the OpenAPI document is made from.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from fencepost.api.http import HttpError, Request, Response, request_of

Handler = Callable[[Request], Awaitable[Response]]


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of a route, beside its body."""

    name: str
    where: str
    """`path`, `query` or `header`."""
    text: str
    schema: dict[str, Any]


class Answer(msgspec.Struct, frozen=True):
    """One way a route answers."""

    status: int
    text: str
    body: Any = None
    """The type of its JSON body, or a media type for another kind of body."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path."""

    method: str
    path: str
    name: str
    """Unique; the `operationId`."""
    text: str
    handler: Handler
    answers: tuple[Answer, ...]
    errors: tuple[int, ...] = ()
    """Statuses of the errors that are its own; any route may answer 401, 403, 421, 500 and 503."""
    parameters: tuple[Parameter, ...] = ()
    body: Any = None
    """The type that its JSON body is read as."""
    many: bool = False
    """Whether an array of them, or lines, are read as well."""


class Resource:
    """One path, as an ASGI application: its methods, HEAD wherever there is GET, OPTIONS everywhere."""

    def __init__(self, path: str, handlers: dict[str, Handler]) -> None:
        self.path = path
        self._handlers = dict(handlers)
        if "GET" in handlers:
            self._handlers["HEAD"] = handlers["GET"]
        self._allow = (b"allow", ", ".join(sorted((*self._handlers, "OPTIONS"))).encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or raise why not."""
        request = request_of(scope)
        request.route = self.path
        handler = self._handlers.get(request.method)
        if handler is not None:
            response = await handler(request)
        elif request.method == "OPTIONS":
            response = Response(204, headers=[self._allow])
        else:
            allowed = self._allow[1].decode()
            message = f"{request.method[:20]} isn't possible here; {self.path} allows {allowed}"
            raise HttpError(405, "method_not_allowed", message, headers=[self._allow])
        await response.send(send, head=request.method == "HEAD")


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer for every path that isn't there."""
    raise HttpError(404, "not_found", "there is nothing at this path; / lists what there is")


def starlette_routes(operations: Iterable[Operation]) -> list[BaseRoute]:
    """Make the dispatching half of the table."""
    paths: dict[str, dict[str, Handler]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = operation.handler
    return [Route(path, Resource(path, handlers)) for path, handlers in paths.items()]
