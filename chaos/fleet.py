"""The processes under test: started like anywhere else, watched, and started again when they are gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from chaos.jobs import EXIT_CODE
from fencepost.errors import DatabaseUnavailable, FencepostError

ROOT = Path(__file__).resolve().parents[1]
LOOK_SECONDS = 0.05
QUICK_END_SECONDS = 1.0
"""One that ended so soon by itself is started again after a pause."""
EXPECTED_ENDS = frozenset(
    {0, EXIT_CODE, DatabaseUnavailable.exit_code, -signal.SIGKILL, -signal.SIGSEGV, -signal.SIGTERM}
)
"""What scripts and faults end a process with. One that finds no database at its start says so, and gives up."""


class MemberSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One member of the fleet."""

    name: str
    role: str
    """worker or api."""
    arguments: tuple[str, ...]
    processes: int = 0
    """Worker processes under it."""
    pooled: bool = False
    port: int = 0


class Usage(msgspec.Struct, frozen=True):
    """What a process holds."""

    threads: int
    descriptors: int


class Member:
    """One process of the fleet, through all its lives."""

    def __init__(self, spec: MemberSpec, *, environment: dict[str, str], folder: Path) -> None:
        self.spec = spec
        self._environment = environment
        self._log = folder / f"{spec.name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.first_usage: Usage | None = None
        self.struck = False
        """Whether a fault has killed any of its processes since it was started."""

    @property
    def pid(self) -> int | None:
        """Its process, if there is one."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def process_count(self) -> int:
        """How many worker processes it is to have under it."""
        return self.spec.processes

    def start(self) -> None:
        """Start it, in a process group of its own."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fencepost", *self.spec.arguments],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started_at = time.monotonic()
        self.first_usage = None
        self.struck = False

    def ended(self) -> int | None:
        """Its exit code, once it has ended."""
        return None if self._process is None else self._process.poll()

    def wait(self, seconds: float) -> None:
        """Wait for its end, up to so long."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)

    def signal(self, number: signal.Signals) -> bool:
        """Send it a signal; False when it is gone."""
        pid = self.pid
        if pid is None or self.ended() is not None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            return True
        return False

    def family(self) -> list[int]:
        """Its process and the worker processes under it. Children of jobs aren't among them."""
        pid = self.pid
        if pid is None:
            return []
        return [pid, *(child for child in children(pid) if "processes.child" in command_line(child))]

    def usage(self) -> Usage | None:
        """What it holds now."""
        pid = self.pid
        return usage_of(pid) if pid is not None else None

    def log_end(self, lines: int = 8) -> str:
        """The last lines it wrote."""
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def kill_all(self) -> None:
        """End it and whatever is in its process group."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Fleet:
    """All members, kept running."""

    def __init__(self, members: list[Member]) -> None:
        self.members = {member.spec.name: member for member in members}
        self.ends: Counter[str] = Counter()
        """How lives ended: exit codes by role."""
        self.unexpected: list[str] = []
        """Ends that no fault and no script explains."""
        self.given_up: list[str] = []
        """Starts that a supervisor gave up, as it should, since a fault had killed one of its processes."""
        self._stopping = False
        self._keeper: asyncio.Task[None] | None = None

    @property
    def workers(self) -> list[Member]:
        """Those that run jobs."""
        return [member for member in self.members.values() if member.spec.role == "worker"]

    @property
    def apis(self) -> list[Member]:
        """Those that serve the API."""
        return [member for member in self.members.values() if member.spec.role == "api"]

    def start(self) -> None:
        """Start all, and keep them running."""
        for member in self.members.values():
            member.start()
        self._keeper = asyncio.create_task(self._keep(), name="chaos-fleet")

    async def _keep(self) -> None:
        while not self._stopping:
            for member in self.members.values():
                code = member.ended()
                if code is None:
                    self._measure(member)
                    continue
                lived = time.monotonic() - member.started_at
                self.note_end(member, code)
                if code not in EXPECTED_ENDS and lived < QUICK_END_SECONDS:
                    await asyncio.sleep(QUICK_END_SECONDS)
                member.start()
            await asyncio.sleep(LOOK_SECONDS)

    def _measure(self, member: Member) -> None:
        """Once it has settled: what it holds, to be compared at the end."""
        if member.first_usage is None and time.monotonic() - member.started_at > 3:
            member.first_usage = member.usage()

    def note_end(self, member: Member, code: int) -> None:
        """Count it, and judge it."""
        self.ends[f"{member.spec.role} {code}"] += 1
        if code in EXPECTED_ENDS:
            return
        gave_up = code == FencepostError.exit_code and member.process_count > 0 and member.struck
        told = self.given_up if gave_up else self.unexpected
        told.append(f"{member.spec.name} ended with {code}: {member.log_end(1 if gave_up else 4)}")

    async def stop(self, seconds: float) -> list[str]:
        """SIGTERM to all; returns those that had to be killed."""
        self._stopping = True
        if self._keeper is not None:
            await self._keeper
        for member in self.members.values():
            member.signal(signal.SIGCONT)
            member.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for member in self.members.values():
                    await asyncio.to_thread(member.wait, seconds)
        late = [name for name, member in self.members.items() if member.ended() is None]
        self.kill()
        return late

    def kill(self) -> None:
        """End all at once."""
        self._stopping = True
        for member in self.members.values():
            member.kill_all()


def children(pid: int) -> list[int]:
    """The children of a process."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def command_line(pid: int) -> str:
    """The command line of a process; empty when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def usage_of(pid: int) -> Usage | None:
    """Threads and descriptors of a process; None when it is gone."""
    with contextlib.suppress(OSError):
        return Usage(len(os.listdir(f"/proc/{pid}/task")), len(os.listdir(f"/proc/{pid}/fd")))
    return None


def environments(base: dict[str, str], *, source: Path | None) -> Iterator[tuple[str, str]]:
    """What every process of the fleet has: the caller's environment without its settings, and ours."""
    path = [str(part) for part in (source, ROOT) if part is not None]
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    yield from {**kept, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1", **base}.items()
