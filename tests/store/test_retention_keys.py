"""An idempotency key answers for as long as is said, however jobs are removed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from fencepost.domain.job import NewJob, Status
from fencepost.errors import KeyConflict
from fencepost.store.database import Database
from fencepost.store.enqueueing import Answer
from fencepost.store.jobs import Jobs
from fencepost.store.retention import FIRST_ID, LAST_ID, Keep, Retention
from fencepost.store.workers import WorkerStore

from .history import History, days_ago, id_at, old_job
from .support import Connection, claim, completed, job, waits_for_a_lock

pytestmark = pytest.mark.anyio

HOUR = 3600.0
COMPLETED_1H = {"completed": HOUR}


@pytest.fixture
async def history(sql: Connection, jobs: Jobs) -> AsyncIterator[History]:
    history = History(sql)
    await history.begin()
    yield history
    await history.whole()


async def remove(database: Database, keep: Keep) -> tuple[int, int]:
    """Everything that is past its time; returns how many jobs and keys that was."""
    retention = Retention(database, keep)
    done = await retention.remove_jobs(after=FIRST_ID, before=LAST_ID, rows=1000)
    keys = done.keys
    for span in await retention.key_spans():
        keys += (await retention.remove_keys(after=span.after, before=span.high, rows=1000)).keys
    return done.jobs, keys


async def replays(jobs: Jobs, key: str) -> UUID:
    """Hand in the same request again, and have it answered with the job that it made."""
    [answer] = await jobs.enqueue([job(type="work", idempotency_key=key)])
    assert answer.replayed
    return answer.id


async def is_free(jobs: Jobs, key: str) -> None:
    [answer] = await jobs.enqueue([job(idempotency_key=key)])
    assert not answer.replayed
    await jobs.cancel(answer.id)


async def is_refused(jobs: Jobs, key: str, made: UUID) -> None:
    """The key is held, by a job that is gone."""
    with pytest.raises(KeyConflict, match=f"{key}.*already made job {made}, which has ended and was removed since"):
        await jobs.enqueue([job(idempotency_key=key)])


async def test_a_key_goes_with_its_job(database: Database, jobs: Jobs, history: History) -> None:
    [kept] = await history.ended(days=0.5, ended=0.01, key="kept")
    await history.ended(days=0.5, key="gone")
    assert await remove(database, Keep(by_status=COMPLETED_1H)) == (1, 1)
    assert await replays(jobs, "kept") == kept
    await is_free(jobs, "gone")


async def test_a_key_that_is_kept_for_longer_than_its_job_refuses(
    database: Database, jobs: Jobs, history: History
) -> None:
    """Window 24 h, jobs kept for 1 h: at 2 h the job is gone, and a repeat makes no second one."""
    keep = Keep(by_status=COMPLETED_1H, key_seconds=24 * HOUR)
    [made] = await history.ended(days=2 / 24, key="k")
    assert await remove(database, keep) == (1, 0)
    await is_refused(jobs, "k", made)
    with pytest.raises(KeyConflict, match="was removed since"):
        await jobs.enqueue([job(), job(idempotency_key="k")])
    assert (await jobs.audit())["jobs"] == 0, "nothing of that request is stored"


async def test_and_is_free_when_its_own_time_is_over(
    database: Database, jobs: Jobs, history: History, sql: Connection
) -> None:
    keep = Keep(by_status=COMPLETED_1H, key_seconds=24 * HOUR)
    await history.ended(days=2 / 24, key="k")
    await remove(database, keep)
    await sql.execute(
        "update fencepost.idempotency_keys set created_at = now() - interval '24h', job_id = $1", id_at(days_ago(1.01))
    )
    assert await remove(database, keep) == (0, 1)
    await is_free(jobs, "k")


async def test_a_key_with_a_shorter_time_is_freed_while_its_job_is_there(
    database: Database, jobs: Jobs, history: History
) -> None:
    [old] = await history.ended(days=2, key="old")
    [young] = await history.ended(days=0.9, key="young")
    assert await remove(database, Keep(by_status={"completed": 7 * 24 * HOUR}, key_seconds=24 * HOUR)) == (0, 1)
    assert await history.left([old, young]) == {old, young}
    assert await replays(jobs, "young") == young
    await is_free(jobs, "old")


async def test_a_job_that_has_not_ended_holds_its_key(
    database: Database, jobs: Jobs, history: History, worker_store: WorkerStore, sql: Connection
) -> None:
    """Window 1 h, the job delayed by 3 h: a repeat at 2 h finds it."""
    keep = Keep(by_status={"completed": 7 * 24 * HOUR}, key_seconds=HOUR)
    running = old_job(2 / 24, idempotency_key="running")
    await jobs.enqueue([running])
    [lease] = await claim(worker_store, history.queue_id)
    waiting = old_job(2 / 24, idempotency_key="waiting", delay_seconds=3 * HOUR)
    await jobs.enqueue([waiting])
    await sql.execute("update fencepost.idempotency_keys set created_at = now() - interval '2h'")
    assert await remove(database, keep) == (0, 0)
    assert await replays(jobs, "running") == running.id
    with pytest.raises(KeyConflict, match=str(waiting.id)):
        await jobs.enqueue([job(idempotency_key="waiting")])
    await worker_store.settle(history.queue_id, [completed(lease)])
    assert await remove(database, keep) == (0, 1)
    await is_free(jobs, "running")


async def test_a_key_for_ever(database: Database, jobs: Jobs, history: History, sql: Connection) -> None:
    from fencepost.settings import Settings

    keep = Keep.of(Settings(retain_completed_seconds=HOUR, idempotency_retention_seconds=0))
    [made] = await history.ended(days=400, key="k")
    assert await remove(database, keep) == (1, 0)
    await is_refused(jobs, "k", made)


@pytest.mark.parametrize("key_seconds", [None, HOUR])
@pytest.mark.parametrize("days", [-3000, 3000])
async def test_keys_of_clients_with_wrong_clocks(
    database: Database, jobs: Jobs, history: History, sql: Connection, days: float, key_seconds: float | None
) -> None:
    """Their jobs' ids are from another time; what counts is the database's clock."""
    made = NewJob(id=id_at(days_ago(days)), type="work", max_attempts=3, idempotency_key="k")
    await jobs.enqueue([made])
    keep = Keep(by_status={"cancelled": HOUR}, key_seconds=key_seconds)
    await jobs.cancel(made.id)
    assert await remove(database, keep) == (0, 0)
    assert await jobs.get(made.id)
    with pytest.raises(KeyConflict):
        await jobs.enqueue([job(idempotency_key="k", priority=1)])
    await sql.execute("update fencepost.idempotency_keys set created_at = now() - interval '61 min'")
    await sql.execute("update fencepost.finished set finished_at = now() - interval '61 min'")
    assert await remove(database, keep) == (1, 1)
    await is_free(jobs, "k")


async def test_keys_of_jobs_that_went_with_their_range(database: Database, jobs: Jobs, history: History) -> None:
    await history.range(days=20)
    await history.ended(days=19, count=5, key="gone")
    [kept] = await history.ended("failed", days=18, key="kept")
    retention = Retention(database, Keep(by_status={"completed": HOUR}))
    span = next(span for span in (await retention.spans())[0] if span.starts_at)
    await retention.watch(span)
    assert (await retention.survey(span, rows=100)).complete
    assert await retention.drop(span) == (5, 1)
    assert await remove(database, Keep(by_status={"completed": HOUR})) == (0, 5)
    assert await replays(jobs, "kept") == kept
    await is_free(jobs, "gone")


async def test_a_job_that_was_deleted_by_hand_does_not_free_its_key_unseen(
    database: Database, jobs: Jobs, history: History, sql: Connection
) -> None:
    [made] = await history.ended(days=0.1, key="k")
    for table in ("jobs", "finished"):
        await sql.execute(f"delete from fencepost.{table} where id = $1", made)
    await is_refused(jobs, "k", made)


async def test_a_request_that_meets_a_key_being_removed_makes_a_new_job(
    database: Database, jobs: Jobs, history: History, sql: Connection
) -> None:
    """
    prune_jobs                              a request with the key
    deletes job and key
                                            waits for the key
    commits
                                            stores its job
    """
    await history.ended(days=1, key="k")
    transaction = database.transaction()
    session = await transaction.__aenter__()
    removing = Retention(session, Keep(by_status=COMPLETED_1H))  # type: ignore[arg-type]
    assert (await removing.remove_jobs(after=FIRST_ID, before=LAST_ID, rows=10)).keys == 1
    asking = asyncio.ensure_future(jobs.enqueue([job(idempotency_key="k")]))
    await waits_for_a_lock(sql)
    await transaction.__aexit__(None, None, None)
    [answer] = await asking
    assert not answer.replayed


VANISHING = """
create function vanish() returns trigger language plpgsql as $$
begin
    delete from fencepost.idempotency_keys;
    return null;
