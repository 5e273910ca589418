"""
One job, here and now: its payload is written and read as on the way through the database, and its function is called.

Nothing else of a worker is there: no retries, no timeouts, no functions around attempts.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from fencepost.client.job import Job
from fencepost.domain.context import Context, DetachedControl
from fencepost.domain.ids import new_id
from fencepost.types import codec

if TYPE_CHECKING:
    from fencepost.app import Fencepost

R = TypeVar("R")

ATTEMPTS = 5
TIMEOUT_SECONDS = 30.0
"""What a job gets that says nothing: the defaults of the settings."""


class _Control(DetachedControl):
    def __init__(self, resources: Any, seconds: float) -> None:
        super().__init__(seconds=seconds)
        self._resources = resources

    def resource(self, name: str | None, annotation: Any) -> Any:
        return self._resources.find(name, annotation)


async def run_inline(job: Job[..., R], /, *args: Any, **kwargs: Any) -> R:
    """
    Run *job* with these arguments in this thread; returns its result as whoever waits for it would get it.

    The arguments go through JSON and back, so what works here fits the function also in a worker.
    The context is that of a first attempt. Needs no database. For a job that takes resources there is
    `Kit.run_inline`, which opens the app's lifespan; or call the function itself, with resources of your own.

    Raises InvalidJob for arguments that don't fit, and whatever the function raises.
    """
    return await run_with(job, None, args, kwargs)


def run_inline_sync(job: Job[..., R], /, *args: Any, **kwargs: Any) -> R:
    """The same for sync tests: a plain function runs in this thread, an async one in a loop of its own."""
    call = _prepared(job, None, args, kwargs)
    result = call()
    if inspect.isawaitable(result):

        async def awaited() -> Any:
            return await result

        result = asyncio.run(awaited())
    return _as_read(job, result)


async def run_with(
    job: Job[..., R], resources: Mapping[str, Any] | object, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> R:
    """Run *job* with what a lifespan would have yielded."""
    result = _prepared(job, resources, args, kwargs)()
    if inspect.isawaitable(result):
        result = await result
    return _as_read(job, result)


@asynccontextmanager
async def lifespan_of(app: Fencepost) -> AsyncIterator[Any]:
    """What the app's lifespan yields, for as long as this lasts."""
    from fencepost.worker.resources import OpenLifespan

    lifespan = OpenLifespan(app.runtime())
    resources = await lifespan.open()
    try:
        yield resources
    finally:
        await lifespan.close()


def _prepared(job: Job[..., Any], resources: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    from fencepost.worker.resources import Resources

    call = job.call(*args, **kwargs)
    job_type = job.job_type
    found = resources if isinstance(resources, Resources) else Resources(resources)
    seconds = call.options.timeout_seconds or job_type.timeout_seconds or TIMEOUT_SECONDS
    context = Context(
        id=new_id(),
        type=job_type.name,
        queue=call.options.queue or job_type.queue,
        attempt=1,
        max_attempts=call.options.max_attempts or job_type.max_attempts or ATTEMPTS,
        token=1,
        timeout_seconds=seconds,
        tags=call.options.tags,
        metadata_json=None if call.options.metadata is None else call.options.metadata.decode(),
        control=_Control(found, seconds),
    )
    payload = job_type.decoder.decode(call.payload)
    return lambda: job_type.handler(context, payload)


def _as_read(job: Job[..., R], result: Any) -> R:
    """The result as `Handle.result` gives it."""
    raw = (job.job_type.encode or codec.encode_result)(result)
    decoder = job._result_decoder
    read: R = msgspec.json.decode(raw) if decoder is None else decoder.decode(raw)
    return read
