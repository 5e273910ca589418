"""The whole world of a fleet, with one method for each thing that can happen to it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import psycopg

from chaos.world.faults import Hold
from chaos.world.place import Place

SWITCH_SECONDS = 60.0
"""How long a fault is tried to be turned on or off while the server is away."""


@dataclass(frozen=True, slots=True)
class Outage:
    """When the server was away, in `time.monotonic` seconds."""

    begun: float
    accepts: float
    """From when it answered again."""
    ended: float
    """When all was as before, the new standby of a failover included."""

    @property
    def down(self) -> float:
        """How many seconds it did not answer."""
        return self.accepts - self.begun


class World(Place):
    """
    Where a fleet lives.

    Methods may be called from any thread and overlap. What lasts takes its *seconds*,
    blocks, and returns when it is undone; `heal` ends it before its time. What moves the
    servers (an outage, a kill, a failover) goes on one at a time: asked for during
    another it does nothing and returns None.
    """

    # What moves the servers

    def kill_postmaster(self, *, down: float = 0.0) -> Outage | None:
        """SIGKILL the postmaster alone, and start it again *down* seconds later."""
        return self._move(lambda: self.cluster.kill_postmaster(down=down))

    def kill_server(self, *, down: float = 0.0) -> Outage | None:
        """SIGKILL the primary with all its processes, and start it again *down* seconds later."""
        return self._move(lambda: self.cluster.kill_all(down=down))

    def crash(self) -> Outage | None:
        """SIGKILL one backend, which makes PostgreSQL end all the others and recover."""
        return self._move(self.cluster.crash)

    def restart(self) -> Outage | None:
        """Stop the primary in good order and start it."""
        return self._move(self.cluster.restart)

    def outage(self, seconds: float) -> Outage | None:
        """Stop the primary in good order and start it *seconds* later."""
        return self._move(lambda: self.cluster.outage(seconds))

    def failover(self) -> Outage | None:
        """Kill the primary for good, promote the standby, make a new one."""
        if not self._has_standby or not self._moving.acquire(blocking=False):
            return None
        try:
            took = self.cluster.failover()
        finally:
            self._moving.release()
        ended = time.monotonic()
        accepts = ended - took.rebuilt
        return Outage(accepts - took.down, accepts, ended)

    def _move(self, action: Callable[[], object]) -> Outage | None:
        if not self._moving.acquire(blocking=False):
            return None
        try:
            begun = time.monotonic()
            action()
            accepts = time.monotonic()
            self.cluster.ensure_protected()
            return Outage(begun, accepts, time.monotonic())
        finally:
            self._moving.release()

    # What befalls sessions and statements

    def terminate_backends(self, share: float = 1.0) -> int:
        """End that share of the fleet's sessions; returns how many. None of them while the server is away."""
        return self._or_none(lambda: self.faults.terminate_backends(share))

    def cancel_backends(self, share: float = 1.0) -> int:
        """Cancel that share of the statements that run; returns how many."""
        return self._or_none(lambda: self.faults.cancel_backends(share))

    @staticmethod
    def _or_none(strike: Callable[[], int]) -> int:
        with contextlib.suppress(psycopg.OperationalError):
            return strike()
        return 0

    def stop_backends(self, seconds: float, *, count: int = 1, query_like: str | None = None) -> int:
        """SIGSTOP up to *count* sessions of the fleet for *seconds*; returns how many there were."""
        holds: list[Hold] = []
        for _ in range(count):
            with contextlib.suppress(psycopg.OperationalError):
                hold = self.faults.stop_backend(seconds=seconds, query_like=query_like)
                holds += [hold] if hold else []
        return self._sit_out(holds, seconds)

    def stop_process(self, kind: str, seconds: float) -> int:
        """SIGSTOP the server's `checkpointer`, `walwriter` or another for *seconds*; returns 1 if it was there."""
        with contextlib.suppress(psycopg.OperationalError):
            hold = self.faults.stop_process(kind, seconds=seconds)
            return self._sit_out([hold] if hold else [], seconds)
        return 0

    def stop_standby(self, seconds: float) -> None:
        """Have the standby take nothing for *seconds*: no commit returns meanwhile."""
        if not self._has_standby or not self._moving.acquire(blocking=False):
            return
        try:
            self.cluster.pause_standby()
            self._calm.wait(seconds)
            self.cluster.resume_standby()
        finally:
            self._moving.release()

    def hold_locks(self, seconds: float, *, table: str = "pending", mode: str = "access exclusive") -> bool:
        """Lock a table for *seconds*; False when the lock wasn't to be had."""
        return self._held(lambda: self.faults.lock_table(table, mode=mode, seconds=seconds), seconds)

    def hold_rows(self, seconds: float, *, table: str = "leases", limit: int = 100) -> bool:
        """Lock rows of a table for *seconds*; False when the server is away."""
        return self._held(lambda: self.faults.lock_rows(table, limit=limit, seconds=seconds), seconds)

    def hold_keys(self, keys: Sequence[str], seconds: float) -> bool:
        """Keep a producer's transaction open that has unique *keys*, for *seconds*; False when the server is away."""
        return self._held(lambda: self.faults.hold_keys(keys, seconds=seconds), seconds)

    def pin_snapshot(self, seconds: float) -> bool:
        """Keep a snapshot for *seconds*; False when the server is away."""
        return self._held(lambda: self.faults.pin_snapshot(seconds=seconds), seconds)

    def _held(self, take: Callable[[], Hold], seconds: float) -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            return bool(self._sit_out([take()], seconds))
        return False

    def _sit_out(self, holds: list[Hold], seconds: float) -> int:
        if holds:
            self._calm.wait(seconds)
        for hold in holds:
            with contextlib.suppress(psycopg.Error):
                hold.release()
        return len(holds)

    def read_only(self, seconds: float) -> None:
        """Refuse every write for *seconds*, with SQLSTATE 25006."""
        self._last("read_only", seconds, self.faults.read_only)

    def hostile_timeouts(self, seconds: float) -> None:
        """Have 5 ms be the role's default for every timeout, for *seconds*."""
        self._last("hostile_timeouts", seconds, self.faults.hostile_timeouts)

    def disk_full(self, seconds: float, *, share: float = 1.0) -> None:
        """Refuse that share of the writes for *seconds*, with SQLSTATE 53100."""
        self._last("disk_full", seconds, lambda *, on: self.faults.disk_full(on=on, share=share))

    def too_many_connections(self, seconds: float, *, limit: int = 1) -> None:
        """Allow *limit* sessions for *seconds*; the rest gets SQLSTATE 53300."""
        self._last("connection_limit", seconds, lambda *, on: self.faults.connection_limit(limit if on else None))

    def _last(self, name: str, seconds: float, switch: Callable[..., object]) -> None:
        """Switch it on, and off *seconds* later unless it was asked for again and has not ended there."""
        with self._changed:
            self._lasting[name] = self._lasting.get(name, 0) + 1
            switching = self._switching.setdefault(name, threading.Lock())
        try:
            with switching:
                self._surely(lambda: switch(on=True))
            self._calm.wait(seconds)
        finally:
            with self._changed:
                self._lasting[name] -= 1
                self._changed.notify_all()
            with switching:
                if self._lasting[name] == 0:
                    self._surely(lambda: switch(on=False))

    @staticmethod
    def _surely(action: Callable[[], object]) -> None:
        deadline = time.monotonic() + SWITCH_SECONDS
        while True:
            try:
                action()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    # What befalls the network

    def cut(self, names: list[str] | None = None, seconds: float = 0.0) -> None:
        """Reset the connections of *names*, or of all, and refuse new ones for *seconds*."""
        if seconds <= 0:
            self.proxy.cut(self.network.chosen(names))
        else:
            self._disturb(names, seconds, self.proxy.refuse)

    def swallow(self, names: list[str] | None, seconds: float) -> None:
        """Pass nothing on for *seconds*, and tell nobody."""
        self._disturb(names, seconds, self.proxy.swallow)

    def drop_answers(self, names: list[str] | None, seconds: float) -> None:
        """Let requests through and lose their answers for *seconds*; then the connections are reset."""
        self._disturb(names, seconds, self.proxy.lose_answers)

    def delay(self, names: list[str] | None, seconds: float, *, by_seconds: float) -> None:
        """Have everything arrive *by_seconds* later, each way, for *seconds*."""
        self._disturb(names, seconds, lambda chosen: self.proxy.delay(chosen, seconds=by_seconds))

    def throttle(self, names: list[str] | None, seconds: float, *, bytes_per_second: float) -> None:
        """Pass no more than that on each connection for *seconds*."""
        self._disturb(names, seconds, lambda chosen: self.proxy.throttle(chosen, bytes_per_second=bytes_per_second))

    def cut_after(self, names: list[str] | None, seconds: float, *, count: int, direction: str = "answers") -> None:
        """For *seconds*, reset each connection once it has passed *count* bytes in *direction*."""
        self._disturb(names, seconds, lambda chosen: self.proxy.cut_after(chosen, count=count, direction=direction))

    def forget(self, names: list[str] | None = None) -> None:
        """Never pass anything on again on what is open now; new connections work."""
        self.proxy.forget(self.network.chosen(names))

    def _disturb(self, names: list[str] | None, seconds: float, disturb: Callable[[list[str]], object]) -> None:
        with self.network.disturbed(names, disturb):
            self._calm.wait(seconds)

    # What befalls the pooler and the clocks

    def kill_pooler(self, *, down: float = 0.0) -> float | None:
        """SIGKILL the pooler and start it again *down* seconds later; the seconds it was away. None without one."""
        return self.pooler.restart(down=down) if self.pooler is not None else None

    def jump_server(self, seconds: float) -> bool:
        """Have the primary's clock jump ahead, or back; False where a server's clock can't be set."""
        if self.cluster.has_clocks:
            self.cluster.jump(seconds)
        return self.cluster.has_clocks

    # And back

    def heal(self) -> None:
        """
        End all that lasts, now, and return when everything is as it was at the start.

        Faults that are asked for during it end at once.
        """
        self._calm.set()
        with self._changed:
            self._changed.wait_for(lambda: not any(self._lasting.values()), timeout=SWITCH_SECONDS)
        with self._moving:
            if not self.cluster.primary.is_running:
                self.cluster.primary.start()
            self._surely(self.faults.heal)
            self.proxy.restore()
            if self.pooler is not None:
                self.pooler.resume()
                self.pooler.start()
            for clock in self._clocks.values():
                clock.set(0.0)
            self.cluster.set_clocks_right()
            self.cluster.ensure_protected()
        self._calm.clear()

    @contextlib.contextmanager
    def healed(self) -> Iterator[Self]:
        """Heal at the end of a `with`, whatever happened in it."""
        try:
            yield self
        finally:
            self.heal()
