"""Workers that have more than job types."""

from __future__ import annotations

from typing import Any

import msgspec

from fencepost.domain.job import Job
from fencepost.telemetry.events import Events, Hooks
from fencepost.types.jobtype import JobType, Kind
from fencepost.worker.runtime import Runtime
from fencepost.worker.worker import Worker

from .support import SETTINGS, Bench


def job_type(name: str, handler: Any, *, kind: Kind = Kind.ASYNC, **fields: Any) -> JobType:
    """A job type of a function of a context and a payload."""
    return JobType(name=name, handler=handler, decoder=msgspec.json.Decoder(), kind=kind, **fields)


def make_worker(bench: Bench, *types: JobType, events: Events | None = None, **fields: Any) -> Worker:
    """A worker with this runtime; the fixture drains it."""
    settings = msgspec.structs.replace(SETTINGS, **fields.pop("settings", {}))
    hooks = fields.pop("hooks", None) or Hooks()
    runtime = Runtime(types={one.name: one for one in types}, hooks=hooks, **fields)
    worker = Worker(bench.dsn, runtime, settings, events or Events())
    bench.workers.append(worker)
    return worker


async def start_worker(bench: Bench, *types: JobType, **fields: Any) -> Worker:
    """The same, started."""
    worker = make_worker(bench, *types, **fields)
    await worker.start()
    return worker


def result_of(job: Job) -> bytes | None:
    """A job's result as JSON text."""
    return None if job.result is None else bytes(job.result)
