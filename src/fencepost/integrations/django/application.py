"""The app of a Django project: where Django's database is, and with its connections looked after."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import connections

from fencepost.app import Fencepost
from fencepost.domain.context import Context
from fencepost.integrations.django.configuration import database_url, schema
from fencepost.settings import Settings
from fencepost.types.jobtype import Handler, JobType, Kind
from fencepost.worker.runtime import Lifespan

ENTRY = "fencepost.integrations.django.entry:app"
"""Where processes that Django didn't start find the project's app."""


class DjangoFencepost(Fencepost):
    """
    A Fencepost whose jobs are in the database that FENCEPOST_DATABASE names, also during Django's tests.

    Handlers may use the ORM as views do, async or not: what an attempt opens is closed, or goes
    back to Django's pool, when it has ended.
    """

    def __init__(self, *, lifespan: Lifespan | None = None, settings: Settings | None = None) -> None:
        super().__init__(database_url, schema=schema(), settings=settings, lifespan=lifespan)
        self.around_attempt(own_thread)
        self.around_attempt(closed_connections)

    def _add(self, job_type: JobType, place: str) -> None:
        if job_type.kind is Kind.PROCESS:
            # A child imports this, and Django is set up by it before there are models.
            job_type = msgspec.structs.replace(job_type, path=ENTRY, handler=_closing(job_type.handler))
        super()._add(job_type, place)


async def own_thread(_: Context) -> AsyncIterator[None]:
    """
    Give the ORM of an async handler a thread, and so connections, of its own.

    Otherwise all handlers of a worker would take turns in the one thread that Django keeps for
    async code. There is none until the handler makes its first query.
    """
    async with ThreadSensitiveContext() as context:
        try:
            yield
        finally:
            if context in SyncToAsync.context_to_thread_executor:
                await sync_to_async(close_connections, thread_sensitive=True)()


def closed_connections(_: Context) -> Iterator[None]:
    """Close what a plain handler has opened in its thread, which ends with it."""
    try:
        yield
    finally:
        # Around an async handler this runs in the event loop's thread, where Django opens nothing.
        if not is_in_event_loop():
            close_connections()


def close_connections() -> None:
    """Close this thread's connections, but not one that is inside a transaction: a test's, say."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def is_in_event_loop() -> bool:
    """Whether this thread runs an event loop just now."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _closing(handler: Handler) -> Handler:
    @functools.wraps(handler)
    def run(*arguments: Any) -> Any:
        try:
            return handler(*arguments)
        finally:
            close_connections()

    return run
