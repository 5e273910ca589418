"""
Counts of a process that nobody scrapes: kept as plain numbers, handed on as what has changed.

A worker process keeps a `Tally` and sends what it `take`s to its parent about once a
second; the parent's metrics add it up. What a job costs the parent is nothing, and what
is counted there never falls, whatever happens to the worker process.
"""

from __future__ import annotations

import threading
from bisect import bisect_left

import msgspec

from fencepost.domain.outcome import Ending
from fencepost.telemetry.events import Events

JOB_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
"""The upper bounds of the histogram of attempts, in seconds; what is above them has a bucket of its own."""


class Durations(msgspec.Struct):
    """A histogram: how many attempts fell into each bucket, and how long they took together."""

    buckets: list[int] = msgspec.field(default_factory=lambda: [0] * (len(JOB_BUCKETS) + 1))
    seconds: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one attempt."""
        self.buckets[bisect_left(JOB_BUCKETS, seconds)] += 1
        self.seconds += seconds

    def add(self, other: Durations) -> None:
        """Count what *other* has counted."""
        for place, count in enumerate(other.buckets):
            self.buckets[place] += count
        self.seconds += other.seconds

    @property
    def count(self) -> int:
        """How many attempts there were."""
        return sum(self.buckets)


class Ended(msgspec.Struct, frozen=True):
    """Attempts that ended alike."""

    ending: Ending
    status: str | None
    """What became of their jobs; None when the lease was lost."""
    durations: Durations


class Counts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What has happened since the last time."""

    ended: list[Ended] = []
    recovered: int = 0
    pruned: int = 0
    active: int = 0
    """By how much the number of busy slots has changed."""
    stuck: int = 0
    """By how much the number of handlers that ignore their cancellation has changed."""


class ProcessEvents(Events):
    """Hears what happens to jobs, here and in worker processes. This one ignores it."""

    def merge(self, counts: Counts) -> None:
        """A worker process has counted these."""

    def process_started(self) -> None:
        """A worker process was started."""

    def process_ended(self, *, expected: bool) -> None:
        """A worker process has ended: as it was told to, or by itself."""


class Tally(Events):
    """Counts what happens to jobs in a worker. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: dict[tuple[Ending, str | None], Durations] = {}
        self._recovered = 0
        self._pruned = 0
        self._active = 0
        self._stuck = 0

    def started(self) -> None:
        """An attempt started."""
        with self._lock:
            self._active += 1

    def ended(self, ending: Ending, status: str | None, seconds: float) -> None:
        """An attempt ended; its job is now in *status*, or the lease was lost (None)."""
        with self._lock:
            self._active -= 1
            durations = self._ended.get((ending, status))
            if durations is None:
                durations = self._ended[ending, status] = Durations()
            durations.observe(seconds)

    def recovered(self, count: int) -> None:
        """Expired leases were taken back."""
        with self._lock:
            self._recovered += count

    def pruned(self, count: int) -> None:
        """Finished jobs were removed: their time was over."""
        with self._lock:
            self._pruned += count

    def stuck(self, change: int) -> None:
        """A handler keeps its slot beyond its attempt (+1), or let go of it (−1)."""
        with self._lock:
            self._stuck += change
            self._active += change

    def take(self) -> Counts | None:
        """Hand over what has changed since the last call; None when nothing has."""
        with self._lock:
            ended = [Ended(ending, status, durations) for (ending, status), durations in self._ended.items()]
            counts = Counts(ended, self._recovered, self._pruned, self._active, self._stuck)
            self._ended = {}
            self._recovered = self._pruned = self._active = self._stuck = 0
        return None if counts == Counts() else counts
