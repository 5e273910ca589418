"""A declared job, as its callers hold it."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from fencepost.client.options import Options, Seconds, changed
from fencepost.client.producer import Call, Producer
from fencepost.domain.context import Context
from fencepost.domain.job import Unique
from fencepost.transactions import Adapter, adapt
from fencepost.types import codec
from fencepost.types.jobtype import JobType
from fencepost.types.signature import Signature
from fencepost.types.unique import UniqueBy

if TYPE_CHECKING:
    from typing import Self

    from fencepost.client.handle import Handle

P = ParamSpec("P")
R = TypeVar("R")


class BoundCall(Call, Generic[R], frozen=True):
    """A call of a job's function with its arguments, checked: what `enqueue_many` takes."""


class Job(Generic[P, R]):
    """
    A function that can be enqueued. Made by `Fencepost.job`.

    *P* are its parameters without the context, *R* is what it returns.
    """

    def __init__(
        self,
        producer: Producer,
        job_type: JobType,
        function: Callable[..., Any],
        signature: Signature,
        options: Options,
    ) -> None:
        self._producer = producer
        self._signature = signature
        self._options = options
        self._adapter: Adapter | None = None
        self._decoder: Any = _UNREAD
        self.job_type = job_type
        self.function = function
        """The function as it was written."""
        self.__name__ = getattr(function, "__name__", job_type.name)
        self.__qualname__ = getattr(function, "__qualname__", self.__name__)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self.__module__ = getattr(function, "__module__", __name__)
        self.__annotations__ = getattr(function, "__annotations__", {})

    @property
    def name(self) -> str:
        """The job type's name."""
        return self.job_type.name

    def __repr__(self) -> str:
        return f"<job {self.name!r}>"

    def call(self, *args: P.args, **kwargs: P.kwargs) -> BoundCall[R]:
        """
        The call with these arguments and this job's options, for `enqueue_many`.

        Raises InvalidJob naming the parameter that is missing, unknown, or of another type.
        """
        payload = self._signature.payload(args, kwargs)
        return BoundCall(
            self._producer,
            self.job_type,
            payload,
            lambda: self._signature.arguments(payload),
            self._options,
            self._result_decoder,
        )

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """
        Store a job that calls the function with these arguments; returns when it is committed.

        In a connection given by `within` it is a part of that transaction, and commits with it.

        Raises InvalidJob naming what is wrong, KeyConflict when the idempotency key made another
        job, DatabaseUnavailable, SchemaMismatch where the schema was never made, and WrongConnection for
        a sync connection. In your connection, what its driver raises reaches you as it is.
        """
        return (await self._producer.enqueue([self.call(*args, **kwargs)], self._adapter))[0]

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """
        The same for sync callers: with a sync connection from `within`, or without any.

        Without one it raises FencepostError where an event loop runs: await `enqueue` there.
        """
        return self._producer.enqueue_sync([self.call(*args, **kwargs)], self._adapter)[0]

    async def enqueue_many(self, calls: Iterable[BoundCall[R]]) -> list[Handle[R]]:
        """Store a job for each of *calls*, made by `call`, in one transaction: all or none. Raises like `enqueue`."""
        return await self._producer.enqueue(list(calls), self._adapter)

    def enqueue_many_sync(self, calls: Iterable[BoundCall[R]]) -> list[Handle[R]]:
        """The same for sync callers."""
        return self._producer.enqueue_sync(list(calls), self._adapter)

    def options(
        self,
        *,
        delay: Seconds | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        max_attempts: int | None = None,
        timeout: Seconds | None = None,
        expires: Seconds | datetime | None = None,
        idempotency_key: str | None = None,
        unique: Unique | UniqueBy | None = None,
        tags: Iterable[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """
        The same job with other options; what isn't given stays as it was.

        Times are seconds or timedeltas, moments are datetimes with a time zone; both are by the
        database's clock. Raises InvalidJob naming the option.
        """
        if isinstance(unique, UniqueBy):
            unique.check_names(self._signature)
        return self._copy(
            _options=changed(
                self._options,
                delay=delay,
                run_at=run_at,
                priority=priority,
                queue=queue,
                max_attempts=max_attempts,
                timeout=timeout,
                expires=expires,
                idempotency_key=idempotency_key,
                unique=unique,
                tags=tags,
                metadata=metadata,
            )
        )

    def within(self, connection: Any) -> Self:
        """
        The same job, enqueued in the open transaction of *connection*.

        It commits with that transaction and is gone with its rollback; workers are woken by the commit. Where
        none is open (asyncpg without `transaction()`, psycopg's autocommit, Django outside of `atomic()`) it is
        stored at once.

        *connection* is one of asyncpg, psycopg 3, SQLAlchemy 2 (a connection or session, sync or async) or Django.

        Raises WrongConnection for anything else, saying what to pass instead.
        """
        return self._copy(_adapter=adapt(connection))

    def _copy(self, **changes: Any) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, **changes)
        return other

    def __copy__(self) -> Self:
        """Itself: like a function, it never changes."""
        return self

    def __deepcopy__(self, memo: object) -> Self:
        """Itself, for the same reason."""
        return self

    def __reduce__(self) -> str:
        """Pickled as a function is: by the name that it has in its module. Raises PicklingError when that isn't it."""
        found: Any = sys.modules.get(self.__module__)
        for part in self.__qualname__.split("."):
            found = getattr(found, part, None)
        if found is not self:
            raise pickle.PicklingError(
                f"{self!r} can't be pickled: it isn't what {self.__module__}.{self.__qualname__} names. Jobs are "
                "pickled by their name, as functions are; so declare it in a module, and add options and connections "
                "where it is used"
            )
        return str(self.__qualname__)

    @property
    def _result_decoder(self) -> Any:
        """Reads what the function returns; None when its type can't be read from JSON."""
        if self._decoder is _UNREAD:
            self._decoder = codec.result_decoder(self._signature.returns)
        return self._decoder


_UNREAD = object()


class AsyncJob(Job[P, R]):
    """A job whose function is async."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function itself, here and now; nothing is enqueued."""
        return cast(Coroutine[Any, Any, R], self.function(*args, **kwargs))


class PlainJob(Job[P, R]):
    """A job whose function is not async."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, here and now; nothing is enqueued."""
        return cast(R, self.function(*args, **kwargs))


class AsyncContextJob(Job[P, R]):
    """A job whose function is async and takes the context first."""

    def __call__(self, context: Context, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function itself, here and now; nothing is enqueued."""
        return cast(Coroutine[Any, Any, R], self.function(context, *args, **kwargs))


class PlainContextJob(Job[P, R]):
    """A job whose function is not async and takes the context first."""

    def __call__(self, context: Context, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, here and now; nothing is enqueued."""
        return cast(R, self.function(context, *args, **kwargs))


class JobDecorator(Protocol):
    """What `app.job(…)` with options returns: makes a job of a function."""

    # They overlap where the first parameter is of a type that a Context is too: it is taken for the context.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> AsyncContextJob[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncJob[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> PlainContextJob[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainJob[P, R]: ...


def job_class(signature: Signature, *, is_async: bool) -> type[Job[..., Any]]:
    """Which of the four a function makes."""
    if signature.context is not None and signature.context_first:
        return AsyncContextJob if is_async else PlainContextJob
    return AsyncJob if is_async else PlainJob
