"""
What happens, as calls: the one place where counting and logging attach.

The engine reports to an `Events`; this base class ignores everything, and the
service's (telemetry/metrics.py) counts. Methods are called on hot paths, from
several threads: they must be quick and must not raise.
"""

from __future__ import annotations

from fencepost.domain.outcome import Ending


class Events:
    """Hears what happens to jobs."""

    def submitted(self, count: int) -> None:
        """Jobs were stored; replays of an idempotency key don't count."""

    def started(self) -> None:
        """An attempt started."""

    def ended(self, ending: Ending, status: str | None, seconds: float) -> None:
        """
        An attempt ended after *seconds*, and its job is now in *status*.

        None when the lease was lost, so that nothing was recorded.
        """

    def retried_by_hand(self) -> None:
        """A dead-lettered job was put back."""

    def recovered(self, count: int) -> None:
        """Expired leases were taken back."""

    def pruned(self, count: int) -> None:
        """Finished jobs were removed: their time was over."""

    def stuck(self, change: int) -> None:
        """A handler that ignored its cancellation keeps a slot (+1), or let go of it (−1)."""
