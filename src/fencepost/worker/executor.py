"""
Run attempts, each to its Outcome.

A straight line: find the type, read the payload, call the handler, name the ending.
Whatever a handler does (raise, hang, exit, refuse to stop) ends in an Outcome, and
never reaches the loop that runs the others.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from fencepost.domain import outcome
from fencepost.domain.context import Context
from fencepost.domain.job import Lease
from fencepost.domain.outcome import Ending, Outcome
from fencepost.domain.policy import Policy
from fencepost.domain.text import storable_json
from fencepost.telemetry.events import Events
from fencepost.types.jobtype import JobType
from fencepost.worker.attempt import Attempt
from fencepost.worker.journal import Journal

log = logging.getLogger("fencepost.worker")

GRACE_SECONDS = 5.0
"""What a cancelled handler gets to stop, before its outcome is decided without it."""


class Executor:
    """
    Runs up to `slots` attempts at once in the current event loop.

    A slot is taken from the claim until the handler has really returned: a handler that
    won't stop keeps its slot, so the number of threads and tasks stays bounded.
    """

    def __init__(
        self,
        types: Mapping[str, JobType],
        *,
        slots: int,
        timeout_seconds: float,
        policy: Policy,
        max_result_bytes: int,
        settle: Callable[[Attempt, Outcome | None], None],
        events: Events,
        journal: Journal,
    ) -> None:
        self._types = types
        self._slots = slots
        self._timeout_seconds = timeout_seconds
        self._policy = policy
        self._max_result_bytes = max_result_bytes
        self._settle = settle
        self._events = events
        self._journal = journal
        self._encode = msgspec.json.Encoder().encode
        self.running: set[Attempt] = set()
        """Attempts whose handler hasn't returned."""
        self.slot_freed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._check: asyncio.TimerHandle | None = None
        self._next_check = math.inf

    @property
    def free(self) -> int:
        """How many more attempts may start."""
        return self._slots - len(self.running)

    def timeout_of(self, lease: Lease) -> float:
        """The longest run of this attempt, in seconds."""
        if lease.timeout_seconds is not None:
            return lease.timeout_seconds
        job_type = self._types.get(lease.type)
        return (job_type and job_type.timeout_seconds) or self._timeout_seconds

    def _policy_of(self, lease: Lease) -> Policy:
        job_type = self._types.get(lease.type)
        return (job_type and job_type.policy) or self._policy

    def start(self, attempt: Attempt) -> None:
        """Begin an attempt. Its outcome goes to `settle`."""
        self.running.add(attempt)
        self._events.started()
        self._journal.started(attempt.lease)
        attempt.deadline = attempt.started_at + self.timeout_of(attempt.lease)
        if self._loop is None:
            # Kept, because asking for it is a system call each time.
            self._loop = asyncio.get_running_loop()
        attempt.task = self._loop.create_task(self._run(attempt))
        if attempt.deadline < self._next_check:
            self._check_at(attempt.deadline)

    def _check_at(self, deadline: float) -> None:
        """
        Look for attempts whose time is up, at that moment of the monotonic clock.

        One timer for all: one a job would cost more than most jobs' bookkeeping together.
        """
        if self._check is not None:
            self._check.cancel()
        self._next_check = deadline
        delay = max(0.0, deadline - time.monotonic())
        self._check = asyncio.get_running_loop().call_later(delay, self._check_deadlines)

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        for attempt in list(self.running):
            if attempt.deadline <= now:
                self.interrupt(attempt, Ending.TIMED_OUT)
        self._check, self._next_check = None, math.inf
        waiting = [attempt.deadline for attempt in self.running if attempt.deadline > now]
        if waiting:
            self._check_at(min(waiting))

    def interrupt(self, attempt: Attempt, ending: Ending) -> None:
        """
        Stop an attempt: its time is up, it was cancelled, we shut down, or its lease is lost.

        An async handler is cancelled, and gets a moment to clean up. A thread can't be
        stopped: its outcome is decided at once, and its slot stays taken until it returns.
        """
        if attempt.ended_at is not None or attempt.abandoned:
            return
        if attempt.interruption is not None and ending is not Ending.LOST:
            return
        attempt.interruption = ending
        job_type = self._types.get(attempt.lease.type)
        if job_type is not None and not job_type.is_async:
            if ending is not Ending.RELEASED:
                self.abandon(attempt)
            return
        assert attempt.task is not None
        loop = asyncio.get_running_loop()
        # Not before its first step: a task that is cancelled before that never runs, and so would never end here.
        loop.call_soon(attempt.task.cancel)
        if ending is not Ending.RELEASED:
            attempt.grace = loop.call_later(GRACE_SECONDS, self.abandon, attempt)

    def abandon(self, attempt: Attempt) -> None:
        """Decide the outcome of an interrupted attempt whose handler won't stop."""
        if attempt.ended_at is not None or attempt.abandoned or attempt.interruption is None:
            return
        attempt.abandoned = True
        self._events.stuck(+1)
        log.warning(
            "handler does not stop; its slot stays taken until it returns",
            extra={
                "job_id": str(attempt.lease.id),
                "job_type": attempt.lease.type,
                "attempt": attempt.lease.attempt,
                "interrupted_by": attempt.interruption.value,
            },
        )
        self._settle(attempt, self._interrupted(attempt))

    async def _run(self, attempt: Attempt) -> None:
        result: Outcome | None = None
        try:
            result = await self._execute(attempt)
        except BaseException as error:
            log.exception("fault while running a job", extra={"job_id": str(attempt.lease.id)})
            result = outcome.failed(attempt.lease, error, self._policy)
        if attempt.grace is not None:
            attempt.grace.cancel()
        attempt.end()
        if attempt.abandoned:
            self._events.stuck(-1)
        else:
            self._settle(attempt, result)
        self.running.discard(attempt)
        self.slot_freed.set()

    async def _execute(self, attempt: Attempt) -> Outcome | None:
        """None when the lease was lost: there is nothing to write."""
        lease = attempt.lease
        job_type = self._types.get(lease.type)
        if job_type is None:
            return outcome.permanent(
                lease, "UnknownJobType", f"no worker here knows the job type {lease.type!r}; deploy its handler first"
            )
        try:
            payload = job_type.decoder.decode(lease.payload)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            return outcome.permanent(lease, "InvalidPayload", f"the payload does not fit {lease.type!r}: {error}")
        try:
            if job_type.is_async:
                value = await job_type.handler(self._context(lease), payload)
            else:
                value = await _in_thread(job_type, self._context(lease), payload)
                if inspect.iscoroutine(value):
                    # A plain callable may have made a coroutine: of an object's async __call__, say.
                    value = await value
        except BaseException as error:  # noqa: BLE001 - SystemExit, KeyboardInterrupt and kin are failures of this job
            if attempt.interruption is not None:
                return self._interrupted(attempt)
            return outcome.failed(lease, error, self._policy_of(lease))
        # Work that was done is done, even when the handler was being interrupted.
        return None if attempt.interruption is Ending.LOST else outcome.succeeded(lease, self._result(lease, value))

    def _context(self, lease: Lease) -> Context:
        return Context(
            id=lease.id,
            type=lease.type,
            queue=lease.queue,
            attempt=lease.attempt,
            max_attempts=lease.max_attempts,
            token=lease.token,
            timeout_seconds=self.timeout_of(lease),
        )

    def _interrupted(self, attempt: Attempt) -> Outcome | None:
        lease = attempt.lease
        if attempt.interruption is Ending.TIMED_OUT:
            return outcome.timed_out(lease, self.timeout_of(lease), self._policy_of(lease))
        if attempt.interruption is Ending.CANCELLED:
            return outcome.cancelled(lease)
        if attempt.interruption is Ending.RELEASED:
            return outcome.released(lease)
        return None

    def _result(self, lease: Lease, value: object) -> bytes | None:
        """The result as JSON; None when there is none, or none that can be kept: the work is done either way."""
        if value is None:
            return None
        try:
            return storable_json(value, encode=self._encode, limit=self._max_result_bytes)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, the work is done
            _, reason, _ = outcome.describe(error)
            log.warning(
                "result not stored; the job counts as completed",
                extra={"job_id": str(lease.id), "job_type": lease.type, "reason": reason},
            )
            return None


