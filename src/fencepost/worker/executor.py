"""
Run attempts, each to its Outcome.

A straight line: find the type, read the payload, call the handler, name the ending.
Whatever a handler does (raise, hang, exit, refuse to stop) ends in an Outcome, and
never reaches the loop that runs the others.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from fencepost.domain import outcome
from fencepost.domain.context import Context
from fencepost.domain.job import Lease
from fencepost.domain.outcome import Ending, Outcome
from fencepost.domain.policy import Policy
from fencepost.logger import get_logger
from fencepost.telemetry import tracing
from fencepost.telemetry.events import AttemptStarted, Events, HandlerReturned, HandlerStuck
from fencepost.types.jobtype import JobType, Kind
from fencepost.worker.around import Around
from fencepost.worker.attempt import Attempt, Host
from fencepost.worker.children.pool import Children
from fencepost.worker.deadlines import Deadlines
from fencepost.worker.endings import Endings
from fencepost.worker.journal import Journal
from fencepost.worker.runtime import Runtime
from fencepost.worker.threads import run_in_thread

log = get_logger("fencepost.worker")

GRACE_SECONDS = 5.0
"""What a cancelled handler gets to stop, before its outcome is decided without it."""


async def unknown_type(lease: Lease) -> Outcome:
    """What becomes of a job whose type isn't known here, when there is nobody to ask."""
    return outcome.permanent(
        lease, "UnknownJobType", f"no worker here knows the job type {lease.type!r}; deploy its handler first"
    )


