"""What users hold: the app, its job types, and the ways to enqueue, look and work."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from fencepost.client.access import Access
from fencepost.client.draft import AroundEnqueue
from fencepost.client.dsn import Dsn
from fencepost.client.job import AsyncContextJob, AsyncJob, Job, JobDecorator, PlainContextJob, PlainJob, job_class
from fencepost.client.options import Options
from fencepost.client.producer import Producer
from fencepost.domain.backoff import Backoff, Exponential
from fencepost.domain.context import Context
from fencepost.domain.job import Unique
from fencepost.errors import InvalidSettings
from fencepost.settings import Settings
from fencepost.types.declaring import Declaration, Exceptions, Seconds, declared, low_level, place_of
from fencepost.types.functions import is_async
from fencepost.types.jobtype import Handler, JobType
from fencepost.types.signature import Payload
from fencepost.types.unique import UniqueBy

if TYPE_CHECKING:
    from fencepost.telemetry.events import Event
    from fencepost.worker.runtime import AroundAttempt, Lifespan, Runtime
    from fencepost.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_Around = TypeVar("_Around", bound=AroundEnqueue)
_AroundAttempt = TypeVar("_AroundAttempt", bound="AroundAttempt")
_Listener = TypeVar("_Listener", bound="Callable[[Event], object]")


class Fencepost(Access):
    """
    An app: its job types, and where its jobs are.

    *dsn* is a PostgreSQL address, or a function that tells it when connections are opened. Without one it is
    DATABASE_URL, and without that the embedded PostgreSQL, which is started if nobody runs it. *schema* is
    SCHEMA, *pooler* is DATABASE_POOLER and *listen_url* DATABASE_LISTEN_URL; *settings* are those of the
    environment. *lifespan* opens what handlers share; see `resource`.

    Nothing is connected, imported or read before it is needed.
    """

    def __init__(
        self,
        dsn: Dsn | None = None,
        *,
        schema: str | None = None,
        pooler: str | None = None,
        listen_url: str | None = None,
        settings: Settings | None = None,
        lifespan: Lifespan | None = None,
    ) -> None:
        self.types: dict[str, JobType] = {}
        """The job types that run here."""
        self.lifespan = lifespan
        self._places: dict[str, str] = {}
        self._around_attempt: list[AroundAttempt] = []
        self._origin: Fencepost = self
        self._producer = Producer(dsn, schema, settings, pooler=pooler, listen_url=listen_url)

    # They overlap where the first parameter is of a type that a Context is too: it is taken for the context.
    @overload
    def job(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> AsyncContextJob[P, R]: ...
    @overload
    def job(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncJob[P, R]: ...
    @overload
    def job(self, function: Callable[Concatenate[Context, P], R], /) -> PlainContextJob[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> PlainJob[P, R]: ...
    @overload
    def job(
        self,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        max_attempts: int | None = None,
        timeout: Seconds | None = None,
        expires: Seconds | None = None,
        backoff: Backoff | None = None,
        retry_on: Exceptions | None = None,
        permanent_on: Exceptions = (),
        unique: Unique | UniqueBy | None = None,
        process: bool = False,
    ) -> JobDecorator: ...
    # Looser than the overloads: what is in options is checked when it runs, by Declaration.
    def job(self, function: Any = None, /, **options: Any) -> Any:  # type: ignore[misc]
        """
        Make a job of a function: async ones run in the worker's loop, plain ones in a thread.

        Its parameters, by their annotations, are the members of the payload. A `Context` parameter, first or
        after a `*`, and those with `resource()` as default are not; a `Payload[T]` parameter is all of it.

        *name* is the function's own by default. *queue*, *priority*, *max_attempts* and *unique* hold for jobs that
        don't say; *timeout* is the longest run of an attempt and *expires* how long after it was stored a job may
        start (seconds or a timedelta). *backoff* is Exponential, Linear, Constant, or a function from the attempt
        to seconds. With *retry_on* only those exceptions are tried again; *permanent_on* are never.
        *process* runs it in a child process, which can be killed: for what computes.

        Raises InvalidSettings, saying where and what, for whatever can't work.
        """
        try:
            wanted = Declaration(**options)
        except TypeError as error:
            raise InvalidSettings(f"app.job: {error}; it takes {', '.join(Declaration.__struct_fields__)}") from None
        return self._declare(function, wanted) if function is not None else lambda found: self._declare(found, wanted)

    def _declare(self, function: Any, wanted: Declaration) -> Job[..., Any]:
        if isinstance(function, Job):
            # Of another app, or under another name as well.
            function = function.function
        job_type, signature = declared(function, wanted, backoff=self._backoff)
        self._add(job_type, place_of(function))
        kind = job_class(signature, is_async=is_async(function))
        return kind(self._producer, job_type, function, signature, Options(unique=wanted.unique))

    def _backoff(self) -> Backoff:
        return Exponential(self.settings.backoff_base_seconds, self.settings.backoff_max_seconds)

    def _add(self, job_type: JobType, place: str) -> None:
        name = job_type.name
        if name in self._places:
            raise InvalidSettings(
                f"the job type {name!r} is declared twice, by {self._places[name]} and by {place}; "
                "give one of them another name="
            )
        self._places[name] = place
        self.types[name] = job_type

    def register(self, name: str, handler: Handler, payload: Any = Any) -> None:
        """
        Make *handler*, a function of the context and the payload, run the jobs of type *name*.

        The low-level door: the payload is one value that fits the type *payload*. Raises InvalidSettings.
        """
        self._add(low_level(name, handler, payload), place_of(handler))

    @overload
    def declare(
        self,
        name: str,
        *,
        payload: type[T],
        queue: str = "default",
        priority: int = 0,
        max_attempts: int | None = None,
        unique: Unique | UniqueBy | None = None,
    ) -> PlainJob[[T], Any]: ...
    @overload
    def declare(
        self,
        name: str,
        *,
        payload: Any = Any,
        queue: str = "default",
        priority: int = 0,
        max_attempts: int | None = None,
        unique: Unique | UniqueBy | None = None,
    ) -> PlainJob[[Any], Any]: ...
    def declare(self, name: str, *, payload: Any = Any, **options: Any) -> PlainJob[[Any], Any]:
        """
        A job type that runs elsewhere, to enqueue it here: its one argument is the payload.

        Raises InvalidSettings.
        """

        def elsewhere(payload: Any) -> Any:
            raise InvalidSettings(f"the job type {name!r} runs elsewhere, so it can't be called here")

        whole: Any = Payload
        elsewhere.__annotations__ = {"payload": whole[payload], "return": Any}
        wanted = Declaration(name=name, **options)
        job_type, signature = declared(elsewhere, wanted, backoff=self._backoff)
        return PlainJob(self._producer, job_type, elsewhere, signature, Options(unique=wanted.unique))

    def around_enqueue(self, function: _Around) -> _Around:
        """
        Run a generator function around each enqueue: before its `yield` it may change the drafts of the jobs.

        After it the jobs are stored (in a caller's transaction: not committed yet). The first declared is the
        outermost. It runs in sync and in async callers alike, so it must not block.
        """
        checked: object = function
        if not inspect.isgeneratorfunction(checked):
            raise InvalidSettings(
                f"around_enqueue: {place_of(function)} must be a plain generator function that yields once, "
                "since it runs around sync enqueues too"
            )
        self._producer.around.append(function)
        return function

    def around_attempt(self, function: _AroundAttempt) -> _AroundAttempt:
        """Run an async generator function around each attempt, which is at its `yield`; the first is the outermost."""
        if not inspect.isasyncgenfunction(function) and not inspect.isgeneratorfunction(function):
            raise InvalidSettings(
                f"around_attempt: {place_of(function)} must be a generator function, async or plain, that yields once"
            )
        self._around_attempt.append(function)
        return function

    def on_event(self, function: _Listener) -> _Listener:
        """Tell a plain function of everything that happens to jobs in this process, as `Event` values."""
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise InvalidSettings(f"on_event: {place_of(function)} must be a plain function; nothing awaits it")
        self._producer.listeners.append(function)
        return function

    def adopt(self, other: Fencepost) -> None:
        """
        Take over the job types of *other*, its lifespan and all its functions around enqueues, attempts and events.

        Raises InvalidSettings for a type that both have.
        """
        for name, job_type in other.types.items():
            self._add(job_type, other._places[name])
        self.lifespan = other.lifespan
        self._around_attempt = other._around_attempt
        self._producer = other._producer
        self._origin = other

    def default_to(self, settings: Settings) -> None:
        """Use *settings* unless it was made with settings of its own; what is open is left as it is."""
        self._producer.default_to(settings)

    def own_address(self) -> dict[str, Any]:
        """The dsn, the schema and so on that it was made with, by the names of settings."""
        return self._producer.own_address()

    @asynccontextmanager
    async def worker(self, *, workers: int | None = None) -> AsyncIterator[Worker]:
        """
        Run this app's jobs in the current event loop, *workers* (or WORKERS) at once, for as long as this lasts.

        Jobs that are enqueued in this process wake it in memory. At the end running jobs get SHUTDOWN_TIMEOUT, and
        what is still running then is released without costing an attempt.

        Raises DatabaseUnavailable, InvalidSettings and SchemaMismatch.
        """
        import msgspec

        from fencepost.telemetry.events import Events
        from fencepost.worker.worker import Worker

        settings = self.settings
        if workers is not None:
            settings = msgspec.structs.replace(settings, workers=workers)
        client = await self._producer.clients.get(prepared=True)
        worker = Worker(client.database.dsn, self.runtime(), settings.check(), Events())
        self._producer.wakers.append(worker.wake)
        try:
            await worker.start()
            yield worker
        finally:
            self._producer.wakers.remove(worker.wake)
            await worker.drain(settings.shutdown_timeout_seconds)

    async def run_worker(self, *, workers: int | None = None) -> None:
        """
        Run this app's jobs until SIGINT or SIGTERM, or until this is cancelled; then stop like `worker`, and return.

        A second signal ends the process at once. Signals that the program handles itself are left to it, and so
        are all of them outside of the main thread. Raises like `worker`, and RuntimeError when a handler has ended
        the worker's own tasks.
        """
        from fencepost.worker.stop_signals import stopping

        with stopping() as stop:
            async with self.worker(workers=workers) as worker:
                await worker.until(stop)

    def runtime(self) -> Runtime:
        """All that a worker needs to know of this app."""
        from fencepost.telemetry.events import Hooks
        from fencepost.worker.runtime import Runtime

        return Runtime(
            types=self.types,
            lifespan=self.lifespan,
            around_attempt=tuple(self._around_attempt),
            hooks=Hooks(self._producer.listeners),
            app=self._origin,
        )
