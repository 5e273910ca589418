"""From calls to stored jobs: in connections of the app's, or in the caller's own transaction."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from fencepost.client.draft import AroundEnqueue, drafted
from fencepost.client.dsn import Dsn, check_dsn, own_settings, read_dsn
from fencepost.client.handle import Handle
from fencepost.client.loops import refuse_in_loop
from fencepost.client.options import Options
from fencepost.domain.fields import shown
from fencepost.domain.ids import new_id
from fencepost.domain.job import NewJob, Unique
from fencepost.errors import FencepostError, InvalidJob
from fencepost.settings import Secret, Settings, from_environment
from fencepost.transactions import Adapter
from fencepost.types.jobtype import JobType
from fencepost.types.unique import UniqueBy

if TYPE_CHECKING:
    from fencepost.client.address import Address
    from fencepost.client.clients import Client, Clients
    from fencepost.client.portal import Portal
    from fencepost.store.enqueueing import Enqueued

T = TypeVar("T")
_making = threading.RLock()
"""One thread at a time makes what an app has one of."""
# Whoever held it in the parent isn't in the child. `forking` does that for what an app has one of.
os.register_at_fork(after_in_child=lambda: globals().update(_making=threading.RLock()))


class Call(msgspec.Struct, frozen=True):
    """One call of a job's function, to be enqueued: made by `Job.call`."""

    producer: Producer
    """What it is enqueued with: that of its app."""
    job_type: JobType
    payload: bytes
    arguments: Callable[[], Mapping[str, Any]]
    """The arguments as JSON has them, with the function's defaults."""
    options: Options
    result_decoder: Any = None