class Executor:
    """
    Runs up to `slots` attempts at once in the current event loop.

    A slot is taken from the claim until the handler has really returned: a handler that
    won't stop keeps its slot, so the number of threads and tasks stays bounded.
    """

    def __init__(
        self,
        runtime_or_types: Runtime | Mapping[str, JobType],
        *,
        slots: int,
        timeout_seconds: float,
        policy: Policy,
        host: Host,
        settle: Callable[[Attempt, Outcome | None], None],
        events: Events,
        journal: Journal,
        judge_stranger: Callable[[Lease], Awaitable[Outcome]] = unknown_type,
    ) -> None:
        runtime = Runtime.of(runtime_or_types)
        self._types = runtime.types
        self._slots = slots
        self._timeout_seconds = timeout_seconds
        self._endings = Endings(policy, max_result_bytes=host.max_result_bytes)
        self._host = host
        self._settle = settle
        self._events = events
        self._hooks = runtime.hooks
        self._journal = journal
        self._judge_stranger = judge_stranger
        self._around = Around(runtime.around_attempt) if runtime.around_attempt else None
        self._tracer: tracing.Tracer | None = None
        self._children = Children(host)
        self.running: set[Attempt] = set()
        """Attempts whose handler hasn't returned."""
        self.slot_freed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deadlines = Deadlines(self.running, lock=host.lock, time_up=self._time_up)

    @property
    def free(self) -> int:
        """How many more attempts may start."""
        return self._slots - len(self.running)

    def prepare(self) -> None:
        """Find out whether attempts are traced: once what sets that up, the app's lifespan perhaps, has run."""
        self._tracer = tracing.find_tracer()

    async def close(self) -> None:
        """End the child processes."""
        await self._children.close()

    def timeout_of(self, lease: Lease) -> float:
        """The longest run of this attempt, in seconds."""
        if lease.timeout_seconds is not None:
            return lease.timeout_seconds
        job_type = self._types.get(lease.type)
        return (job_type and job_type.timeout_seconds) or self._timeout_seconds

    def start(self, attempt: Attempt) -> None:
        """Begin an attempt. Its outcome goes to `settle`."""
        lease = attempt.lease
        self.running.add(attempt)
        self._events.started()
        self._journal.started(lease)
        if self._hooks.listeners:
            self._hooks.emit(
                AttemptStarted(
                    job_id=lease.id, type=lease.type, queue=lease.queue, attempt=lease.attempt, token=lease.token
                )
            )
        attempt.host = self._host
        attempt.job_type = self._types.get(lease.type)
        attempt.timeout_seconds = self.timeout_of(lease)
        attempt.deadline = attempt.started_at + attempt.timeout_seconds
        if self._loop is None:
            # Kept, because asking for it is a system call each time.
            self._loop = asyncio.get_running_loop()
        attempt.task = self._loop.create_task(self._run(attempt))
        if attempt.deadline < self._deadlines.next:
            self._deadlines.look_at(attempt.deadline)

    def _time_up(self, attempt: Attempt) -> None:
        self.interrupt(attempt, Ending.TIMED_OUT)

    def interrupt(self, attempt: Attempt, ending: Ending) -> None:
        """
        Stop an attempt: its time is up, it was cancelled, we shut down, or its lease is lost.

        An async handler is cancelled, and gets a moment to clean up. A child process is
        killed. A thread can't be stopped: its outcome is decided at once, and its slot stays
        taken until it returns.
        """
        with self._host.lock:
            if attempt.ended_at is not None or attempt.abandoned:
                return
            if attempt.interruption is not None and ending is not Ending.LOST:
                return
            attempt.interruption = ending
        loop = asyncio.get_running_loop()
        # Not before its first step: a task that is cancelled before that never runs, and so would never end here.
        loop.call_soon(self._stop, attempt)
        if ending is not Ending.RELEASED:
            if attempt.grace is not None:
                attempt.grace.cancel()
            attempt.grace = loop.call_later(GRACE_SECONDS, self.abandon, attempt)

    def _stop(self, attempt: Attempt) -> None:
        if attempt.ended_at is not None or attempt.abandoned:
            return
        assert attempt.task is not None
        assert attempt.interruption is not None
        if attempt.remote is not None:
            attempt.remote.interrupt(attempt.interruption)
        elif not attempt.in_thread:
            attempt.task.cancel()
        elif attempt.interruption is not Ending.RELEASED:
            self.abandon(attempt)

    def abandon(self, attempt: Attempt) -> None:
        """Decide the outcome of an interrupted attempt whose handler won't stop."""
        with self._host.lock:
            if attempt.ended_at is not None or attempt.abandoned or attempt.interruption is None:
                return
            attempt.abandoned = True
        lease = attempt.lease
        self._events.stuck(+1)
        if self._hooks.listeners:
            self._hooks.emit(
                HandlerStuck(
                    job_id=lease.id, type=lease.type, attempt=lease.attempt, interrupted_by=attempt.interruption
                )
            )
        log.warning(
            "handler does not stop; its slot stays taken until it returns",
            extra={
                "job_id": str(lease.id),
                "job_type": lease.type,
                "attempt": lease.attempt,
                "interrupted_by": attempt.interruption.value,
            },
        )
        self._settle(attempt, self._endings.interrupted(attempt))

    async def _run(self, attempt: Attempt) -> None:
        result: Outcome | None = None
        try:
            result = await (self._execute(attempt) if self._tracer is None else self._trace(attempt, self._tracer))
        except BaseException as error:
            # Printing it may fail as well; the attempt must end all the same, or its slot never comes back.
            with suppress(BaseException):
                log.exception("fault while running a job", extra={"job_id": str(attempt.lease.id)})
            result = self._endings.fault(attempt, error)
        if attempt.grace is not None:
            attempt.grace.cancel()
        with self._host.lock:
            attempt.end()
        if attempt.abandoned:
            self._returned_late(attempt.lease)
        else:
            self._settle(attempt, result)
        self.running.discard(attempt)
        self.slot_freed.set()

    def _returned_late(self, lease: Lease) -> None:
        self._events.stuck(-1)
        if self._hooks.listeners:
            self._hooks.emit(HandlerReturned(job_id=lease.id, type=lease.type, attempt=lease.attempt))

    async def _trace(self, attempt: Attempt, tracer: tracing.Tracer) -> Outcome | None:
        with tracer.attempt(attempt.lease) as span:
            result = await self._execute(attempt)
            # How one ended that came back late was decided long before; whether one was committed isn't known yet.
            told = self._endings.interrupted(attempt) if attempt.abandoned else result
            span.ended(told, may_be_completed=attempt.completed_in)
        return result

    async def _execute(self, attempt: Attempt) -> Outcome | None:
        """None when the lease was lost: there is nothing to write."""
        lease = attempt.lease
        job_type = attempt.job_type
        if lease.expired:
            return outcome.expired(lease)
        payload = None
        if job_type is not None and job_type.kind is not Kind.PROCESS:
            try:
                payload = job_type.decoder.decode(lease.payload)
            except (msgspec.MsgspecError, RecursionError, ValueError) as error:
                return outcome.permanent(lease, "InvalidPayload", f"the payload does not fit {lease.type!r}: {error}")
        try:
            if job_type is None:
                return await self._judge_stranger(lease)
            if self._around is None and job_type.kind is Kind.ASYNC:
                value = await job_type.handler(self._context(attempt), payload)
            else:
                value = await self._call(attempt, job_type, payload)
        except BaseException as error:  # noqa: BLE001 - SystemExit, KeyboardInterrupt and kin are failures of this job
            return self._endings.raised(attempt, error)
        return self._endings.returned(attempt, value)

    async def _call(self, attempt: Attempt, job_type: JobType, payload: Any) -> Any:
        context = self._context(attempt)
        if self._around is None:
            return await self._call_handler(attempt, job_type, context, payload)
        return await self._around.run(
            context,
            lambda: self._call_handler(attempt, job_type, context, payload),
            has_thread=job_type.kind is Kind.THREAD,
        )

    async def _call_handler(self, attempt: Attempt, job_type: JobType, context: Context, payload: Any) -> Any:
        if attempt.interruption is not None:
            # What is around it has taken its cancellation.
            raise asyncio.CancelledError
        if job_type.kind is Kind.ASYNC:
            return await job_type.handler(context, payload)
        if job_type.kind is Kind.PROCESS:
            return await self._children.run(attempt, job_type)
        call = partial(job_type.handler, context, payload)
        if self._around is not None:
            call = partial(self._around.within_thread, context, call)
        attempt.in_thread = True
        try:
            value = await run_in_thread(call, name=f"fencepost-job-{context.id}")
        finally:
            attempt.in_thread = False
        # A plain callable may have made a coroutine: of an object's async __call__, say.
        return await value if inspect.iscoroutine(value) else value

    def _context(self, attempt: Attempt) -> Context:
        lease = attempt.lease
        return Context(
            id=lease.id,
            type=lease.type,
            queue=lease.queue,
            attempt=lease.attempt,
            max_attempts=lease.max_attempts,
            token=lease.token,
            timeout_seconds=attempt.timeout_seconds,
            tags=lease.tags,
            metadata_json=lease.metadata,
            trace_context=lease.trace_context,
            control=attempt,
        )
