"""Where a campaign takes place: the database under test, and what can be done to it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from chaos.plan import Fault
from fencepost.embedded import EmbeddedPostgres


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


class PlainGround:
    """One embedded PostgreSQL without anything around it: for trying the runner itself."""

    kinds = frozenset({"kill_postmaster", "outage"})

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = EmbeddedPostgres(folder / "data", options={"max_connections": "200", "fsync": "off"})

    def start(self) -> None:
        """Start the server."""
        self._server.start()

    def close(self) -> None:
        """Stop the server."""
        self._server.stop()

    def migrated(self) -> None:
        """Nothing."""

    @property
    def admin_dsn(self) -> str:
        """Its address."""
        return self._server.dsn

    def address(self, name: str, *, pooled: bool = False) -> str:
        """Its address."""
        return self._server.dsn

    def environment(self, name: str) -> dict[str, str]:
        """Nothing."""
        return {}

    def inject(self, fault: Fault) -> float | None:
        """Kill the postmaster, or stop the server for a while."""
        action: Callable[[Fault], float] = {"kill_postmaster": self._kill, "outage": self._outage}[fault.kind]
        return action(fault)

    def heal(self) -> None:
        """Nothing."""

    def _kill(self, fault: Fault) -> float:
        pid = int((self._folder / "data" / "postgres" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        self._server.start()
        return time.monotonic()

    def _outage(self, fault: Fault) -> float:
        self._server.stop()
        time.sleep(fault.seconds)
        self._server.start()
        return time.monotonic()
