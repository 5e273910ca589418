"""
Handlers that end what is around them, and cancellations that meet what they were not meant for.

B34, B35, B37, B38, B40. What a handler may raise is in tests/worker/test_worker_misbehaviour.py, threads that outlive
their timeout are in test_worker_threads.py, stops in test_worker_shutdown.py, races in test_worker_cancellation.py
and tests/store/test_races.py.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fencepost.domain.context import Context
from fencepost.domain.job import Status
from fencepost.errors import WrongStatus
from tests.processes.support import run
from tests.service.support import Service
from tests.service.support import wait_until as wait
from tests.worker.support import Bench, wait_until

LAST_WORDS = {
    "exit(0)": "raise SystemExit(0)",
    "exit": "raise SystemExit",
    "exit with words": "raise SystemExit('no licence')",
}


@pytest.mark.slow
@pytest.mark.parametrize("words", LAST_WORDS)
def test_a_module_that_exits_while_it_is_imported_is_a_failed_start(tmp_path: Path, words: str) -> None:
    (tmp_path / "exits.py").write_text(f"from fencepost import Fencepost\napp = Fencepost()\n{LAST_WORDS[words]}\n")
    for command in ("serve", "worker", "migrate"):
        ended = run(command, "exits:app", PYTHONPATH=str(tmp_path), DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
        assert ended.returncode == 2, (command, ended.stderr)
        assert "exits:app can't be imported: the module ends the program" in ended.stderr


POISON = """
import asyncio
from fencepost import Fencepost

app = Fencepost()

@app.job
async def poison() -> None:
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()
    await asyncio.sleep(3600)

@app.job
async def healthy() -> str:
    return "done"
"""


@pytest.mark.slow
def test_a_handler_that_cancels_all_tasks_of_its_worker_uses_up_its_attempts(tmp_path: Path, database_url: str) -> None:
    """Whether the process goes on or is started again: the job has had its chances, and the others run."""
    (tmp_path / "poisoned.py").write_text(POISON)
    environment = {
        "DATABASE_URL": database_url, "PYTHONPATH": str(tmp_path), "BACKOFF_BASE": "50ms", "RECOVERY_INTERVAL": "200ms",
        "LEASE_DURATION": "2s", "LEASE_EXTENSION": "true", "SHUTDOWN_TIMEOUT": "1s", "JOB_TIMEOUT": "5s",
    }  # fmt: skip
    with psycopg.connect(database_url, autocommit=True) as connection:
        poison, *healthy = (
            connection.execute(f"select fencepost.enqueue('{name}', max_attempts => {attempts})").fetchone()
            for name, attempts in [("poison", 2), *[("healthy", 20)] * 10]
        )

        def ended() -> int:
            row = connection.execute("select count(*) from fencepost.finished").fetchone()
            return int(row[0]) if row else 0

        for _ in range(8):
            with Service("poisoned:app", **environment) as service:
                wait_until_either(lambda: ended() == 11, service)
            if ended() == 11:
                break
        rows = connection.execute("select id, status, attempts from fencepost.finished").fetchall()
    assert poison is not None
    ends = {row[0]: row[1:] for row in rows}
    assert ends.pop(poison[0]) == ("dead_letter", 2)
    assert [status for status, _ in ends.values()] == ["completed"] * len(healthy)


def wait_until_either(condition: Any, service: Service) -> None:
    """Until *condition* holds or the service has ended by itself."""
    wait(lambda: condition() or service.process.poll() is not None, 30, "the jobs to end, or the service")


@pytest.mark.anyio
async def test_only_what_was_meant_is_cancelled_and_the_answer_is_true(bench: Bench) -> None:
    """One of three neighbours in every state that there is; the others go on as if nothing had been."""
    go = asyncio.Event()

    @bench.job("work")
    async def work(context: Context, payload: Any) -> str:
        if payload == "fails":
            raise ValueError("on purpose")
        if payload == "waits":
            await go.wait()
        return "done"

    later = {"run_at": datetime.now(UTC) + timedelta(hours=1)}
    scheduled = await bench.enqueue_many("work", [None] * 3, **later)
    retrying = await bench.enqueue_many("work", ["fails"] * 3)
    dead = await bench.enqueue_many("work", ["fails"] * 3, max_attempts=1)
    running = await bench.enqueue_many("work", ["waits"] * 3)
    done = await bench.enqueue_many("work", [None] * 3)
    worker = await bench.start(workers=20, backoff_base_seconds=600.0, backoff_max_seconds=600.0)
    await wait_until(lambda: worker._listener.is_connected, 3)
    await bench.finished(*dead, *done)
    for job_id in retrying:
        await bench.reached_after(job_id, 1)
    for job_id in running:
        await bench.reached(job_id, Status.PROCESSING)
    for middle, answer in (
        (scheduled[1], Status.CANCELLED),
        (retrying[1], Status.CANCELLED),
        (running[1], Status.PROCESSING),
    ):
        assert await bench.jobs.cancel(middle) is answer
    for ended, word in ((dead[1], "dead_letter"), (done[1], "completed"), (scheduled[1], "cancelled")):
        with pytest.raises(WrongStatus, match=f"is {word} already, so there is nothing to cancel"):
            await bench.jobs.cancel(ended)
    assert (await bench.ended(running[1])).status is Status.CANCELLED
    go.set()
    await bench.finished(running[0], running[2])
    statuses = [[str((await bench.get(job_id)).status) for job_id in ids] for ids in (scheduled, retrying, running)]
    assert statuses == [
        ["pending", "cancelled", "pending"],
        ["pending", "cancelled", "pending"],
        ["completed", "cancelled", "completed"],
    ]
    assert {str((await bench.get(job_id)).status) for job_id in dead} == {"dead_letter"}
    # None of them comes back: not even with the sweep, or once its retry would be due.
    await bench.sql("update fencepost.pending set run_at = now()")
    await bench.start(recovery_interval_seconds=0.05)
    await wait_until(lambda: bench._count_finished([*scheduled, *dead, *done, *running], 12), 10)
    assert (await bench.get(retrying[1])).status is Status.CANCELLED
    await bench.audit()
