"""Attempts whose time is up, found by one timer for all of them."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Collection

from fencepost.logger import get_logger
from fencepost.worker.attempt import Attempt

log = get_logger("fencepost.worker")


class Deadlines:
    """
    Looks at the running attempts when the first of their deadlines has come, in the current loop.

    One timer a job would cost more than most jobs' bookkeeping together. A deadline may be
    moved meanwhile, in any thread that holds *lock*.
    """

    def __init__(
        self, running: Collection[Attempt], *, lock: threading.RLock, time_up: Callable[[Attempt], None]
    ) -> None:
        self._running = running
        self._lock = lock
        self._time_up = time_up
        self._check: asyncio.TimerHandle | None = None
        self.next = math.inf
        """When the next look is due, by the monotonic clock. Call `look_at` for a deadline before that."""

    def look_at(self, deadline: float) -> None:
        """Look at that moment, instead of later."""
        if self._check is not None:
            self._check.cancel()
        self.next = deadline
        delay = max(0.0, deadline - time.monotonic())
        self._check = asyncio.get_running_loop().call_later(delay, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        for attempt in list(self._running):
            if attempt.deadline <= now:
                try:
                    with self._lock:
                        # Once more: it may have been extended since the line above.
                        if attempt.deadline <= now:
                            self._time_up(attempt)
                except Exception:
                    # Without the next look no attempt would ever be timed out again.
                    log.exception("fault while timing out an attempt", extra={"job_id": str(attempt.lease.id)})
        self._check, self.next = None, math.inf
        waiting = [attempt.deadline for attempt in self._running if attempt.deadline > now]
        if waiting:
            self.look_at(min(waiting))