end
$$;
create trigger vanish after insert on fencepost.pending for each statement execute function vanish()
"""


@pytest.mark.parametrize("bulk", [False, True])
async def test_a_key_that_vanishes_between_the_insert_and_the_look_is_taken(
    jobs: Jobs, sql: Connection, history: History, monkeypatch: pytest.MonkeyPatch, bulk: bool
) -> None:
    """
    a request with the key                  prune_jobs
    finds the key taken: stores all
    but this job
                                            deletes job and key; commits
    looks what the key has made: nothing
    undoes all; begins again
    """
    await history.ended(days=1, key="k")
    # The deletion is in the request's own transaction, which nobody but it can time so well.
    await sql.execute(VANISHING)
    send = jobs._send
    gone: list[int] = []

    async def send_then_remove(*arguments: Any, **named: Any) -> Answer:
        answer = await send(*arguments, **named)
        assert answer is not None
        gone.append(sum(one.key_gone for one in answer.differing))
        assert (await jobs.audit())["pending"] == 0, "all is undone"
        await sql.execute("drop trigger vanish on fencepost.pending")
        await sql.execute("delete from fencepost.idempotency_keys")
        monkeypatch.setattr(jobs, "_send", send)
        return answer

    monkeypatch.setattr(jobs, "_send", send_then_remove)
    made = [job(idempotency_key="k"), *([job(), job(idempotency_key="another")] if bulk else [])]
    answers = await jobs.enqueue(made)
    assert gone == [1]
    assert [(answer.id, answer.replayed) for answer in answers] == [(one.id, False) for one in made]
    for one in made:
        assert (await jobs.get(one.id)).status is Status.PENDING


async def test_a_key_that_vanishes_again_and_again_is_told(jobs: Jobs, sql: Connection, history: History) -> None:
    await history.ended(days=1, key="k")
    await sql.execute(VANISHING)
    with pytest.raises(KeyConflict, match="'k' is being removed right now; try again"):
        await jobs.enqueue([job(), job(idempotency_key="k")])
    assert (await jobs.audit())["pending"] == 0
    # By itself it is asked for in a way that leaves the key removed here, so it is free then.
    [alone] = await jobs.enqueue([job(idempotency_key="k")])
    assert alone.effect == "created"


async def test_a_key_is_not_removed_from_a_job_that_has_taken_it_since(
    database: Database, jobs: Jobs, history: History, sql: Connection
) -> None:
    """It was freed, and another job holds it: removing the first one leaves it alone."""
    [first] = await history.ended(days=2, key="k")
    await sql.execute("delete from fencepost.idempotency_keys")
    [second] = await jobs.enqueue([job(idempotency_key="k")])
    assert await remove(database, Keep(by_status=COMPLETED_1H)) == (1, 0)
    assert await history.left([first]) == set()
    assert await replays(jobs, "k") == second.id