async def _in_thread(job_type: JobType, context: Context, payload: Any) -> Any:
    """
    Call a plain function in a thread of its own, and wait until it has returned.

    A daemon thread, unlike the interpreter's pool: one that never returns must not keep
    the process from exiting.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    # Not in the future, which would keep an exception in a cycle with its frames.
    answer: list[tuple[Any, BaseException | None]] = []
    caller = contextvars.copy_context()

    def report(value: Any, error: BaseException | None) -> None:
        answer.append((value, error))
        if not done.cancelled():
            done.set_result(None)

    def work() -> None:
        value, error = None, None
        try:
            value = caller.run(job_type.handler, context, payload)
        except BaseException as raised:  # noqa: BLE001 - whatever it is, it belongs to this job
            error = raised
        try:
            loop.call_soon_threadsafe(report, value, error)
        except RuntimeError:
            # The loop has closed: the process is going down, and the job was released.
            return
        finally:
            # The error's trace leads to this frame, so the frame must not lead to the error.
            del value, error

    threading.Thread(target=work, name=f"fencepost-job-{context.id}", daemon=True).start()
    await done
    value, error = answer.pop()
    try:
        if isinstance(error, StopIteration):
            # It can't leave a coroutine.
            raise RuntimeError("the handler raised StopIteration") from error
        if error is not None:
            raise error
        return value
    finally:
        del error
