"""The ledger: what has been written is there, whatever has become of who wrote it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from chaos.ledger import (
    Ack,
    AttemptLedger,
    End,
    Intent,
    Start,
    SubmissionLedger,
    read_attempts,
    read_submissions,
    under_way,
)

START = Start("job", 1, 1, "quick", 5, 10.0, 1.0, 4)
END = End("job", 1, "ok", 5, 11.0, 2.0)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    attempts = AttemptLedger(tmp_path)
    attempts.write(START)
    attempts.write(END)
    assert read_attempts(tmp_path) == [START, END]


def test_a_process_that_kills_itself_leaves_all_that_it_wrote(tmp_path: Path) -> None:
    attempts = AttemptLedger(tmp_path)
    attempts.write(START)
    child = os.fork()
    if child == 0:
        attempts.write(END)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert sorted(path.name.split("-")[1] for path in tmp_path.glob("attempts-*")) == sorted(
        map(str, (os.getpid(), child))
    ), "a process that was forked has a file of its own"
    assert sorted(map(str, read_attempts(tmp_path))) == sorted(map(str, [START, END]))


def test_a_line_that_a_kill_cut_in_two_is_passed_over(tmp_path: Path) -> None:
    AttemptLedger(tmp_path).write(START)
    (path,) = tmp_path.glob("attempts-*")
    with path.open("ab") as file:
        file.write(b'["start","job",2')
    assert read_attempts(tmp_path) == [START]


def test_what_a_process_is_at_is_read_from_the_end_of_its_ledger(tmp_path: Path) -> None:
    attempts = AttemptLedger(tmp_path)
    for number in range(400):
        attempts.write(Start(f"job {number}", 1, 1, "linger", os.getpid(), 10.0, 1.0, 4))
        attempts.write(End(f"job {number}", 1, "ok", os.getpid(), 11.0, 2.0))
    assert under_way(tmp_path, os.getpid(), "linger") == 0
    attempts.write(START)
    attempts.write(Start("again", 2, 2, "linger", os.getpid(), 10.0, 1.0, 4))
    attempts.write(Start("going", 1, 1, "linger", os.getpid(), 10.0, 1.0, 4))
    assert under_way(tmp_path, os.getpid(), "linger") == 1
    assert under_way(tmp_path, os.getpid() + 1, "linger") == 0


async def test_an_acknowledgement_counts_once_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submissions = SubmissionLedger(tmp_path)
    synced: list[int] = []
    sync = os.fsync

    def counting(file: int) -> None:
        synced.append(len(read_submissions(tmp_path)))
        sync(file)

    monkeypatch.setattr(os, "fsync", counting)
    acks = [Ack(f"key {number}", "job", "created", 1.0) for number in range(50)]
    submissions.note(Intent("key 0", "quick", "http", 0.5))
    await asyncio.gather(*(submissions.keep(ack) for ack in acks))
    submissions.close()
    assert synced[-1] == 51, "all were written before the last sync"
    assert len(synced) < 10, "those at the same time share it"
    assert sorted(map(str, read_submissions(tmp_path)[1:])) == sorted(map(str, acks))
