"""A worker's children: one for each job that runs in a process, kept for the next."""

from __future__ import annotations

import asyncio
import logging
import sys

import msgspec

from fencepost.telemetry import tracing
from fencepost.types.jobtype import JobType
from fencepost.worker.attempt import Attempt, Host
from fencepost.worker.children import messages
from fencepost.worker.children.process import Child

IDLE_SECONDS = 60.0
"""How long a child waits for its next job before it is ended."""


class Children:
    """
    Starts children as jobs need them: never more than jobs run at once.

    The one that ran last runs next, so that those which aren't needed grow old and are ended.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._idle: dict[Child, asyncio.TimerHandle] = {}
        """The one used last is the last."""
        self._busy: set[Child] = set()
        self._ending: set[asyncio.Task[int | None]] = set()
        self._closed = False

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._idle) + len(self._busy)

    async def run(self, attempt: Attempt, job_type: JobType) -> msgspec.Raw | None:
        """Run a job in a child; returns its result as JSON. Raises ChildFailure, or CancelledError."""
        child = self._take_idle() or await self._start()
        self._busy.add(child)
        attempt.remote = child
        try:
            return await child.run(attempt, self._order(attempt, job_type))
        finally:
            attempt.remote = None
            self._busy.discard(child)
            self._put_back(child)

    async def close(self) -> None:
        """Kill all of them, and wait until they have ended."""
        self._closed = True
        for child in [*self._idle, *self._busy]:
            self._end(child)
        if self._ending:
            await asyncio.wait(list(self._ending))

    def _order(self, attempt: Attempt, job_type: JobType) -> messages.Run:
        assert job_type.path is not None
        return messages.Run(
            path=job_type.path,
            lease=attempt.lease,
            timeout_seconds=attempt.timeout_seconds,
            remaining_seconds=attempt.remaining_seconds,
            max_result_bytes=self._host.max_result_bytes,
            schema=self._host.schema,
            main=getattr(sys.modules.get("__main__"), "__file__", None),
            log_levels={name: logging.getLogger(name).getEffectiveLevel() for name in ("", "fencepost")},
            span=tracing.current_traceparent(),
        )

    def _take_idle(self) -> Child | None:
        while self._idle:
            child, ageing = self._idle.popitem()
            ageing.cancel()
            if not child.gone.is_set() and not child.killed:
                return child
            self._end(child)
        return None

    async def _start(self) -> Child:
        child = Child()
        try:
            await child.start()
        except BaseException:
            self._end(child)
            raise
        return child

    def _put_back(self, child: Child) -> None:
        if self._closed or child.gone.is_set() or child.killed:
            self._end(child)
        else:
            self._idle[child] = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._end, child)

    def _end(self, child: Child) -> None:
        ageing = self._idle.pop(child, None)
        if ageing is not None:
            ageing.cancel()
        task = asyncio.get_running_loop().create_task(child.end(), name="fencepost-child-end")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
