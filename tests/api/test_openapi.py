"""The OpenAPI document says what the routes do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from fencepost.api.app import Services, operations
from fencepost.api.schemas import SubmitRequest
from fencepost.domain.requests import JobRequest
from tests.api.support import created

pytestmark = pytest.mark.anyio


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a document."""
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from nodes(item)
    elif isinstance(value, list):
        for item in value:
            yield from nodes(item)


def resolve(document: dict[str, Any], reference: str) -> Any:
    """What a reference points at; KeyError when nothing."""
    found: Any = document
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


async def test_it_lists_every_route(api: httpx2.AsyncClient, services: Services) -> None:
    response = await api.get("/openapi.json")
    document = response.json()
    assert response.headers["content-type"] == "application/json"
    assert document["openapi"].startswith("3.1.")
    listed = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert listed == {(operation.method, operation.path) for operation in operations(services)}
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(set(names)) == len(names)


async def test_its_references_resolve(api: httpx2.AsyncClient) -> None:
    document = (await api.get("/openapi.json")).json()
    references = [node["$ref"] for node in nodes(document) if "$ref" in node]
    assert len(references) > 50
    for reference in references:
        assert resolve(document, reference)


async def test_path_variables_are_declared(api: httpx2.AsyncClient) -> None:
    document = (await api.get("/openapi.json")).json()
    for path, methods in document["paths"].items():
        variables = {part[1:-1] for part in path.split("/") if part.startswith("{")}
        for operation in methods.values():
            declared = {entry["name"] for entry in operation["parameters"] if entry["in"] == "path"}
            assert declared == variables
            assert all(entry["required"] for entry in operation["parameters"] if entry["in"] == "path")


async def test_its_examples_are_accepted(api: httpx2.AsyncClient) -> None:
    schemas = (await api.get("/openapi.json")).json()["components"]["schemas"]
    for kind, path in ((JobRequest, "/jobs"), (SubmitRequest, "/submit")):
        properties = schemas[kind.__name__]["properties"]
        body = {name: schema["examples"][0] for name, schema in properties.items() if schema.get("examples")}
        body.pop("delay", None)
        response = await api.post(path, json=body)
        assert response.status_code == 201, response.text


async def test_bounds_in_it_are_the_ones_that_hold(api: httpx2.AsyncClient) -> None:
    properties = (await api.get("/openapi.json")).json()["components"]["schemas"]["JobRequest"]["properties"]
    for name in ("priority", "max_attempts"):
        low, high = properties[name]["minimum"], properties[name]["maximum"]
        for value, status in ((low, 201), (high, 201), (low - 1, 400), (high + 1, 400)):
            assert (await api.post("/jobs", json={"type": "echo", name: value})).status_code == status


async def test_the_types_in_it_are_the_registered_ones(api: httpx2.AsyncClient) -> None:
    schemas = (await api.get("/openapi.json")).json()["components"]["schemas"]
    assert schemas["JobRequest"]["properties"]["type"]["enum"] == ["echo", "other", "send_email"]
    assert schemas["SubmitRequest"]["properties"]["payload"]["properties"]["task"]["enum"] == [
        "echo",
        "other",
        "send_email",
    ]


async def test_names_and_keys_in_it_are_the_ones_that_hold(api: httpx2.AsyncClient) -> None:
    properties = (await api.get("/openapi.json")).json()["components"]["schemas"]["JobRequest"]["properties"]
    for name, good, bad in (
        ("queue", ("a", "_", "0.a:b-c", "q" * 100), ("", "-a", "a b", "ä", "q" * 101, "a\n")),
        ("idempotency_key", ("a", "a b", "~" * 255), ("", " a", "a ", "ä", "k" * 256, "a\n")),
    ):
        schema = properties[name]
        for value in (*good, *bad):
            # As JSON Schema has it, where $ is the end and nothing else.
            says = len(value) <= schema["maxLength"] and re.fullmatch(schema["pattern"][1:-1], value) is not None
            assert says == (value in good)
            status = (await api.post("/jobs", json={"type": "echo", name: value})).status_code
            assert status == (201 if says else 400), value


async def test_answers_have_the_fields_that_it_says(api: httpx2.AsyncClient) -> None:
    document = (await api.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    job = await created(api)
    assert list(job) == schemas["JobRecord"]["required"]
    status = (await api.get(f"/jobs/{job['id']}/status")).json()
    assert list(status) == schemas["JobStatus"]["required"]
    listed = (await api.get("/jobs")).json()["jobs"][0]
    assert list(listed) == schemas["ListedJob"]["required"]
    queue = (await api.get("/queues/default")).json()
    assert list(queue) == schemas["QueueRecord"]["required"]


async def test_probes_are_open_and_the_rest_is_not(api: httpx2.AsyncClient) -> None:
    document = (await api.get("/openapi.json")).json()
    open_paths = {path for path, methods in document["paths"].items() if methods.get("get", {}).get("security") == []}
    assert open_paths == {"/healthz", "/health", "/readyz"}
    assert document["security"]