class Producer:
    """
    What an app enqueues with. Nothing is imported, opened or started before it is needed.

    The connections it opens belong to the event loop that needed them.
    """

    def __init__(
        self,
        dsn: Dsn | None,
        schema: str | None,
        settings: Settings | None,
        *,
        pooler: str | None = None,
        listen_url: str | None = None,
    ) -> None:
        self._dsn = check_dsn(dsn)
        self._own = own_settings(schema, pooler, listen_url)
        self._given = settings
        self._settings: Settings | None = None
        self._address: Address | None = None
        self._clients: Clients | None = None
        self._portal: Portal | None = None
        self.around: list[AroundEnqueue] = []
        self.listeners: list[Callable[[Any], object]] = []
        self.wakers: list[Callable[[Iterable[int]], None]] = []
        """Workers in this process."""

    @property
    def settings(self) -> Settings:
        """The app's settings: those it was given, else those of the environment. Raises InvalidSettings."""
        if self._settings is None:
            self._settings = msgspec.structs.replace(self._given or from_environment(), **self._own)
        return self._settings

    @property
    def address(self) -> Address:
        """Where the jobs are."""
        with _making:
            if self._address is None:
                from fencepost.client.address import Address

                self._address = Address(self._dsn, lambda: self.settings, started=self._close_before_the_server)
            return self._address

    @property
    def clients(self) -> Clients:
        """The clients of every loop."""
        with _making:
            if self._clients is None:
                from fencepost.client.clients import Clients

                self._clients = Clients(self.address, lambda: self.settings, wake=self._wake)
            return self._clients

    async def client(self) -> Client:
        """The client of the running loop, open. Raises DatabaseUnavailable and InvalidSettings."""
        return await self.clients.get()

    def _wake(self, queue_ids: Iterable[int]) -> None:
        for wake in self.wakers:
            wake(queue_ids)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* in a loop of another thread, and wait for what comes of it. Raises FencepostError in a loop."""
        try:
            refuse_in_loop()
        except FencepostError:
            work.close()
            raise
        with _making:
            if self._portal is None:
                from fencepost.client.portal import Portal

                self._portal = Portal(self.close_here)
            portal = self._portal
        return portal.run(work)

    def use(self, dsn: Dsn | None, settings: Settings | None) -> None:
        """From now on the jobs are there. What is open must have been closed before."""
        self._dsn, self._given, self._own = check_dsn(dsn), settings, {}
        self._settings = self._address = self._clients = None

    def default_to(self, settings: Settings) -> None:
        """Use *settings* unless there were some given."""
        if self._given is None:
            self._given, self._settings = settings, None

    def own_address(self) -> dict[str, Any]:
        """The settings of how the jobs are reached that were given one by one: they win over others."""
        return self._own if self._dsn is None else {**self._own, "database_url": Secret(read_dsn(self._dsn))}

    def _close_before_the_server(self) -> None:
        """At the end of the program, what starts last is stopped first; connections should go before their server."""
        if self._portal is not None:
            self._portal.stop_first()

    def stop(self) -> None:
        """End the loop for sync callers, and close what it has open. Blocks; the next `wait` starts another."""
        if self._portal is not None:
            self._portal.stop()

    async def close_here(self) -> None:
        """Close what is open in the running loop; the embedded server too, when nothing else uses it."""
        if self._clients is None:
            return
        await self._clients.close()
        if not self._clients.are_open and self.address.is_embedded:
            import asyncio

            try:
                await asyncio.to_thread(self.address.release)
            except RuntimeError:
                # The interpreter is ending, and starts no threads any more.
                self.address.release()

    async def enqueue(self, calls: Sequence[Call], adapter: Adapter | None) -> list[Handle[Any]]:
        """
        Store the jobs of *calls*, all or none.

        Raises InvalidJob, KeyConflict, WrongConnection, DatabaseUnavailable, and in the caller's
        connection what its driver raises.
        """
        if not self._are_ours(calls):
            return []
        stored: Sequence[Enqueued] | None = None
        with _traced(calls), drafted(self.around, [self._new_job(call) for call in calls]) as jobs:
            stored = await (self._store(jobs) if adapter is None else self._store_in(adapter, jobs))
        return self._handles(calls, jobs, stored, adapter)

    def enqueue_sync(self, calls: Sequence[Call], adapter: Adapter | None) -> list[Handle[Any]]:
        """
        The same for sync callers: in a sync connection, or else by way of another thread's loop.

        All but the storing happens in the caller's thread, where its context is. Raises FencepostError where that
        runs an event loop, unless there is a connection.
        """
        if not self._are_ours(calls):
            return []
        if adapter is None:
            refuse_in_loop()
        stored: Sequence[Enqueued] | None = None
        with _traced(calls), drafted(self.around, [self._new_job(call) for call in calls]) as jobs:
            stored = self.wait(self._store(jobs)) if adapter is None else self._store_in_sync(adapter, jobs)
        return self._handles(calls, jobs, stored, adapter)

    def _are_ours(self, calls: Sequence[object]) -> bool:
        """Whether there are any. Raises InvalidJob for what is no call, or one of another app."""
        for place, call in enumerate(calls):
            if not isinstance(call, Call):
                raise InvalidJob(f"must be made by job.call(…), not {shown(call)}", field="calls", index=place)
            if call.producer is not self:
                raise InvalidJob(
                    f"is of another app's {call.job_type.name!r}; enqueue it there", field="calls", index=place
                )
        return bool(calls)

    async def _store(self, jobs: list[NewJob]) -> Sequence[Enqueued]:
        return await (await self.client()).jobs.enqueue(jobs)

    async def _store_in(self, adapter: Adapter, jobs: list[NewJob]) -> Sequence[Enqueued]:
        from fencepost.store.enqueueing import encode_jobs, enqueue_sql, read_answer

        return read_answer(await adapter.fetch_value(enqueue_sql(self.settings.schema), encode_jobs(jobs)), jobs)

    def _store_in_sync(self, adapter: Adapter, jobs: list[NewJob]) -> Sequence[Enqueued]:
        from fencepost.store.enqueueing import encode_jobs, enqueue_sql, read_answer

        return read_answer(adapter.fetch_value_sync(enqueue_sql(self.settings.schema), encode_jobs(jobs)), jobs)

    def _handles(
        self, calls: Sequence[Call], jobs: Sequence[NewJob], stored: Sequence[Enqueued] | None, adapter: Adapter | None
    ) -> list[Handle[Any]]:
        if stored is None:
            raise FencepostError("a function around the enqueue caught its error and raised none, so nothing is known")
        if self.listeners:
            self._tell(jobs, stored)
        return [
            Handle(
                self,
                one.id,
                effect=one.effect,
                decoder=call.result_decoder,
                may_appear=adapter is not None,
            )
            for call, one in zip(calls, stored, strict=True)
        ]

    def _tell(self, jobs: Sequence[NewJob], stored: Sequence[Enqueued]) -> None:
        from fencepost.telemetry.events import Hooks, JobEnqueued

        hooks = Hooks(self.listeners)
        for job, one in zip(jobs, stored, strict=True):
            if one.is_new:
                hooks.emit(JobEnqueued(one.id, job.type, job.queue))

    def _new_job(self, call: Call) -> NewJob:
        options, job_type = call.options, call.job_type
        if len(call.payload) > self.settings.max_payload_bytes:
            raise InvalidJob(
                f"takes {len(call.payload):,} bytes; the limit is {self.settings.max_payload_bytes:,}", field="payload"
            )
        expires = options.expires_seconds
        if expires is None and options.expires_at is None:
            expires = job_type.expires_seconds
        return NewJob(
            id=new_id(),
            type=job_type.name,
            queue=job_type.queue if options.queue is None else options.queue,
            priority=job_type.priority if options.priority is None else options.priority,
            payload=call.payload,
            max_attempts=options.max_attempts or job_type.max_attempts or self.settings.max_attempts,
            run_at=options.run_at,
            delay_seconds=options.delay_seconds,
            timeout_seconds=options.timeout_seconds,
            idempotency_key=options.idempotency_key,
            unique=_unique(call),
            tags=options.tags,
            metadata=options.metadata,
            trace_context=_trace_context(),
            expires_at=options.expires_at,
            expires_seconds=expires,
        )


def _unique(call: Call) -> Unique | None:
    unique = call.options.unique
    return unique.unique(call.arguments()) if isinstance(unique, UniqueBy) else unique


def _traced(calls: Sequence[Call]) -> AbstractContextManager[None]:
    """A span around an enqueue. Without OpenTelemetry's API imported there is none, and importing it takes long."""
    if "opentelemetry" not in sys.modules:
        return nullcontext()
    from fencepost.telemetry.tracing import enqueue_span

    queues = {call.options.queue or call.job_type.queue for call in calls}
    return enqueue_span([call.job_type.name for call in calls], queues.pop() if len(queues) == 1 else None)


def _trace_context() -> str | None:
    """The caller's trace, or the enqueue's own span in it."""
    if "opentelemetry" not in sys.modules:
        return None
    from fencepost.telemetry.tracing import current_traceparent

    return current_traceparent()
