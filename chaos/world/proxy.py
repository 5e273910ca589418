"""
A network between the fleet and its database that can be hurt, one client at a time.

It runs as a process of its own, on uvloop, and is told what to do over a pipe.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from chaos.world.server import WorldError

REQUESTS = "requests"
ANSWERS = "answers"
BOTH = (REQUESTS, ANSWERS)

Names = str | list[str] | None
"""Which listeners: one, several, or all of them for None."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one listener has carried so far."""

    open: int
    accepted: int
    requests_bytes: int
    answers_bytes: int


class Proxy:
    """
    Named ports on 127.0.0.1 that all lead to one target, and can be disturbed one by one.

    Methods return when what they ask for is in force, may be called from any thread, and
    raise WorldError when the process has died. Disturbances add up until `restore`.
    """

    def __init__(self, target: Path | tuple[str, int]) -> None:
        """Lead to *target*: a Unix socket's file, or a host and a port."""
        self._target = target
        self._process: subprocess.Popen[str] | None = None
        self._ports: dict[str, int] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the process, with nothing disturbed."""
        self._process = subprocess.Popen(
            # Its file, not its name: it needs nothing of ours, and starts the faster for it.
            [sys.executable, str(Path(__file__).with_name("proxy_process.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.target(self._target)

    def close(self) -> None:
        """End it; every connection ends too. Safe to call twice."""
        with self._lock:
            if self._process is None:
                return
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.send_signal(signal.SIGCONT)
            self._process.stdin.close()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def listen(self, name: str, *, target: tuple[str, int] | None = None) -> int:
        """
        The port of the listener *name*, which is made at the first call.

        It leads to *target* for ever; without one to where the proxy leads.
        """
        port = int(self._ask("listen", name=name, target=target))
        self._ports[name] = port
        return port

    def dsn(self, name: str, *, user: str = "app", database: str = "fencepost") -> str:
        """The address of the database through the listener *name*."""
        return f"postgresql://{user}@127.0.0.1:{self._ports.get(name) or self.listen(name)}/{database}"

    def target(self, target: Path | tuple[str, int]) -> None:
        """Cut every connection that led to the old one, and lead those to come to *target*."""
        self._target = target
        self._ask("target", target=os.fspath(target) if isinstance(target, Path) else target)

    def cut(self, names: Names = None) -> None:
        """Reset what is open. Who connects again gets through."""
        self._ask("cut", names=names)

    def refuse(self, names: Names = None) -> None:
        """Reset what is open and refuse what comes, as where nothing listens."""
        self._ask("refuse", names=names)

    def swallow(self, names: Names = None, directions: tuple[str, ...] = BOTH) -> None:
        """Keep everything open and pass nothing on, as a firewall does that forgot a connection."""
        self._ask("swallow", names=names, directions=directions)

    def forget(self, names: Names = None) -> None:
        """Pass nothing more on what is open now, ever, and tell nobody. Who connects again gets through."""
        self._ask("forget", names=names)

    def lose_answers(self, names: Names = None) -> None:
        """Pass requests on and throw their answers away: what is committed, its client never hears of."""
        self._ask("lose", names=names, directions=(ANSWERS,))

    def delay(self, names: Names = None, *, seconds: float) -> None:
        """Have everything arrive *seconds* later, each way."""
        self._ask("delay", names=names, seconds=seconds)

    def throttle(self, names: Names = None, *, bytes_per_second: float) -> None:
        """Pass no more than *bytes_per_second* on each connection, each way."""
        self._ask("throttle", names=names, rate=bytes_per_second)

    def cut_after(self, names: Names = None, *, count: int, direction: str = ANSWERS) -> None:
        """
        Reset each connection, open or to come, once it has passed *count* more bytes in *direction*.

        In the middle of a message, mostly: exactly *count* bytes arrive.
        """
        self._ask("cut_after", names=names, directions=(direction,), bytes=count)

    def restore(self, names: Names = None) -> None:
        """Pass everything on again. A connection of which something was withheld is cut."""
        self._ask("restore", names=names)

    def figures(self) -> dict[str, Figures]:
        """What each listener has carried."""
        return {name: Figures(*numbers) for name, numbers in self._ask("figures").items()}

    def _ask(self, what: str, *, names: Names = None, **values: object) -> Any:
        command = {"do": what, "names": [names] if isinstance(names, str) else names, **values}
        with self._lock:
            if self._process is None:
                raise WorldError("the proxy does not run")
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            try:
                self._process.stdin.write(json.dumps(command) + "\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            except OSError as error:
                raise WorldError("the proxy has died") from error
        if not line:
            raise WorldError("the proxy has died")
        answer = json.loads(line)
        if "error" in answer:
            raise WorldError(f"the proxy refuses {what}: {answer['error']}")
        return answer["answer"]
