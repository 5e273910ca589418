"""The two lines of every attempt, and what they carry."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial
from typing import Any

import msgspec
import pytest

from fencepost.domain.context import Context
from fencepost.domain.job import Status
from fencepost.errors import DatabaseUnavailable, Permanent
from fencepost.store.workers import WorkerStore
from fencepost.worker.journal import Journal
from tests.patience import limit

from .support import Bench, fields_of, make_lease, records, wait_until

pytestmark = pytest.mark.anyio


async def test_every_attempt_logs_its_start_and_its_finish(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fencepost.worker")

    @bench.job("work", payload=str)
    async def work(context: Context, payload: str) -> None:
        if payload == "permanent":
            raise Permanent("never")
        if payload == "flaky" and context.attempt == 1:
            raise OSError("not yet")

    succeeds, flaky, permanent = [
        await bench.enqueue("work", payload, request_id=f"request-{payload}")
        for payload in ("succeeds", "flaky", "permanent")
    ]
    await bench.start(backoff_base_seconds=0.08, backoff_max_seconds=0.08)
    await bench.finished(succeeds, flaky, permanent)
    await wait_until(lambda: len(records(caplog, "job finished")) == 4, 2)

    def lines(message: str, job_id: Any) -> list[dict[str, Any]]:
        found = [fields_of(record) for record in records(caplog, message)]
        return [fields for fields in found if fields["job_id"] == str(job_id)]

    for job_id, attempts, name in ((succeeds, 1, "succeeds"), (flaky, 2, "flaky"), (permanent, 1, "permanent")):
        starts = lines("job started", job_id)
        assert starts == [
            {"job_id": str(job_id), "job_type": "work", "attempt": number, "request_id": f"request-{name}"}
            for number in range(1, attempts + 1)
        ]
    (line,) = lines("job finished", succeeds)
    assert 0 <= line.pop("duration_ms") < 1000 * limit(1)
    assert line == {
        "job_id": str(succeeds),
        "job_type": "work",
        "attempt": 1,
        "outcome": "succeeded",
        "status": "completed",
        "request_id": "request-succeeds",
    }
    failed, then = lines("job finished", flaky)
    assert (failed["outcome"], failed["status"], failed["attempt"]) == ("failed", "pending", 1)
    assert (failed["error"], failed["error_type"]) == ("not yet", "OSError")
    assert "not yet" in failed["traceback"]
    assert 40 <= failed["retry_delay_ms"] <= 80
    assert (then["outcome"], then["attempt"]) == ("succeeded", 2)
    assert "retry_delay_ms" not in then
    (line,) = lines("job finished", permanent)
    assert (line["outcome"], line["status"], line["error"]) == ("permanent", "failed", "never")
    assert "retry_delay_ms" not in line
    levels = {fields_of(one)["outcome"]: one.levelno for one in records(caplog, "job finished")}
    assert levels == {"succeeded": logging.INFO, "failed": logging.WARNING, "permanent": logging.WARNING}


async def test_a_refused_payload_has_its_line_too(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fencepost.worker")

    @bench.job("work", payload=int)
    async def work(context: Context, payload: int) -> None:
        pass

    job_id = await bench.enqueue("work", "not a number")
    await bench.start()
    assert (await bench.ended(job_id)).status is Status.FAILED
    await wait_until(lambda: records(caplog, "job finished"), 2)
    (line,) = [fields_of(record) for record in records(caplog, "job finished")]
    assert (line["outcome"], line["error_type"]) == ("permanent", "InvalidPayload")
    assert line["duration_ms"] < 1000 * limit(1)


async def test_an_outage_is_said_once_a_try_and_not_as_a_fault(
    bench: Bench, caplog: pytest.LogCaptureFixture, proxy: Any
) -> None:
    caplog.set_level(logging.WARNING, "fencepost")
    worker = await bench.start(dsn=proxy.url, poll_interval_seconds=0.02)
    await wait_until(lambda: worker._listener.is_connected, 3)
    proxy.cut()
    await wait_until(lambda: records(caplog, "can't claim jobs"), 3)
    await wait_until(lambda: records(caplog, "not listening for hints; polling goes on"), 3)
    assert fields_of(records(caplog, "can't claim jobs")[0])["reason"]
    ours = [record for record in caplog.records if record.name.startswith("fencepost")]
    assert [record for record in ours if record.levelno >= logging.ERROR or record.exc_info] == []


async def test_the_log_names_who_does_not_answer_and_the_probe_does_not(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/readyz tells strangers what a pulse was told."""
    caplog.set_level(logging.WARNING, "fencepost")
    running, end = asyncio.Event(), asyncio.Event()

    @bench.job("work")
    async def work(context: Context, payload: Any) -> None:
        running.set()
        await end.wait()

    await bench.enqueue("work")
    worker = await bench.start(lease_seconds=3.0, lease_extension=True, poll_interval_seconds=0.02)
    await asyncio.wait_for(running.wait(), 5)

    async def gone(*_: object, **__: object) -> None:
        raise DatabaseUnavailable("the database is not available: Connection refused", place="db.internal:5432")

    with monkeypatch.context() as outage:
        for name in ("due_queues", "claim", "turn", "extend", "settle"):
            outage.setattr(WorkerStore, name, gone)
        await bench.enqueue("work")
        vitals = worker.vitals
        # Leases first: when the job has ended none is left to renew, and what went wrong is forgotten.
        for line, pulse in [
            ("leases can't be renewed yet", vitals.leases),
            ("can't claim jobs", vitals.dispatcher),
            ("outcomes can't be written yet", vitals.settler),
        ]:
            await wait_until(partial(records, caplog, line), 5)
            reason = fields_of(records(caplog, line)[0])["reason"]
            assert reason == "the database is not available: Connection refused (db.internal:5432)", line
            assert pulse.error == "the database is not available: Connection refused", line
            end.set()


async def test_successes_can_be_left_out_of_the_log(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fencepost.worker")

    @bench.job("work", payload=str)
    async def work(context: Context, payload: str) -> None:
        if payload == "fails":
            raise Permanent("never")

    succeeds, fails = await bench.enqueue("work", "succeeds"), await bench.enqueue("work", "fails")
    await bench.start(log_jobs=0.0)
    await bench.finished(succeeds, fails)
    await wait_until(lambda: records(caplog, "job finished"), 2)
    assert records(caplog, "job started") == []
    assert [fields_of(one)["job_id"] for one in records(caplog, "job finished")] == [str(fails)]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_a_share_of_the_jobs_is_logged_with_all_their_attempts(share: float, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fencepost.worker")
    leases = [make_lease() for _ in range(2000)]
    for attempt in (1, 2):
        for lease in leases:
            # Another process has another journal.
            Journal(share=share).started(msgspec.structs.replace(lease, attempt=attempt))
    lines = Counter(fields_of(record)["job_id"] for record in records(caplog, "job started"))
    assert set(lines.values()) <= {2}, "all of a job's attempts, or none"
    assert abs(len(lines) / len(leases) - share) < 0.05
