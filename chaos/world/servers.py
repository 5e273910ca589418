"""A primary and a synchronous standby, and every way to hurt them that loses nothing. See `replication`."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psycopg

from chaos.world import processes
from chaos.world.clocks import Clock, build_library
from chaos.world.janitor import Janitor
from chaos.world.replication import Replication, until
from chaos.world.server import Server, WorldError
from fencepost.embedded import find_binaries
from fencepost.embedded.cluster import tail
from fencepost.embedded.launch import run
from fencepost.embedded.privileges import Identity, choose_identity

ROLE = "app"
"""Who the fleet connects as: it owns the database and is no superuser, so every limit holds for it."""

CRASH_SECONDS = 60.0
COPIES = 3
"""How often a standby is tried to be made."""


@dataclass(frozen=True, slots=True)
class Failover:
    """How long one took, in seconds."""

    down: float
    """From the kill to the promoted server's first answer, with the proxies led to it."""
    rebuilt: float
    """From then until the new standby was streaming and commits were synchronous again."""
    total: float
    """All of it, with the wait before the kill until the old standby had everything."""


class Cluster:
    """
    Two servers in one folder. Every method may be called from any thread.

    One operation on the servers goes on at a time; the next waits for it. When the runner
    dies, however that happens, nothing of it stays.
    """

    def __init__(
        self,
        folder: Path,
        *,
        binaries: Path | None = None,
        fsync: bool = True,
        standby: bool = True,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """
        Describe it; nothing is touched before `start`.

        *folder* is made if need be. As root it must be one that other accounts may pass
        through. Without *standby* there is no failover, and `ensure_protected` does nothing.
        """
        self._folder = folder.resolve() / "servers"
        self._folder_of_binaries = binaries
        self._options = {"fsync": "on" if fsync else "off", **(options or {})}
        self._has_standby = standby
        self._servers: list[Server] = []
        self._clocks: dict[str, Clock] = {}
        self._library: Path | None = None
        self._lock = threading.RLock()
        self._steady = threading.RLock()
        self._protected = False
        self._callbacks: list[Callable[[Path], object]] = []
        self._janitor: Janitor | None = None

    # Start and end

    def start(self) -> float:
        """Make both servers and start them; return when commits are synchronous."""
        begun = time.monotonic()
        with self._lock:
            opened = 0o711 if os.geteuid() == 0 else 0o700
            for folder in (self._folder.parent, self._folder):
                if not folder.exists():
                    folder.mkdir(parents=True)
                    folder.chmod(opened)
            self._janitor = Janitor(self._folder)
            try:
                self._set_up()
            except BaseException:
                self.close()
                raise
        return time.monotonic() - begun

    def _set_up(self) -> None:
        assert self._janitor is not None
        binaries = find_binaries(self._folder_of_binaries)

        def probe(identity: Identity) -> str | None:
            succeeded, output = run([binaries.initdb, "--version"], identity=identity, folder=self._folder)
            return None if succeeded else tail(output).strip()

        identity = choose_identity(data=self._folder / "a", folder=self._folder, probe=probe)
        self._library = build_library()
        if self._library is not None:
            self._janitor.also(self._library.parent)
        for name in ("a", "b") if self._has_standby else ("a",):
            variables: Mapping[str, str] = {}
            if self._library is not None:
                self._clocks[name] = Clock(self._folder, name)
                variables = self._clocks[name].preloaded(self._library)
            server = Server(
                name, self._folder, binaries=binaries, identity=identity, options=self._options, variables=variables
            )
            self._servers.append(server)
            self._janitor.also(server.socket_folder)
        self.primary.create()
        self.primary.start()
        with self.admin() as session:
            session.execute(f"create role {ROLE} login")
            session.execute(f"alter database fencepost owner to {ROLE}")
        if self._has_standby:
            self._rebuild()

    def close(self) -> float:
        """Stop both and remove all that they had. Safe to call twice."""
        begun = time.monotonic()
        with self._lock:
            for server in reversed(self._servers):
                server.close()
            self._servers.clear()
            for clock in self._clocks.values():
                clock.close()
            self._clocks.clear()
            for place in (self._folder, *([self._library.parent] if self._library is not None else [])):
                shutil.rmtree(place, ignore_errors=True)
            if self._janitor is not None:
                self._janitor.dismiss()
                self._janitor = None
        return time.monotonic() - begun

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Where things are

    @property
    def primary(self) -> Server:
        """The server that takes writes now."""
        return self._servers[0]

    @property
    def standby(self) -> Server:
        """The other one."""
        return self._servers[1]

    @property
    def socket(self) -> Path:
        """The Unix socket of the primary."""
        return self.primary.socket

    @property
    def dsn(self) -> str:
        """The address of the primary, past every proxy, as the fleet's role."""
        return self.primary.dsn(user=ROLE)

    @property
    def admin_dsn(self) -> str:
        """The address of the primary, past every proxy, as its superuser."""
        return self.primary.dsn()

    def admin(self, database: str = "fencepost") -> psycopg.Connection:
        """A session of the superuser on the primary; each statement commits."""
        return self.primary.connect(database)

    def on_primary(self, callback: Callable[[Path], object]) -> None:
        """Have *callback* called with the socket of each new primary, before clients may need it."""
        self._callbacks.append(callback)

    def forget(self, callback: Callable[[Path], object]) -> None:
        """No longer call *callback*."""
        self._callbacks.remove(callback)

    def steady(self) -> contextlib.AbstractContextManager[object]:
        """
        Hold off the killing part of a failover.

        For what ends sessions: see gap 3 of `replication`. Not for longer than a moment.
        """
        return self._steady

    # Hurting it

    def restart(self) -> float:
        """Stop the primary in good order and start it; the seconds until it answers."""
        return self.outage(0.0)

    def outage(self, seconds: float) -> float:
        """Stop the primary, leave it down for *seconds*, start it; the seconds it did not answer."""
        with self._lock:
            self._protected = False
            self.resume_standby()
            begun = time.monotonic()
            self.primary.stop()
            time.sleep(seconds)
            self.primary.start()
            return time.monotonic() - begun

    def kill_postmaster(self, *, down: float = 0.0) -> float:
        """
        SIGKILL the primary's postmaster and start it again *down* seconds later; the seconds until it answers.

        Its backends are left to notice by themselves, and PostgreSQL does not start before
        the last of them is gone: that wait is part of it.
        """
        with self._lock:
            self._protected = False
            begun = time.monotonic()
            self.primary.kill_postmaster()
            time.sleep(down)
            self.primary.start()
            return time.monotonic() - begun

    def kill_all(self, *, down: float = 0.0) -> float:
        """SIGKILL every process of the primary, as a machine does that loses its power; the same otherwise."""
        with self._lock:
            self._protected = False
            begun = time.monotonic()
            self.primary.kill_all()
            time.sleep(down)
            self.primary.start()
            return time.monotonic() - begun

    def crash(self) -> float:
        """SIGKILL one backend: PostgreSQL ends all others and recovers by itself. The seconds until it answers."""
        with self._lock:
            self._protected = False
            with contextlib.suppress(psycopg.Error), self.admin() as victim, self.admin() as witness:
                begun = time.monotonic()
                processes.send(victim.info.backend_pid, signal.SIGKILL)
                # It goes on for as long as the postmaster hasn't noticed.
                while time.monotonic() < begun + CRASH_SECONDS:
                    witness.execute("select 1")
            until(self._answers, seconds=CRASH_SECONDS, what="the crashed server answers again")
            return time.monotonic() - begun

    def failover(self) -> Failover:
        """
        Kill the primary and everything of it, promote the standby, make a new one.

        Returns when commits are synchronous again. Nothing that was acknowledged is lost.
        """
        with self._lock:
            begun = time.monotonic()
            self.resume_standby()
            self.ensure_protected()
            with self._steady:
                self._replication.catch_up()
                killed = time.monotonic()
                self.primary.kill_all()
            self._protected = False
            self._promote()
            answered = time.monotonic()
            self._rebuild()
            ended = time.monotonic()
            return Failover(down=answered - killed, rebuilt=ended - answered, total=ended - begun)

    def pause_standby(self) -> None:
        """Stop the standby's receiver: from now on no commit comes back. `resume_standby` ends it."""
        with self._lock:
            self.ensure_protected()
            processes.pause(self._replication.receiver())

    def resume_standby(self) -> None:
        """Let the standby go on."""
        with self._lock:
            for server in self._servers[1:]:
                for pid in server.processes():
                    processes.resume(pid)

    @property
    def has_clocks(self) -> bool:
        """Whether the servers' clocks can be set: where there is a C compiler."""
        return bool(self._clocks)

    def jump(self, seconds: float) -> None:
        """
        Have the primary's clock jump ahead, or back.

        The standby's is its own: after a failover the time is another. Raises WorldError without `has_clocks`.
        """
        if not self._clocks:
            raise WorldError("there is no C compiler here, so the servers' clocks can't be set")
        self._clocks[self.primary.name].jump(seconds)

    def set_clocks_right(self) -> None:
        """Have both servers tell the true time."""
        for clock in self._clocks.values():
            clock.set(0.0)

    # What makes commits safe

    @property
    def protected(self) -> bool:
        """Whether it is proven that each commit that is acknowledged now is on both servers."""
        return self._protected

    def ensure_protected(self) -> float:
        """Return when that is proven, with the seconds it took. A standby that was left behind is made anew."""
        begun = time.monotonic()
        with self._lock:
            if self._protected or not self._has_standby:
                return 0.0
            try:
                self._protect()
            except (TimeoutError, WorldError, psycopg.Error):
                self._rebuild()
        return time.monotonic() - begun

    def _promote(self) -> None:
        with self.standby.connect() as session:
            promoted = session.execute("select pg_promote(true, 30)").fetchone()
        if promoted != (True,):
            raise WorldError(f"server {self.standby.name} was not promoted; see {self.standby.log_file}")
        self._servers.reverse()
        for callback in self._callbacks:
            callback(self.socket)
        until(self._answers, seconds=30.0, what="the promoted server answers")

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.Error), self.admin() as session:
            return session.execute("select not pg_is_in_recovery()").fetchone() == (True,)
        return False

    def _rebuild(self) -> None:
        self._protected = False
        # Else commits would wait for a standby that isn't there.
        self._replication.make_asynchronous()
        for attempt in range(COPIES):
            try:
                self.standby.copy(self.primary)
                break
            except WorldError:  # a clock that jumps looks like an hour's silence to whoever sends the copy
                if attempt == COPIES - 1:
                    raise
        self.standby.start()
        self.standby.be_durable()
        self._protect()

    def _protect(self) -> None:
        self.standby.start()
        self._replication.make_synchronous()
        self._protected = True

    @property
    def _replication(self) -> Replication:
        return Replication(self.primary, self.standby)
