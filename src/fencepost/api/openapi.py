"""The OpenAPI document, from the table of routes and the structs that read and write."""

from __future__ import annotations

import http
import typing
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

import fencepost
from fencepost.api.auth import PUBLIC
from fencepost.api.problems import ErrorBody, Problem
from fencepost.api.routes import Answer, Operation
from fencepost.api.schemas import SubmitRequest
from fencepost.api.submission import BULK_JOBS
from fencepost.domain.requests import JobRequest

_ANY_ROUTE = (401, 403, 421, 500, 503)
_REF = "#/components/schemas/{name}"


def document(operations: Sequence[Operation], *, types: Iterable[str] = ()) -> bytes:
    """Make the document, as JSON; *types* are the registered job types, which is what a request may ask for."""
    kinds = list(dict.fromkeys(_kinds(operations)))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    by_kind = dict(zip(kinds, schemas, strict=True))
    if names := sorted(types):
        components[JobRequest.__name__]["properties"]["type"]["enum"] = names
        components[SubmitRequest.__name__]["properties"]["payload"]["properties"]["task"]["enum"] = names
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, by_kind)
    return msgspec.json.format(
        msgspec.json.encode(
            {
                "openapi": "3.1.0",
                "info": {
                    "title": "fencepost",
                    "version": fencepost.__version__,
                    "summary": "A PostgreSQL job queue with fenced leases.",
                    "license": {"name": "MIT", "identifier": "MIT"},
                },
                "paths": paths,
                "components": {
                    "schemas": components,
                    "responses": {str(status): _error(status, by_kind) for status in _statuses(operations)},
                    "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
                },
                "security": [{"token": []}, {}],
            }
        ),
        indent=2,
    )


def _kinds(operations: Iterable[Operation]) -> Iterable[Any]:
    yield from (ErrorBody, Problem)
    for operation in operations:
        if operation.body is not None:
            yield operation.body
        for answer in operation.answers:
            if answer.body is not None and not isinstance(answer.body, str):
                yield from _alternatives(answer.body)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """The members of a union; msgspec itself refuses one of several structs."""
    return typing.get_args(kind) or (kind,)


def _statuses(operations: Iterable[Operation]) -> list[int]:
    return sorted({*_ANY_ROUTE, *(status for operation in operations for status in operation.errors)})


def _operation(operation: Operation, by_kind: dict[Any, Any]) -> dict[str, Any]:
    responses = {str(answer.status): _answer(answer, by_kind) for answer in operation.answers}
    for status in sorted({*operation.errors, *_ANY_ROUTE}):
        responses[str(status)] = {"$ref": f"#/components/responses/{status}"}
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.text,
        "parameters": [
            {
                "name": parameter.name,
                "in": parameter.where,
                "required": parameter.where == "path",
                "description": parameter.text,
                "schema": parameter.schema,
            }
            for parameter in operation.parameters
        ],
        "responses": responses,
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _body(operation, by_kind[operation.body])}
    if operation.path in PUBLIC:
        described["security"] = []
    return described


def _body(operation: Operation, schema: Any) -> dict[str, Any]:
    if not operation.many:
        return {"application/json": {"schema": schema}}
    many = {"type": "array", "items": schema, "minItems": 1, "maxItems": BULK_JOBS}
    lines = {"type": "string", "description": f"One job a line, up to {BULK_JOBS:,}; blank lines are ignored."}
    return {
        "application/json": {"schema": {"oneOf": [schema, many]}},
        "application/x-ndjson": {"schema": lines},
    }


def _answer(answer: Answer, by_kind: dict[Any, Any]) -> dict[str, Any]:
    if isinstance(answer.body, str):
        media = answer.body.partition(";")[0]
        schema: Any = {} if media.endswith("json") else {"type": "string"}
        return {"description": answer.text, "content": {media: {"schema": schema}}}
    schemas = [by_kind[kind] for kind in _alternatives(answer.body)]
    schema = schemas[0] if len(schemas) == 1 else {"oneOf": schemas}
    return {"description": answer.text, "content": {"application/json": {"schema": schema}}}


def _error(status: int, by_kind: dict[Any, Any]) -> dict[str, Any]:
    return {
        "description": http.HTTPStatus(status).phrase,
        "headers": {
            "X-Error-Code": {"description": "A stable name of the error.", "schema": {"type": "string"}},
            "X-Request-ID": {"description": "The id of the request.", "schema": {"type": "string"}},
        },
        "content": {
            "application/json": {"schema": by_kind[ErrorBody]},
            "application/problem+json": {"schema": by_kind[Problem]},
        },
    }
