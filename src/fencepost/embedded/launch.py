"""
Start PostgreSQL's programs so that none outlives the process that started them.

Each goes through `shim`, in a session of its own: Ctrl-C in a terminal reaches the
owner only, which then ends the server in good order.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from fencepost.embedded import shim
from fencepost.embedded.privileges import Identity
from fencepost.errors import EmbeddedError

_KEPT_VARIABLES = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")

RUN_TIMEOUT_SECONDS = 120.0


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """
    Give PostgreSQL what it needs of our environment.

    Neither the owner's secrets nor PGDATA, PGPORT and their kind. Messages come in
    English because some are recognised.
    """
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return {**kept, "LC_ALL": "C", "TZ": "UTC", **(extra or {})}


def shimmed(
    command: Sequence[str | Path], *, identity: Identity, folder: Path, death_signal: signal.Signals
) -> list[str]:
    """Wrap *command* so that it runs as *identity* in *folder* and gets *death_signal* when we die."""
    if not sys.executable:
        raise EmbeddedError("This program hides its Python interpreter, which is needed to start PostgreSQL.")
    prefix = [sys.executable, "-I", "-S", shim.__file__]
    return [*prefix, str(os.getpid()), str(int(death_signal)), identity.way, str(folder), *map(str, command)]


def run(command: Sequence[str | Path], *, identity: Identity, folder: Path, script: str = "") -> tuple[bool, str]:
    """Run *command* to its end; say whether it succeeded and what it printed."""
    try:
        done = subprocess.run(
            shimmed(command, identity=identity, folder=folder, death_signal=signal.SIGTERM),
            env=environment(),
            input=script,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            timeout=RUN_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"{command[0]} did not finish in {RUN_TIMEOUT_SECONDS:g} seconds"
    return done.returncode == 0, done.stdout


class Child:
    """
    A running program, kept by a thread of its own.

    The kernel ties the death signal to the thread that forked, not to the process: a
    server started by a short-lived thread would be told to stop when that thread ends.
    So the thread that forks stays, waits for the program, and thereby reaps it.
    """

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], output: int) -> None:
        self._command = command
        self._env = env
        self._output = output
        self._started = threading.Event()
        self._ended = threading.Event()
        self._failure: OSError | None = None
        self._process: subprocess.Popen[bytes] | None = None
        threading.Thread(target=self._keep, name="fencepost-postgres", daemon=True).start()
        self._started.wait()
        if self._failure:
            raise self._failure

    def _keep(self) -> None:
        try:
            self._process = subprocess.Popen(
                self._command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as failure:
            self._failure = failure
            return
        finally:
            self._started.set()
        self._process.wait()
        self._ended.set()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return not self._ended.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait up to *seconds* for the program's end; say whether it came."""
        return self._ended.wait(seconds)

    def end(self, *patience: tuple[signal.Signals, float]) -> None:
        """Send each signal in turn, with the time it has, until the program has ended."""
        assert self._process is not None
        for number, seconds in patience:
            self._process.send_signal(number)
            if self.wait(seconds):
                return
