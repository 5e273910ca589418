"""Where a campaign takes place: the database under test, and what can be done to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from chaos.plan import Fault
from chaos.scripts import UNIQUE_KEYS
from chaos.world import Outage, World

MOVING_SECONDS = 6.0
"""How long a fault that moves the server waits for another."""


class Ground(Protocol):
    """A PostgreSQL that can be harmed. Calls block and may come from any thread."""

    kinds: frozenset[str]
    """The kinds of faults it can do."""

    def start(self) -> None:
        """Start everything."""

    def close(self) -> None:
        """Stop everything."""

    def migrated(self) -> None:
        """The schema is there."""

    @property
    def admin_dsn(self) -> str:
        """A superuser's address of the present primary, past all faults of the network."""
        ...

    def address(self, name: str, *, pooled: bool = False) -> str:
        """The address for one client, by a way of its own."""
        ...

    def environment(self, name: str) -> dict[str, str]:
        """What a client's process has in its environment, beside the rest."""
        ...

    def inject(self, fault: Fault) -> float | None:
        """
        Do it; returns when it is over.

        When the database was gone meanwhile, answers from when on it took connections again, as
        monotonic time.
        """
        ...

    def heal(self) -> None:
        """Undo whatever is still on."""


class NotNow(Exception):
    """The fault can't be done at this moment: another like it is under way, or the server is away."""


class WorldGround:
    """A primary, a synchronous standby, a proxy for each client, a pooler, and a clock for each process."""

    def __init__(self, folder: Path, *, seed: int) -> None:
        self.world = World(folder / "world", fsync=False, seed=seed)
        self._ways: dict[str, Callable[[Fault], Outage | None]] = {
            "kill_postmaster": lambda fault: self._moved(self.world.kill_postmaster),
            "crash": lambda fault: self._moved(self.world.crash),
            "restart": lambda fault: self._moved(self.world.restart),
            "outage": lambda fault: self._moved(lambda: self.world.outage(fault.seconds)),
            "failover": lambda fault: self._moved(self.world.failover),
            "pause_standby": lambda fault: self.world.stop_standby(fault.seconds),
            "terminate_backends": lambda fault: self._done(self.world.terminate_backends(fault.amount)),
            "cancel_backends": lambda fault: self._done(self.world.cancel_backends(fault.amount)),
            "stop_backend": lambda fault: self._done(self.world.stop_backends(fault.seconds)),
            "lock_rows": lambda fault: self._done(self.world.hold_rows(fault.seconds, table=_table(fault), limit=20)),
            "lock_table": lambda fault: self._done(self.world.hold_locks(fault.seconds, table=_table(fault))),
            "hold_keys": lambda fault: self._done(self.world.hold_keys(UNIQUE_KEYS, fault.seconds)),
            "read_only": lambda fault: self.world.read_only(fault.seconds),
            "timeouts": lambda fault: self.world.hostile_timeouts(fault.seconds),
            "disk_full": lambda fault: self.world.disk_full(fault.seconds, share=fault.amount),
            "connection_limit": lambda fault: self.world.too_many_connections(fault.seconds),
            "cut": lambda fault: self.world.cut([fault.target]),
            "refuse": lambda fault: self.world.cut([fault.target], fault.seconds),
            "swallow": lambda fault: self.world.swallow([fault.target], fault.seconds),
            "lose_answers": lambda fault: self.world.drop_answers([fault.target], fault.seconds),
            "delay": lambda fault: self.world.delay([fault.target], fault.seconds, by_seconds=fault.amount),
            "clock": lambda fault: self.world.jump(fault.target, fault.amount),
            "kill_pooler": lambda fault: self._done(self.world.kill_pooler()),
        }
        kinds = set(self._ways) if self.world.pooled else set(self._ways) - {"kill_pooler"}
        self.kinds = frozenset(kinds)

    def start(self) -> None:
        """Start everything."""
        self.world.start()

    def close(self) -> None:
        """Stop everything."""
        self.world.stop()

    def migrated(self) -> None:
        """Prepare the faults that need the tables."""
        self.world.install()

    @property
    def admin_dsn(self) -> str:
        """A superuser's address of the present primary."""
        return self.world.admin_url

    def address(self, name: str, *, pooled: bool = False) -> str:
        """The address for one client."""
        return self.world.entrance(name, pooled=pooled)

    def environment(self, name: str) -> dict[str, str]:
        """What makes its process go by a clock of its own."""
        return self.world.clock_env(name, {})

    def inject(self, fault: Fault) -> float | None:
        """Do it; returns when it is over. Raises NotNow."""
        outage = self._ways[fault.kind](fault)
        return outage.accepts if outage is not None else None

    def heal(self) -> None:
        """End all that lasts."""
        self.world.heal()

    @staticmethod
    def _moved(move: Callable[[], Outage | None]) -> Outage:
        """Those that move the server go on one at a time, so wait for the one that is under way; not for ever."""
        deadline = time.monotonic() + MOVING_SECONDS
        while time.monotonic() < deadline:
            outage = move()
            if outage is not None:
                return outage
            time.sleep(0.1)
        raise NotNow("others that move the server were under way")

    @staticmethod
    def _done(what: object) -> None:
        if not what:
            raise NotNow("there was nothing to do it to")


def _table(fault: Fault) -> str:
    """Which table is locked: it goes by the moment, so that a replay does the same."""
    return ("pending", "leases", "jobs", "finished")[int(fault.at * 1000) % 4]
