"""A peer's processes, and the lines they send; `python/meter.py` says which there are."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from server import tree_cpu_seconds

COMMAND_SECONDS = 300.0
READY_SECONDS = 60.0
EXIT_SECONDS = 2.0
CONNECTIONS = 10
"""What a producer with many callers, or one that enqueues in bulk, may open; the same for every peer."""


class AgentFailed(Exception):
    """A peer's process ended or hung before its answer; the message has its last words."""


class Agent:
    """One process of a peer."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._seen: dict[str, dict[str, Any]] = {}
        self._news = asyncio.Event()
        self.samples: list[tuple[int, int]] = []
        """When so many handlers had begun, by this process's own count."""
        self.pickups: list[int] = []
        """Microseconds from enqueue to handler, in the latency run."""
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, command: list[str], *, url: str, log: Path) -> Agent:
        """Start a process that talks to us; it ends when we do."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "BENCH_DSN": url, "BENCH_CONNECTIONS": str(CONNECTIONS)},
            )
        return cls(process, log)

    @property
    def first_at(self) -> int | None:
        """When this process's first handler began."""
        return self._seen["first"]["at"] if "first" in self._seen else None

    @property
    def begun(self) -> int:
        """How many handlers have begun, as far as we have heard."""
        return self.samples[-1][1] if self.samples else 0

    @property
    def is_running(self) -> bool:
        """Whether the process is still there."""
        return self._process.returncode is None

    def cpu_seconds(self) -> float:
        """CPU time of the process and its children."""
        return tree_cpu_seconds(self._process.pid)

    async def wait_for(self, event: str, seconds: float) -> dict[str, Any]:
        """Wait for a line. Raises AgentFailed."""
        deadline = time.monotonic() + seconds
        while event not in self._seen:
            if self._reader.done():
                raise AgentFailed(f"ended without {event!r}: {self.last_words()}")
            if time.monotonic() > deadline:
                raise AgentFailed(f"no {event!r} within {seconds:g} seconds: {self.last_words()}")
            self._news.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), 0.5)
        return self._seen[event]

    def go(self) -> None:
        """Let a worker begin."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")

    async def stop(self) -> None:
        """
        End the process. Its database is dropped next, so it has nothing to save.

        It ends by itself when its input does. What hasn't by then, or what a peer started
        and left behind, is in the session that the process leads, and nobody else is.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), EXIT_SECONDS)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await asyncio.wait([self._reader], timeout=1)
        self._reader.cancel()

    def last_words(self) -> str:
        """The end of what the process wrote to its standard error."""
        text = self._log.read_text(errors="replace").strip() if self._log.exists() else ""
        return text[-1200:] or f"nothing said (exit status {self._process.returncode})"

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            try:
                message = json.loads(line)
                event = message["event"]
            except (ValueError, LookupError, TypeError):
                continue  # a peer's own chatter
            if event == "count":
                self.samples.append((message["at"], message["count"]))
            elif event == "pickup":
                self.pickups.append(message["microseconds"])
            else:
                self._seen[event] = message
            self._news.set()
        self._news.set()


class Agents:
    """Starts the processes of one peer."""

    def __init__(self, command: list[str], logs: Path) -> None:
        self._command = command
        self._logs = logs

    async def ask(self, *words: object, url: str = "") -> dict[str, Any]:
        """Run one command to its answer. Raises AgentFailed."""
        agent = await self.begin(*words, url=url)
        try:
            return await agent.wait_for("done", COMMAND_SECONDS)
        finally:
            await agent.stop()

    async def install(self, url: str) -> None:
        """Install the peer's schema in an empty database. Raises AgentFailed."""
        await self.ask("install", url=url)

    async def begin(self, *words: object, url: str) -> Agent:
        """Start a process and leave it to the caller."""
        log = self._logs / f"{words[0]}-{time.monotonic_ns()}.log"
        return await Agent.start([*self._command, *map(str, words)], url=url, log=log)

    async def workers(self, count: int, *, slots: int, url: str) -> list[Agent]:
        """Start so many workers and wait until all are ready to go. Raises AgentFailed."""
        agents = [await self.begin("work", slots, url=url) for _ in range(count)]
        try:
            for agent in agents:
                await agent.wait_for("ready", READY_SECONDS)
        except BaseException:
            for agent in agents:
                await agent.stop()
            raise
        return agents
