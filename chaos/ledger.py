"""
What really happened, written outside of the database under test: append-only files, one JSON array a line.

Two kinds of file, and what each record needs:

- `submissions.log`, by the runner. An acknowledgement counts once it is on disk: it is what
  "not one acknowledged job was lost" is held against. So it is fsynced first, many at a time.
- `attempts-<pid>.log`, by each process that runs jobs. Those processes are killed, the machine
  isn't: a write that has returned is in the kernel's hands and survives `kill -9`. So each record
  is one write to a file opened with O_APPEND, made before what it tells of; the runner fsyncs at
  the end. A line that a kill cut in two is passed over when it is read.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

SUBMISSIONS = "submissions.log"


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A line of a ledger; its tag comes first."""


class Intent(Record, frozen=True, tag="intent"):
    """Something is about to be handed in under this key; written before it is sent."""

    key: str
    script: str
    door: str
    """How: http, bulk, library, sql, rollback or probe."""
    at: float
    """Wall clock, like all times here that aren't called monotonic."""
    delay: float = 0.0
    unique: str | None = None


class Ack(Record, frozen=True, tag="ack"):
    """The answer that this key's job is stored. One key may be acknowledged more than once."""

    key: str
    job: str
    effect: str
    at: float


class RolledBack(Record, frozen=True, tag="rolled_back"):
    """The transaction that this key was handed in with was rolled back."""

    key: str


class CancelAck(Record, frozen=True, tag="cancel"):
    """The answer to a cancellation: `cancelled`, or `processing` when the job was asked to stop."""

    job: str
    status: str
    at: float


class Start(Record, frozen=True, tag="start"):
    """A handler has been called."""

    job: str
    token: int
    attempt: int
    script: str
    pid: int
    at: float
    monotonic: float
    parent: int = 0


class End(Record, frozen=True, tag="end"):
    """A handler is about to end its attempt in this way: ok, fail, permanent, snooze, cancel or die."""

    job: str
    token: int
    how: str
    pid: int
    at: float
    monotonic: float


_TAIL_BYTES = 32_768

Submission = Intent | Ack | RolledBack | CancelAck
AttemptRecord = Start | End
T = TypeVar("T")


class AttemptLedger:
    """Writes starts and ends of attempts from any thread of any process, forked ones too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = -1
        self._pid = 0
        self._guard = threading.Lock()

    def write(self, record: AttemptRecord) -> None:
        """Append one record; once this has returned it survives whatever happens to this process."""
        line = msgspec.json.encode(record) + b"\n"
        if os.write(self._descriptor(), line) != len(line):
            raise OSError("the ledger could not be written")

    def _descriptor(self) -> int:
        with self._guard:
            if self._pid != os.getpid():
                self._pid = os.getpid()
                path = self._folder / f"attempts-{self._pid}-{time.time_ns()}.log"
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            return self._file


class SubmissionLedger:
    """The runner's own file. For one event loop."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / SUBMISSIONS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._waiting: list[asyncio.Future[None]] = []
        self._syncing: asyncio.Task[None] | None = None

    def note(self, *records: Submission) -> None:
        """Append without waiting: the runner itself isn't killed."""
        text = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        while text:
            text = text[os.write(self._file, text) :]

    async def keep(self, *records: Submission) -> None:
        """Append, and return once it is on disk. Callers at the same time share the fsync."""
        self.note(*records)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        if self._syncing is None or self._syncing.done():
            self._syncing = asyncio.create_task(self._sync())
        await done

    async def _sync(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            await asyncio.to_thread(os.fsync, self._file)
            for done in waiting:
                if not done.done():
                    done.set_result(None)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_submissions(folder: Path) -> list[Submission]:
    """All that was handed in, in the order of writing."""
    return list(_read(folder / SUBMISSIONS, msgspec.json.Decoder(Submission)))


def read_attempts(folder: Path) -> list[AttemptRecord]:
    """All starts and ends of all processes."""
    decoder = msgspec.json.Decoder(AttemptRecord)
    return [record for path in sorted(folder.glob("attempts-*.log")) for record in _read(path, decoder)]


def under_way(folder: Path, pid: int, script: str) -> int:
    """How many first attempts with this script a process has started, as its ledger ends, and not ended."""
    decoder = msgspec.json.Decoder(AttemptRecord)
    going: set[str] = set()
    for path in folder.glob(f"attempts-{pid}-*.log"):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            # The first line may be half a one, and the last not whole yet.
            lines = file.read().split(b"\n")[1 if file.tell() > _TAIL_BYTES else 0 : -1]
        for record in map(decoder.decode, lines):
            if isinstance(record, End):
                going.discard(record.job)
            elif record.script == script and record.token == 1:
                going.add(record.job)
    return len(going)


def sync_all(folder: Path) -> None:
    """Have every file of the ledger on disk."""
    for path in folder.glob("*.log"):
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _read(path: Path, decoder: msgspec.json.Decoder[T]) -> Iterator[T]:
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield decoder.decode(line)
