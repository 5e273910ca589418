"""
The API in a process of its own: `python -m fencepost.cli.bench.api_child`.

As `fencepost serve` with WORKERS=0 puts it together, log lines included: they are
written, one by one, to the null device. With a store, or with one that stores nothing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from fencepost.api.app import Services, create_app
from fencepost.api.server import ApiServer, bind_socket, make_server
from fencepost.app import Fencepost
from fencepost.cli.bench.processes import answering
from fencepost.cli.bench.reaching import settings_of
from fencepost.cli.worker_thread import new_event_loop
from fencepost.domain.job import NewJob
from fencepost.settings import Settings
from fencepost.store.database import Database
from fencepost.store.enqueueing import Enqueued
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.telemetry import logs


class Question(msgspec.Struct, frozen=True):
    """The first says what to be; each is answered with a `State`."""

    dsn: str = ""
    schema: str = ""
    stores: bool = True
    """Whether there is a database behind it."""


class State(msgspec.Struct, frozen=True):
    """Where it listens, and what it has taken so far."""

    port: int
    cpu_seconds: float


class NullJobs(Jobs):
    """Stores nothing, at once: what the API costs by itself."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Say that *jobs* were stored."""
        now = datetime.now(UTC)
        return [Enqueued(job.id, created_at=now, run_at=now) for job in jobs]


class _Api:
    """The API, once it is known what it is to be."""

    def __init__(self) -> None:
        self._port = 0
        self._server: ApiServer | None = None
        self._database: Database | None = None
        self._hints: Hints | None = None
        self._serving: asyncio.Task[None] | None = None

    async def answer(self, question: Question) -> State:
        """Start if that is still to be done, and say how it stands."""
        if self._serving is None:
            await self._start(question)
        return State(self._port, time.process_time())

    async def _start(self, question: Question) -> None:
        settings = settings_of(question.dsn, question.schema, http_host="127.0.0.1", http_port=0, workers=0)
        self._database = database = Database.of(settings, question.dsn, connections=settings.database_connections)
        if question.stores:
            await database.open()
        self._hints = hints = Hints(database)
        jobs = Jobs if question.stores else NullJobs
        services = Services.of(settings, _types().types, database, hints, jobs=jobs)
        listening = bind_socket(settings)
        self._port = listening.getsockname()[1]
        self._server = make_server(create_app(services), settings)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]))

    async def stop(self) -> None:
        """Let go of everything."""
        if self._server is not None and self._serving is not None:
            self._server.stop()
            await self._serving
        if self._hints is not None:
            await self._hints.close()
        if self._database is not None:
            await self._database.close()


def main() -> None:
    """Run the child."""
    logs.configure(Settings(), stream=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the end
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run())


async def _run() -> None:
    api = _Api()
    try:
        await answering(Question, api.answer)
    finally:
        await api.stop()


def _types() -> Fencepost:
    app = Fencepost()

    async def noop(context: object, payload: object) -> None: ...

    app.register("noop", noop)
    return app


if __name__ == "__main__":
    main()
