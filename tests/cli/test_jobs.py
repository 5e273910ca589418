"""`fencepost jobs` as a process: what it shows, what it asks, what it changes, and its exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from uuid import UUID

import pytest

from fencepost.domain.job import NewJob, Status
from fencepost.domain.outcome import Ending
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from fencepost.store.jobs import Jobs
from fencepost.store.queues import Queues
from fencepost.store.workers import WorkerStore
from tests.store.support import claim, ended, job

from .test_commands import fencepost

Story = Callable[[Jobs, WorkerStore, int], Awaitable[Any]]


def on(url: str, story: Story) -> Any:
    """Run *story* on the jobs of a database."""

    async def run() -> Any:
        database = Database(url, connections=3, lines=0)
        await database.open()
        hints = Hints(database)
        queues = Queues(database, hints)
        try:
            queue_id = await queues.ensure("default", 0)
            return await story(Jobs(database, queues, hints), WorkerStore(database, UUID(int=1)), queue_id)
        finally:
            await hints.close()
            await database.close()

    return asyncio.run(run())


def store(url: str, made: Iterable[NewJob], *, ending: tuple[Ending, Status] | None = None) -> list[UUID]:
    """Store jobs, and let them all end like that."""
    made = list(made)

    async def story(jobs: Jobs, workers: WorkerStore, queue_id: int) -> None:
        await jobs.enqueue(made)
        if ending is not None:
            leases = await claim(workers, queue_id, slots=len(made))
            assert len(leases) == len(made)
            await workers.settle(queue_id, [ended(lease, *ending) for lease in leases])

    on(url, story)
    return [one.id for one in made]


def statuses(url: str, ids: Iterable[UUID]) -> list[str]:
    async def story(jobs: Jobs, workers: WorkerStore, queue_id: int) -> list[str]:
        return [(await jobs.get(one)).status.value for one in ids]

    found: list[str] = on(url, story)
    return found


DEAD = (Ending.FAILED, Status.DEAD_LETTER)


@pytest.mark.slow
def test_a_list_shows_what_matches_newest_first(database_url: str) -> None:
    dead = store(database_url, [job(max_attempts=1, type="mail") for _ in range(3)], ending=DEAD)
    waiting = store(database_url, [job(type="other", tags=("blue", "import"))])
    shown = fencepost("jobs", "list", DATABASE_URL=database_url)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [str(one) for one in [*waiting, *reversed(dead)]]
    assert "pending     other default 0/3 due " in lines[0]
    assert lines[0].endswith(" [blue, import]")
    assert lines[1].endswith("dead_letter mail default 1/1 it broke")
    few = fencepost("jobs", "list", "--status", "dead_letter", "--limit", "2", DATABASE_URL=database_url)
    assert len(few.stdout.splitlines()) == 2
    assert "there are more; --limit shows them" in few.stderr
    tagged = fencepost("jobs", "list", "--tag", "blue", "--json", DATABASE_URL=database_url)
    record = json.loads(tagged.stdout)
    assert (record["id"], record["type"], record["tags"]) == (str(waiting[0]), "other", ["blue", "import"])
    named = fencepost("jobs", "list", str(dead[0]), str(dead[2]), "--type", "mail", DATABASE_URL=database_url)
    assert [line.split()[0] for line in named.stdout.splitlines()] == [str(dead[2]), str(dead[0])]
    assert fencepost("jobs", "list", "--since", "1h", DATABASE_URL=database_url).stdout == shown.stdout
    none = fencepost("jobs", "list", "--until", "1h", DATABASE_URL=database_url)
    assert (none.returncode, none.stdout, none.stderr) == (0, "", "no job fits\n")


def test_a_list_says_nothing_to_the_terminal(database_url: str) -> None:
    """An error may quote what somebody sent: a title for the window, another line, text from right to left."""
    [dead] = store(database_url, [job(max_attempts=1)])

    async def fail(jobs: Jobs, workers: WorkerStore, queue_id: int) -> None:
        [lease] = await claim(workers, queue_id)
        words = "\x1b]0;title\x07 \r\x9b2J \u202e and more\nsecond line"
        await workers.settle(queue_id, [ended(lease, *DEAD, error=words)])

    on(database_url, fail)
    shown = fencepost("jobs", "list", DATABASE_URL=database_url)
    assert shown.stdout == f"{dead} dead_letter work default 1/1 \ufffd]0;title\ufffd \ufffd\ufffd2J \ufffd and more\n"


def test_a_retry_puts_back_and_spreads(database_url: str) -> None:
    ids = store(database_url, [job(max_attempts=1) for _ in range(20)], ending=DEAD)
    done = fencepost("jobs", "retry", "--type", "work", "--spread", "1h", "--json", DATABASE_URL=database_url)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "action": "retry",
        "matched": 20,
        "changed": 20,
        "requested": 0,
        "skipped": 0,
    }
    assert set(statuses(database_url, ids)) == {"pending"}

    async def due(jobs: Jobs, workers: WorkerStore, queue_id: int) -> int:
        return len(await claim(workers, queue_id, slots=100))

    assert on(database_url, due) < 20


@pytest.mark.slow
def test_a_cancellation_and_a_deletion_ask_first(database_url: str) -> None:
    ids = store(database_url, [job(type="import") for _ in range(3)])
    refused = fencepost("jobs", "cancel", "--type", "import", DATABASE_URL=database_url)
    assert refused.returncode == 2
    assert "3 jobs match; add --yes to cancel them" in refused.stderr
    for answer, code, after in (("n", 1, "pending"), ("y", 0, "cancelled")):
        assert on_a_terminal(answer, "jobs", "cancel", "--type", "import", DATABASE_URL=database_url) == code
        assert set(statuses(database_url, ids)) == {after}
    done = fencepost("jobs", "delete", "--type", "import", "--yes", DATABASE_URL=database_url)
    assert (done.returncode, done.stdout) == (0, "")
    assert "deleted 3 jobs" in done.stderr
    nothing = fencepost("jobs", "delete", "--type", "import", DATABASE_URL=database_url)
    assert (nothing.returncode, "deleted 0 jobs" in nothing.stderr) == (0, True)


def on_a_terminal(answer: str, *words: str, **environment: str) -> int:
    """Run a command for somebody who can be asked; returns its exit code."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "fencepost", *words],
            env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environment},
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        os.write(ours, f"{answer}\n".encode())
        _, said = process.communicate(timeout=60)
        assert b"cancel 3 jobs? [y/N]" in said
        return process.returncode
    finally:
        os.close(ours)
        os.close(theirs)


