"""
The table of routes: what dispatches requests is also what the OpenAPI document is made from.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from fencepost.api.http import HttpError, Request, Response

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
    """One path: its methods, HEAD wherever there is GET, OPTIONS everywhere."""

    def __init__(self, path: str, handlers: dict[str, Handler]) -> None:
        self.path = path
        self._handlers = dict(handlers)
        if "GET" in handlers:
            self._handlers["HEAD"] = handlers["GET"]
        self._allow = (b"allow", ", ".join(sorted((*self._handlers, "OPTIONS"))).encode())
        self._handlers.setdefault("OPTIONS", self._options)

    def handler(self, method: str) -> Handler:
        """What answers *method*. Raises HttpError 405."""
        handler = self._handlers.get(method)
        if handler is None:
            allowed = self._allow[1].decode()
            message = f"{method[:20]} isn't possible here; {self.path} allows {allowed}"
            raise HttpError(405, "method_not_allowed", message, headers=[self._allow])
        return handler

    async def _options(self, request: Request) -> Response:
        return Response(204, headers=[self._allow])


class Routes:
    """Finds what answers a request."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        paths: dict[str, dict[str, Handler]] = {}
        for operation in operations:
            paths.setdefault(operation.path, {})[operation.method] = operation.handler
        resources = [Resource(path, handlers) for path, handlers in paths.items()]
        self._plain = {resource.path: resource for resource in resources if "{" not in resource.path}
        self._others = [(_pattern(resource.path), resource) for resource in resources if "{" in resource.path]

    def handler(self, request: Request) -> Handler:
        """The handler for *request*, whose `route` and `parameters` it sets. Raises HttpError 404 and 405."""
        resource = self._plain.get(request.path)
        if resource is None:
            resource = self._with_parameters(request)
        request.route = resource.path
        return resource.handler(request.method)

    def _with_parameters(self, request: Request) -> Resource:
        for pattern, resource in self._others:
            found = pattern.fullmatch(request.path)
            if found is not None:
                request.parameters = found.groupdict()
                return resource
        raise HttpError(404, "not_found", "there is nothing at this path; / lists what there is")


def _pattern(path: str) -> re.Pattern[str]:
    """What paths of a template look like: each of its parameters is one segment."""
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path)))
