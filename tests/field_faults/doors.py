"""The ways in: each hands in payloads under given options, all or none, and tells the ids or how it was refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import asyncpg
import httpx2
import msgspec
import psycopg

from fencepost import Fencepost

Door = Callable[[Sequence[Any]], Awaitable[list[UUID]]]


class Refused(Exception):
    """A door's way of saying no: its message, and for HTTP the status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Doors:
    """Every door to one database, for jobs of the type `echo` under the same options."""

    def __init__(self, app: Fencepost, echo: Any, api: httpx2.AsyncClient, dsn: str) -> None:
        self._app = app
        self._echo = echo
        self._api = api
        self._dsn = dsn

    def all(self, **options: Any) -> dict[str, Door]:
        """The doors by their names."""

        # Refused where it is said, so not said before its door is tried.
        def job() -> Any:
            return self._echo.options(**options)

        return {
            "library": lambda payloads: self._library(job, payloads),
            "library, sync": lambda payloads: asyncio.to_thread(self._library_sync, job, payloads),
            "library, within asyncpg": lambda payloads: self._within_asyncpg(job, payloads),
            "library, within psycopg": lambda payloads: asyncio.to_thread(self._within_psycopg, job, payloads),
            "http": lambda payloads: self._http(payloads, options),
            "http, lines": lambda payloads: self._http(payloads, options, lines=True),
            "sql": lambda payloads: self._sql(payloads, options),
        }

    async def _library(self, job_of: Callable[[], Any], payloads: Sequence[Any]) -> list[UUID]:
        job = job_of()
        if len(payloads) == 1:
            return [(await job.enqueue(payloads[0])).id]
        return [handle.id for handle in await self._app.enqueue_many([job.call(one) for one in payloads])]

    def _library_sync(self, job_of: Callable[[], Any], payloads: Sequence[Any]) -> list[UUID]:
        job = job_of()
        if len(payloads) == 1:
            return [job.enqueue_sync(payloads[0]).id]
        return [handle.id for handle in self._app.enqueue_many_sync([job.call(one) for one in payloads])]

    async def _within_asyncpg(self, job_of: Callable[[], Any], payloads: Sequence[Any]) -> list[UUID]:
        connection = await asyncpg.connect(self._dsn)
        try:
            async with connection.transaction():
                calls = [job_of().call(one) for one in payloads]
                return [handle.id for handle in await self._app.enqueue_many(calls, within=connection)]
        finally:
            await connection.close()

    def _within_psycopg(self, job_of: Callable[[], Any], payloads: Sequence[Any]) -> list[UUID]:
        with psycopg.connect(self._dsn) as connection:
            calls = [job_of().call(one) for one in payloads]
            return [handle.id for handle in self._app.enqueue_many_sync(calls, within=connection)]

    async def _http(self, payloads: Sequence[Any], options: dict[str, Any], *, lines: bool = False) -> list[UUID]:
        # Written by the standard library, which writes whatever Python holds: NaN, half pairs, numbers of any size.
        bodies = [
            json.dumps({"type": "echo", "payload": {"payload": payload}, **options}, default=str)
            for payload in payloads
        ]
        kind = "application/x-ndjson" if lines else "application/json"
        body = "\n".join(bodies) if lines else bodies[0] if len(bodies) == 1 else f"[{','.join(bodies)}]"
        answer = await self._api.post("/jobs", content=body.encode(), headers={"content-type": kind})
        if answer.status_code not in (200, 201):
            raise Refused(answer.json()["error"], answer.status_code)
        found = answer.json()
        return [UUID(one["id"]) for one in found.get("jobs", [found])]

    async def _sql(self, payloads: Sequence[Any], options: dict[str, Any]) -> list[UUID]:
        connection = await asyncpg.connect(self._dsn)
        named = {"queue", "priority", "idempotency_key", "tags", "run_at"} & options.keys()
        extra = "".join(f", {name} => ${place}" for place, name in enumerate(sorted(named), 2))
        try:
            async with connection.transaction():
                return [
                    await connection.fetchval(
                        f"select fencepost.enqueue('echo', cast(cast($1 as text) as jsonb){extra})",
                        msgspec.json.encode({"payload": payload}).decode(),
                        *(options[name] for name in sorted(named)),
                    )
                    for payload in payloads
                ]
        finally:
            await connection.close()