def test_running_jobs_are_asked_to_stop(database_url: str) -> None:
    store(database_url, [job(), job()])

    async def story(jobs: Jobs, workers: WorkerStore, queue_id: int) -> None:
        [lease] = await claim(workers, queue_id)
        done = await asyncio.to_thread(
            fencepost, "jobs", "cancel", "--queue", "default", "--yes", DATABASE_URL=database_url
        )
        assert "cancelled 1 jobs\nasked 1 running jobs to stop\n" in done.stderr
        assert (await jobs.get(lease.id)).cancel_requested_at is not None

    on(database_url, story)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("retry",), "give a condition to retry only some jobs"),
        (("delete", "--yes"), "give a condition to delete only some jobs"),
        (("retry", "--status", "pending"), "status: only dead_letter jobs can be retried, not pending"),
        (("delete", "--status", "processing"), "can be deleted, not processing"),
        (("cancel", "17"), "'17' is no id of a job"),
        (("list", "--since", "yesterday"), "--since: must be"),
        (("retry", "--all", "--spread", "soon"), "--spread: "),
    ],
)
def test_what_cannot_be_meant_is_refused(database_url: str, words: tuple[str, ...], said: str) -> None:
    ended = fencepost("jobs", *words, DATABASE_URL=database_url)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_everything_can_be_meant(database_url: str) -> None:
    ids = store(database_url, [job(max_attempts=1) for _ in range(2)], ending=DEAD)
    assert "put 2 jobs back" in fencepost("jobs", "retry", "--all", DATABASE_URL=database_url).stderr
    assert set(statuses(database_url, ids)) == {"pending"}


def test_a_database_without_the_schema_is_not_touched(empty_url: str) -> None:
    ended = fencepost("jobs", "list", DATABASE_URL=empty_url)
    assert ended.returncode == 4
    assert "fencepost migrate" in ended.stderr
