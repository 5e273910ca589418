"""Run everything that is due, by a real worker, and stop when nothing is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from uuid import UUID

import msgspec

from fencepost.domain.context import Context
from fencepost.domain.outcome import Ending
from fencepost.settings import Settings
from fencepost.store.database import Database
from fencepost.telemetry.events import AttemptEnded, Event, Events, Hooks
from fencepost.testing.report import Report, report_of
from fencepost.worker.children.process import ChildFailure
from fencepost.worker.runtime import Runtime
from fencepost.worker.worker import Worker

LOOK_SECONDS = 0.05
"""How often the database is asked whether anything is left, where no attempt ends in between."""
_FAULTS = (Ending.FAILED, Ending.TIMED_OUT, Ending.PERMANENT, Ending.LOST)
_NOT_RAISED = (asyncio.CancelledError, GeneratorExit)


class HandlerFailed(AssertionError):
    """An attempt failed without an exception to show: in a child process, by its timeout, or before it ran."""


class Drain:
    """One drain."""

    def __init__(
        self, runtime: Runtime, dsn: str, settings: Settings, *, queue: str | None, limit: int, raise_errors: bool
    ) -> None:
        self._limit = limit
        self._raise_errors = raise_errors
        self._queues = None if queue is None else [queue]
        self._events: list[AttemptEnded] = []
        self._exceptions: dict[tuple[UUID, int], BaseException] = {}
        self._traces: dict[tuple[UUID, int], str] = {}
        """Of what was raised in child processes."""
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._settings = msgspec.structs.replace(
            settings,
            queues=() if queue is None else (queue,),
            recovery_interval_seconds=LOOK_SECONDS,
            # What a test looks at afterwards isn't removed, however far the clock was put forward.
            retain_completed_seconds=0.0,
            retain_failed_seconds=0.0,
            retain_dead_letter_seconds=0.0,
            retain_cancelled_seconds=0.0,
        )
        hooks = Hooks([*runtime.hooks.listeners, self._hear])
        around = (self._watch, *runtime.around_attempt)
        self._worker = Worker(
            dsn, msgspec.structs.replace(runtime, hooks=hooks, around_attempt=around), self._settings, Events()
        )
        self._database = Database(dsn, schema=settings.schema, connections=1, lines=0)

    async def run(self) -> Report:
        """Run until nothing is due. Raises AssertionError at the limit, and on request what a handler raised."""
        try:
            await self._database.open()
            await self._worker.start()
            try:
                await self._until_nothing_is_due()
            finally:
                await self._worker.drain(self._settings.shutdown_timeout_seconds)
        finally:
            await self._database.close()
        if self._raise_errors:
            self._raise_first()
        return report_of(self._events, self._exceptions)

    async def _until_nothing_is_due(self) -> None:
        while not (self._raise_errors and self._has_failed()):
            self._ended.clear()
            [state] = await self._database.fetch("drain_state", worker_id=self._worker.id, queues=self._queues)
            if not (state["due"] or state["leased"] or state["expired"]):
                return
            if len(self._events) >= self._limit:
                self._give_up()
            self._worker.wake(state["due"])
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), LOOK_SECONDS)

    def _give_up(self) -> None:
        most = ", ".join(
            f"{name} ({count})" for name, count in Counter(one.type for one in self._events).most_common(5)
        )
        raise AssertionError(
            f"drain has run {len(self._events)} attempts and more is due; if that is no job which is due again and "
            f"again, give a larger limit=. Most attempts: {most}"
        )

    def _hear(self, event: Event) -> None:
        if isinstance(event, AttemptEnded):
            self._events.append(event)
            self._loop.call_soon_threadsafe(self._ended.set)

    async def _watch(self, context: Context) -> AsyncIterator[None]:
        """Remember what a handler raises: its traceback is the test's best message."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, ChildFailure):
                self._traces[context.id, context.token] = error.judgement.traceback or ""
            elif not isinstance(error, _NOT_RAISED):
                self._exceptions[context.id, context.token] = error
            raise

    def _has_failed(self) -> bool:
        return any(event.ending in _FAULTS for event in self._events)

    def _raise_first(self) -> None:
        for event in self._events:
            if event.ending in _FAULTS:
                key = (event.job_id, event.token)
                if key in self._exceptions:
                    raise self._exceptions[key]
                what = f"{event.type} (attempt {event.attempt}) {event.ending.value}: {event.error_type}: {event.error}"
                raise HandlerFailed("\n".join(filter(None, (what, self._traces.get(key)))))


async def drain(runtime: Runtime, dsn: str, settings: Settings, **options: Any) -> Report:
    """Drain in the running loop."""
    return await Drain(runtime, dsn, settings, **options).run()
