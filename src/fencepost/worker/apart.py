"""
Write the outcomes of attempts that may have completed their jobs by themselves, and others that need a look each.

A handler can complete its job in a transaction of its own (`fencepost.complete`). Only
the database knows how that ended, and while it is open the lease is locked. So these
outcomes don't travel with the others:

    handler's transaction               here
    completes: the lease is deleted,
    locked
    does something slow
    (its time is up: timed out)         takes the outcome
                                        not completed, and the lease is locked: looks again later
    commits                             completed: says so, and forgets the outcome
    or rolls back                       the lease is free: writes the outcome

Also here, one at a time and for as long as it takes: an outcome that was sent along with
others when the connection broke, so that it may be written or not; one that can't be
written now, for a reason that isn't its own; and each of a batch that was refused for what
is in it. Their leases are kept meanwhile, so that what has ended well isn't done again.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from fencepost.domain import outcome as outcomes
from fencepost.domain.job import Status
from fencepost.domain.outcome import Ending, Outcome
from fencepost.logger import get_logger
from fencepost.store.failures import for_operator, is_of_the_value, is_outage, is_the_servers
from fencepost.store.workers import LeaseBusy
from fencepost.telemetry.pulses import Pulse
from fencepost.worker.attempt import Attempt, Key

log = get_logger("fencepost.worker")

SHORTEST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 1.0
"""How often it is looked, in the end, whether an open transaction is over."""
MOST_FAULTS = 10
"""When so many fail in one look, it is most likely about none of them, and the others wait for the next look."""
REFUSED_SECONDS = 10.0
"""How long an outcome is tried again that is refused even bare: a trigger of somebody's may mean only this moment."""


class ApartStore(Protocol):
    """What this needs of the store."""

    async def settle_apart(self, queue_id: int, outcome: Outcome, /) -> Status | None:
        """Write one outcome as `settle` does. Raises LeaseBusy instead of waiting for whoever has the lease locked."""
        ...

    async def completed(self, queue_id: int, ended: Sequence[Key], /) -> set[Key]:
        """Which of these attempts have completed their jobs."""
        ...

    async def written(self, queue_id: int, outcome: Outcome, /) -> Status | None:
        """Where the job went, if this outcome is in the history already."""
        ...


class _Waiting(msgspec.Struct):
    outcome: Outcome
    look_at: float = 0.0
    pause: float = SHORTEST_PAUSE_SECONDS
    refused_at: float | None = None
    """When it was first refused for what is in it."""


