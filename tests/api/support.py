"""Helpers of the API's tests."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import httpx2
import msgspec

from fencepost.api.app import Services, create_app
from fencepost.api.connection import Bounds
from fencepost.api.server import ApiServer, bind_socket, make_server
from fencepost.app import Fencepost
from fencepost.domain import outcome
from fencepost.domain.backoff import Exponential
from fencepost.domain.context import Context
from fencepost.domain.job import Lease
from fencepost.domain.policy import Policy
from fencepost.errors import Permanent
from fencepost.settings import Secret, Settings
from fencepost.store.claims import Position
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore

PATIENCE_SECONDS = 20.0
JSON = {"content-type": "application/json"}
LINES = {"content-type": "application/x-ndjson"}


async def _echo(context: Context, payload: Any) -> Any:
    return payload


def registry() -> Fencepost:
    """Three job types, none of which is run here."""
    types = Fencepost()
    for name in ("echo", "send_email", "other"):
        types.register(name, _echo)
    return types


def with_settings(services: Services, **changes: Any) -> Services:
    """The same services under other settings."""
    return msgspec.structs.replace(services, settings=msgspec.structs.replace(services.settings, **changes))


def with_tokens(services: Services, *tokens: str) -> Services:
    """The same services, asking for one of *tokens*."""
    return with_settings(services, api_tokens=tuple(map(Secret, tokens)))


def client_of(services: Services, **options: Any) -> httpx2.AsyncClient:
    """A client that calls the application directly."""
    transport = httpx2.ASGITransport(app=create_app(services, **options))
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=PATIENCE_SECONDS)


async def created(api: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    """Make a job; its record."""
    response = await api.post("/jobs", json={"type": "echo", **fields})
    assert response.status_code == 201, response.text
    record: dict[str, Any] = response.json()
    return record


class Worker:
    """A worker by hand."""

    def __init__(self, store: WorkerStore, queues: Queues) -> None:
        self.store = store
        self._queues = queues

    async def take(self, *, queue: str = "default", lease_seconds: float = 60.0) -> Lease:
        """Claim a job of priority 0 that is due."""
        queue_id = await self._queues.id_of(queue)
        cursors = {0: Position(datetime(2020, 1, 1, tzinfo=UTC))}
        claim = await self.store.claim(
            queue_id, slots=1, cursors=cursors, lease_seconds=lease_seconds, aging_seconds=60.0
        )
        return claim.leases[0]

    async def complete(self, lease: Lease, result: bytes | None = None) -> None:
        """End an attempt well."""
        await self.store.settle(lease.queue_id, [outcome.succeeded(lease, result)])

    async def fail(self, lease: Lease, message: str = "boom", *, permanent: bool = False) -> None:
        """End an attempt badly."""
        error = Permanent(message) if permanent else ValueError(message)
        ended = outcome.failed(lease, error, Policy(Exponential(0.0, 0.0)))
        await self.store.settle(lease.queue_id, [ended])


class Served:
    """The API behind a real server."""

    def __init__(self, server: ApiServer, port: int) -> None:
        self.server = server
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Wire]:
        """A bare connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield Wire(reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


class Wire:
    """A bare connection, and what comes back over it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Read one response."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *fields = head.rstrip("\r\n").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(line.split()[1]), headers, body

    async def closed(self) -> bytes:
        """Wait for the other side to close; what came before."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            with suppress(ConnectionError):
                return await self.reader.read()
        return b""


@asynccontextmanager
async def serving(services: Services, *, bounds: Bounds | None = None, **options: Any) -> AsyncIterator[Served]:
    """Run a real server on a port of its own; it must stop by itself at the end."""
    settings: Settings = services.settings
    listening = bind_socket(settings)
    server = make_server(create_app(services, **options), settings, bounds=bounds)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield Served(server, listening.getsockname()[1])
    finally:
        server.stop()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await running


@contextmanager
def own_database(server_url: str, template_url: str) -> Iterator[str]:
    """A migrated database for a whole module, whose tests then compare before and after."""
    name = f"fencepost_{uuid.uuid4().hex[:12]}"
    template = urlsplit(template_url).path[1:]
    asyncio.run(_run(server_url, f"create database {name} template {template}"))
    yield urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
    asyncio.run(_run(server_url, f"drop database {name} with (force)"))


async def _run(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def error_of(response: httpx2.Response) -> str:
    """The sentence of an error in its default form, which holds nothing else."""
    assert response.headers["content-type"] == "application/json"
    body = json.loads(response.content)
    assert list(body) == ["error"]
    assert response.headers["x-error-code"]
    assert response.headers["x-request-id"]
    return str(body["error"])
