"""Child workers from the benchmark's side: start them, watch them, take their figures."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from fencepost.cli.bench.child import Config, Line, Totals
from fencepost.cli.bench.processes import spawn
from fencepost.cli.bench.reading import Progress
from fencepost.errors import FencepostError

_READY_SECONDS = 30.0
_FINISH_SECONDS = 30.0


class Child:
    """One worker process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._watching = asyncio.create_task(self._watch())
        self.ready = asyncio.Event()
        self.changed = asyncio.Event()
        self.progress: list[Progress] = []
        self.first_at_ns: int | None = None
        self.tasks = 0
        """How many it had when it last spoke, if it counts them."""
        self.totals: Totals | None = None
        self.ended = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def started(self) -> int:
        """How many handlers have started so far."""
        return self.progress[-1].started if self.progress else 0

    def configure(self, config: Config) -> None:
        """Tell it what to be. Not by its arguments, where everyone on the machine could read the password."""
        self._send(msgspec.json.encode(config))

    def go(self) -> None:
        """Let it begin; the second time, let it end."""
        self._send(b"")

    async def finish(self) -> Totals:
        """Let it end, and take what it reports."""
        self.go()
        await asyncio.wait([self._watching], timeout=_FINISH_SECONDS)
        if self.totals is None:
            raise FencepostError("a worker process of the benchmark ended without its figures")
        return self.totals

    async def kill(self) -> None:
        """End it, if it still runs."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._watching

    def _send(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")

    async def _watch(self) -> None:
        assert self._process.stdout is not None
        async for text in self._process.stdout:
            line = msgspec.json.decode(text, type=Line)
            if line.totals is not None:
                self.totals = line.totals
            elif line.at is None:
                self.ready.set()
            else:
                self.progress.append(Progress(line.at, line.started))
                self.first_at_ns = line.first_at
                self.tasks = line.tasks
                self.changed.set()
        self.ended = True
        self.changed.set()
        self.ready.set()


@asynccontextmanager
async def children(count: int, config: Config) -> AsyncIterator[list[Child]]:
    """Start *count* workers, ready to go; kill what is left of them afterwards."""
    started: list[Child] = []
    try:
        for _ in range(count):
            started.append(await _start(config))
        for child in started:
            waiting = asyncio.create_task(child.ready.wait())
            await asyncio.wait([waiting], timeout=_READY_SECONDS)
            waiting.cancel()
            if child.ended or not child.ready.is_set():
                raise FencepostError("a worker process of the benchmark didn't come up; its output says why")
        yield started
    finally:
        for child in started:
            await child.kill()


async def _start(config: Config) -> Child:
    worker = Child(await spawn("fencepost.cli.bench.child"))
    worker.configure(config)
    return worker


async def changed(workers: Sequence[Child], *, seconds: float = 30) -> None:
    """Wait until one of them has started more. Raises FencepostError when none does, or one has ended."""
    check_alive(workers)
    for child in workers:
        child.changed.clear()
    waits = [asyncio.create_task(child.changed.wait()) for child in workers]
    done, waiting = await asyncio.wait(waits, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    if not done:
        raise FencepostError(f"the workers of the benchmark started no job for {seconds:.0f} s; is the server busy?")
    check_alive(workers)


def check_alive(workers: Sequence[Child]) -> None:
    """Raise FencepostError when one of them has ended before its time."""
    if any(child.ended for child in workers):
        raise FencepostError("a worker process of the benchmark ended before its time; its output says why")


def cpu_seconds(pid: int) -> float | None:
    """CPU time of a process's threads so far; None where that can't be seen."""
    threads = [_seconds_of(thread) for thread in _folders(Path(f"/proc/{pid}/task"))]
    return sum(threads) if threads else None


def resident_bytes(pid: int) -> int | None:
    """What a process has in memory; None where that can't be seen."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def threads(pid: int) -> int | None:
    """How many threads a process has; None where that can't be seen."""
    return len(_folders(Path(f"/proc/{pid}/task"))) or None


def open_files(pid: int) -> int | None:
    """How many file descriptors a process has open; None where that can't be seen."""
    return len(_folders(Path(f"/proc/{pid}/fd"))) or None


def _folders(place: Path) -> list[Path]:
    try:
        return list(place.iterdir())
    except OSError:
        return []


def _seconds_of(thread: Path) -> float:
    # In nanoseconds, where `stat` counts hundredths of a second: an idle worker takes a few of those in a minute.
    try:
        return int((thread / "schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except OSError:
        return 0.0