class Apart:
    """
    The outcomes that are written apart, for one worker.

    *ended* is called once for each attempt, with how it ended after all and its job's new
    status, or None when the lease was lost. While there are none, nothing runs.
    """

    def __init__(
        self, store: ApartStore, *, ended: Callable[[Attempt, Outcome, Status | None], None], pulse: Pulse
    ) -> None:
        self._store = store
        self._pulse = pulse
        self._ended = ended
        self._waiting: dict[Attempt, _Waiting] = {}
        self._arrived = asyncio.Event()
        self._working: asyncio.Task[None] | None = None

    def put(self, attempt: Attempt, outcome: Outcome) -> None:
        """Hand over an outcome: what is to be written if the attempt has not completed its job."""
        self._waiting[attempt] = _Waiting(outcome)
        self._arrived.set()
        if self._working is None or self._working.done():
            self._working = asyncio.get_running_loop().create_task(self._work(), name="fencepost-apart")

    async def stop(self) -> None:
        """Give up what isn't written. Its leases will expire, or its transactions commit."""
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait([self._working])

    async def _work(self) -> None:
        while self._waiting:
            self._arrived.clear()
            now = time.monotonic()
            due: dict[int, list[Attempt]] = defaultdict(list)
            for attempt, waiting in self._waiting.items():
                if waiting.look_at <= now:
                    due[attempt.lease.queue_id].append(attempt)
            for queue_id, attempts in due.items():
                await self._look_at(queue_id, attempts)
            if self._waiting:
                next_look = min(waiting.look_at for waiting in self._waiting.values())
                alarm = asyncio.get_running_loop().call_later(next_look - time.monotonic(), self._arrived.set)
                try:
                    await self._arrived.wait()
                finally:
                    alarm.cancel()

    async def _look_at(self, queue_id: int, attempts: list[Attempt]) -> None:
        """One look at attempts of one queue. Those that stay are looked at later. Survives every error."""
        faults = 0
        try:
            completed = await self._store.completed(queue_id, [attempt.key for attempt in attempts])
            for attempt in attempts:
                try:
                    if attempt.key in completed:
                        self._end_completed(attempt)
                    else:
                        await self._write(attempt)
                    self._pulse.turned()
                except Exception as error:
                    faults += 1
                    if is_outage(error) or faults == MOST_FAULTS:
                        raise
                    self._failed(error)
        except Exception as error:  # noqa: BLE001 - told below
            self._failed(error)
        for attempt in attempts:
            waiting = self._waiting.get(attempt)
            if waiting is not None:
                waiting.look_at = time.monotonic() + waiting.pause
                waiting.pause = min(2 * waiting.pause, LONGEST_PAUSE_SECONDS)

    def _failed(self, error: Exception) -> None:
        self._pulse.failed(error)
        if is_the_servers(error):
            log.warning("outcomes can't be written yet", extra={"reason": for_operator(error)})
        else:
            log.exception("fault while writing outcomes apart; trying again")

    async def _write(self, attempt: Attempt) -> None:
        """Write it, or bare where it is refused. Where that is refused too it stays, but not for ever."""
        waiting = self._waiting[attempt]
        stripped = bare(waiting.outcome)
        for outcome in (waiting.outcome, stripped) if stripped != waiting.outcome else (stripped,):
            try:
                await self._write_as(attempt, outcome)
                return
            except LeaseBusy:
                return
            except Exception as error:
                if not is_of_the_value(error):
                    # The others first, next time: it may be about this one after all.
                    self._waiting[attempt] = self._waiting.pop(attempt)
                    raise
                refusal = error
                if waiting.refused_at is None:
                    waiting.refused_at = time.monotonic()
                    log.exception("an outcome was refused; writing it bare", extra=_named(attempt))
        if waiting.refused_at is not None and time.monotonic() >= waiting.refused_at + REFUSED_SECONDS:
            log.error("an outcome can't be written; its lease will expire", extra=_named(attempt), exc_info=refusal)
            self._end(attempt, stripped, None)

    async def _write_as(self, attempt: Attempt, outcome: Outcome) -> None:
        queue_id = attempt.lease.queue_id
        status = await self._store.settle_apart(queue_id, outcome)
        if status is None:
            # Gone between the two looks: it can have been committed just then. Or it was written before, and the
            # answer was lost.
            if await self._store.completed(queue_id, [attempt.key]):
                self._end_completed(attempt)
                return
            status = await self._store.written(queue_id, outcome)
        self._end(attempt, outcome, status)

    def _end_completed(self, attempt: Attempt) -> None:
        ended = self._waiting[attempt].outcome
        if ended.ending is not Ending.SUCCEEDED:
            ended = outcomes.succeeded(attempt.lease, None)
        self._end(attempt, ended, Status.COMPLETED)

    def _end(self, attempt: Attempt, outcome: Outcome, status: Status | None) -> None:
        del self._waiting[attempt]
        self._ended(attempt, outcome, status)


def bare(outcome: Outcome) -> Outcome:
    """An outcome that was refused, without what a handler put into it: the ending itself must be kept."""
    return msgspec.structs.replace(
        outcome,
        result=None,
        traceback=None,
        error_type=outcome.error_type and "Unrecordable",
        error=outcome.error and "the error's text could not be stored; the worker's log has it",
    )


def _named(attempt: Attempt) -> dict[str, str]:
    return {"job_id": str(attempt.lease.id)}
