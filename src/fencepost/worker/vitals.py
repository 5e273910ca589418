"""
The loops of a worker, and when each counts as stuck.

See docs/decisions/0020-liveness.md. A patience is a few times what the loop takes when all is
well, so that one slow answer isn't told, and short enough that a watchdog in front of the
process can act on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from fencepost.settings import Settings
from fencepost.store.listener import PROBE_SECONDS
from fencepost.telemetry.pulses import Pulse, Vitals
from fencepost.types.jobtype import JobType
from fencepost.worker import maintenance
from fencepost.worker.pruner import EVERY_SECONDS

BEAT_SECONDS = 0.5
MARGIN_SECONDS = 15.0
"""What every patience has beyond its multiple of an interval, at the least."""
ADVICE = "see whether the database answers, has room and lets this role do what it must; else restart this process"


class WorkerVitals(Vitals):
    """
    The pulses of one worker, which runs jobs of *types*.

    A handler that blocks the event loop for longer than the longest of them may run can't be stopped by anybody.
    """

    def __init__(self, settings: Settings, types: Collection[JobType]) -> None:
        longest = max(settings.job_timeout_seconds, *(one.timeout_seconds or 0.0 for one in types), 0.0)
        super().__init__(blocked_patience_seconds=longest + MARGIN_SECONDS)
        self._handle: asyncio.TimerHandle | None = None
        self.dispatcher = self._vital(
            "dispatcher", "claims jobs for free slots", max(10 * settings.poll_interval_seconds, MARGIN_SECONDS)
        )
        self.settler = self._vital("settler", "writes how attempts ended", 2 * MARGIN_SECONDS, idle=True)
        self.leases = self._vital(
            "lease_keeper", "renews the leases of running jobs", max(settings.lease_seconds / 2, 10.0), in_loop=False
        )
        self.recovery = self._vital(
            "recovery",
            "takes back the jobs of workers that died",
            3 * settings.recovery_interval_seconds + MARGIN_SECONDS,
        )
        self.heartbeat = self._chore("heartbeat", "keeps this worker in the list", maintenance.HEARTBEAT_SECONDS)
        self.listener = self._chore("listener", "hears the hints of other processes", PROBE_SECONDS)
        self.partitions = self._chore("partitions", "makes tables for days to come", maintenance.PARTITIONS_SECONDS)
        self.declaration = self._chore("declaration", "tells of job types", maintenance.DECLARATION_SECONDS)
        self.pruner = self._chore("pruner", "removes old jobs", EVERY_SECONDS)

    def _vital(self, name: str, task: str, patience: float, *, idle: bool = False, in_loop: bool = True) -> Pulse:
        return self.add(Pulse(name, task=task, patience_seconds=patience, advice=ADVICE, idle=idle, in_loop=in_loop))

    def _chore(self, name: str, task: str, every_seconds: float) -> Pulse:
        """A duty without which a worker still does what it is there for."""
        patience = 3 * every_seconds + MARGIN_SECONDS
        return self.add(Pulse(name, task=task, patience_seconds=patience, advice=ADVICE, is_vital=False))

    def start(self) -> None:
        """Hear the beat of the running event loop from now on."""
        self.beat()
        self._handle = asyncio.get_running_loop().call_later(BEAT_SECONDS, self.start)

    def end(self) -> None:
        """The worker stops: from now on nothing of it is stuck."""
        super().end()
        if self._handle is not None:
            self._handle.cancel()
