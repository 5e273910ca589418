"""Where a fleet lives: servers, network, pooler and clocks, all right so far."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from chaos.world.clocks import Clock
from chaos.world.faults import Faults
from chaos.world.janitor import Janitor
from chaos.world.network import Network
from chaos.world.pooler import Pooler, find_pgbouncer
from chaos.world.proxy import Proxy
from chaos.world.server import WorldError
from chaos.world.servers import Cluster

POOLER = "pooler"
"""The listener through which the pooler reaches the server."""


class Place:
    """What `World` does things to. Methods may be called from any thread."""

    def __init__(
        self,
        folder: Path,
        *,
        standby: bool = True,
        pooler: bool = True,
        binaries: Path | None = None,
        fsync: bool = True,
        seed: int | None = None,
        logs: Path | None = None,
    ) -> None:
        """
        Describe it; *folder* is its own, made and removed.

        Without PgBouncer there is no *pooler*: see `pooled`. The servers' and the pooler's
        messages are copied to the folder *logs* at the end.
        """
        self._folder = folder.resolve()
        self._logs = logs
        self.cluster = Cluster(self._folder, binaries=binaries, fsync=fsync, standby=standby)
        self.faults = Faults(self.cluster, choices=random.Random(seed))
        self.proxy = Proxy(self._folder)
        self.network = Network(self.proxy)
        self.pooler: Pooler | None = None
        self._has_standby = standby
        self._wants_pooler = pooler
        self._clocks: dict[str, Clock] = {}
        self._janitor: Janitor | None = None
        self._calm = threading.Event()
        """Set while whatever lasts has to end."""
        self._moving = threading.Lock()
        self._changed = threading.Condition()
        self._lasting: dict[str, int] = {}
        self._switching: dict[str, threading.Lock] = {}

    @property
    def pooled(self) -> bool:
        """Whether there is a pooler: what was asked for, and PgBouncer is installed."""
        return self._wants_pooler and find_pgbouncer() is not None

    # Start and end

    def start(self) -> float:
        """Have everything run, the database still empty; the seconds that took."""
        begun = time.monotonic()
        if not self._folder.exists():
            self._folder.mkdir(parents=True)
        self._folder.chmod(0o711)
        self._janitor = Janitor(self._folder)
        try:
            self.cluster.start()
            self.proxy = Proxy(self.cluster.socket)
            self.proxy.start()
            self.network = Network(self.proxy)
            self.cluster.on_primary(self.proxy.target)
            if self.pooled:
                port = self.proxy.listen(POOLER)
                self.network.add(POOLER)
                self.pooler = Pooler(self._folder / "pooler", "127.0.0.1", port)
                self.pooler.start()
        except BaseException:
            self.stop()
            raise
        return time.monotonic() - begun

    def stop(self) -> None:
        """End everything and remove it. Safe to call twice."""
        self._calm.set()
        if self._logs is not None:
            self._logs.mkdir(parents=True, exist_ok=True)
            for log in [*self._folder.glob("servers/*.log"), *self._folder.glob("pooler/*.log")]:
                shutil.copy(log, self._logs)
        if self.pooler is not None:
            self.pooler.stop()
        self.proxy.close()
        self.cluster.close()
        for clock in self._clocks.values():
            clock.close()
        self._clocks.clear()
        if self._janitor is not None:
            self._janitor.dismiss()
            self._janitor = None
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def install(self) -> None:
        """Prepare what needs the fleet's schema: once, after `fencepost migrate`."""
        self.faults.install()

    # Ways in

    @property
    def admin_url(self) -> str:
        """The superuser's address of the current primary, past everything that can be disturbed."""
        return self.cluster.admin_dsn

    def entrance(self, name: str, *, pooled: bool = False) -> str:
        """
        The address for one client, on a port of its own that always leads to the current primary.

        With *pooled*, through the pooler. Raises WorldError when there is none.
        """
        if not pooled:
            self.proxy.listen(name)
        elif self.pooler is None:
            raise WorldError("there is no pooler here")
        else:
            self.proxy.listen(name, target=("127.0.0.1", self.pooler.port))
        self.network.add(name)
        return self.proxy.dsn(name)

    # Clocks of the fleet

    def clock_env(self, name: str, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """*base*, or our environment, for processes that go by the clock *name*, which is right until it jumps."""
        if name not in self._clocks:
            self._clocks[name] = Clock(self._folder, name)
        return self._clocks[name].environment(base)

    def jump(self, name: str, seconds: float) -> None:
        """Have the clock *name* jump ahead, or back."""
        self._clocks[name].jump(seconds)
