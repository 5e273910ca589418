"""Start, stop, freeze and kill processes, and say in limited time whether they went."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fencepost.embedded.launch import Child, shimmed
from fencepost.embedded.privileges import Identity

_DEAD = frozenset("ZX")
"""A dead process that nobody collected has ended for our purposes: in a container process 1 may collect none."""
POLL_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Status:
    """What the kernel says about one process."""

    pid: int
    parent: int
    state: str
    """`R`, `S`, `D`, `T` (stopped), `Z` (dead, not collected), …"""
    started: int
    """In clock ticks since boot; with the pid it names one process for ever."""


def status(pid: int) -> Status | None:
    """What *pid* does; None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return Status(pid, int(fields[1]), fields[0], int(fields[19]))


def is_alive(pid: int) -> bool:
    """Whether *pid* can still do anything, now or after SIGCONT."""
    seen = status(pid)
    return seen is not None and seen.state not in _DEAD


def everyone() -> list[Status]:
    """All processes of this machine."""
    found = (status(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return [one for one in found if one is not None]


def children(pid: int) -> list[int]:
    """The living children of *pid*."""
    return [one.pid for one in everyone() if one.parent == pid and one.state not in _DEAD]


def tree(pid: int) -> list[int]:
    """*pid* and all that descend from it and live, parents first."""
    seen = everyone()
    found = [pid]
    for parent in found:
        found += [one.pid for one in seen if one.parent == parent and one.state not in _DEAD]
    return [one for one in found if is_alive(one)]


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; False when the process is gone already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def pause(pid: int, *, seconds: float = 5.0) -> bool:
    """Stop *pid* where it stands and return once it does; False when it is gone, or in a system call that won't end."""
    if not send(pid, signal.SIGSTOP):
        return False
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        seen = status(pid)
        if seen is None or seen.state in _DEAD:
            return False
        if seen.state == "T":
            return True
        time.sleep(POLL_SECONDS)
    return False


def resume(pid: int) -> bool:
    """Let a stopped process go on; False when it is gone."""
    return send(pid, signal.SIGCONT)


def signal_tree(pid: int, number: signal.Signals) -> list[int]:
    """Send a signal to *pid* and its descendants; returns who got it."""
    return [one for one in tree(pid) if send(one, number)]


def kill_tree(pid: int, *, seconds: float = 10.0) -> list[int]:
    """
    Kill *pid* and its descendants with SIGKILL; returns who was killed.

    The root is stopped first, so that it can't have more children while they are counted.
    Raises TimeoutError when one of them is still there after *seconds*.
    """
    pause(pid, seconds=1.0)
    killed = signal_tree(pid, signal.SIGKILL)
    survivors = wait_gone(killed, seconds=seconds)
    if survivors:
        raise TimeoutError(f"still there {seconds:g} seconds after SIGKILL: {survivors}")
    return killed


def wait_gone(pids: Iterable[int], *, seconds: float) -> list[int]:
    """Wait until all *pids* have ended; returns those that have not after *seconds*."""
    left = [pid for pid in pids if is_alive(pid)]
    deadline = time.monotonic() + seconds
    while left and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        left = [pid for pid in left if is_alive(pid)]
    return left


def working_in(folder: Path) -> list[int]:
    """Processes whose working folder is *folder* or below; those of other users only for root."""
    found = []
    own = os.getpid()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == own:
            continue
        with contextlib.suppress(OSError):
            place = Path(os.readlink(f"/proc/{entry}/cwd").removesuffix(" (deleted)"))
            if place.is_relative_to(folder) and is_alive(int(entry)):
                found.append(int(entry))
    return found


class _Child(Child):
    @property
    def returncode(self) -> int | None:
        return self._process.returncode if self._process is not None else None


class Process:
    """A program of ours. The kernel ends it when the runner ends, however that happens."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        env: Mapping[str, str],
        log: Path,
        death_signal: signal.Signals = signal.SIGKILL,
        identity: Identity | None = None,
    ) -> None:
        """
        Start *command* in *folder*, in a session of its own; what it prints is added to *log*.

        *command* begins with an absolute path. Raises OSError when it can't be started.
        """
        identity = identity or Identity("itself", "as the current user", os.geteuid(), os.getegid())
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            wrapped = shimmed(command, identity=identity, folder=folder, death_signal=death_signal)
            self._child = _Child(wrapped, env=env, output=output)
        finally:
            os.close(output)
        self.log = log

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child.is_running

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._child.returncode

    def wait(self, seconds: float) -> bool:
        """Wait for its end; say whether it came."""
        return self._child.wait(seconds)

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal; False when it has ended."""
        return self._child.is_running and send(self.pid, number)

    def pause(self) -> bool:
        """Stop it and all its children where they stand."""
        stopped = [pause(pid) for pid in tree(self.pid)] if self.is_running else [False]
        return all(stopped)

    def resume(self) -> None:
        """Let it and its children go on."""
        signal_tree(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, to it and its children."""
        if self.is_running:
            kill_tree(self.pid)
            self.wait(10.0)

    def end(self, *, patience: float = 10.0) -> bool:
        """SIGTERM, then SIGKILL after *patience* seconds; whether the first was enough."""
        if not self.is_running:
            return True
        self.resume()
        self.signal(signal.SIGTERM)
        if self.wait(patience):
            return True
        self.kill()
        return False


def spawn(
    command: Sequence[str],
    *,
    folder: Path,
    env: Mapping[str, str],
    log: Path,
    death_signal: signal.Signals = signal.SIGKILL,
) -> Process:
    """Start a program of the fleet as the current user. See `Process`."""
    return Process(command, folder=folder, env=env, log=log, death_signal=death_signal)
