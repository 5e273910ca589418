"""Whatever a handler returns: its work is done, so the job is completed and never runs again."""

from __future__ import annotations

import datetime
import decimal
import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fencepost.domain.context import Context
from fencepost.domain.job import Status

from .support import Bench, records, wait_until

pytestmark = pytest.mark.anyio

RECURSIVE: list[Any] = []
RECURSIVE.append(RECURSIVE)
RECURSIVE_AND_MENDED: list[Any] = ["\ud800"]
RECURSIVE_AND_MENDED.append(RECURSIVE_AND_MENDED)


class Hostile(dict[str, Any]):
    """Can't be walked through while it is being mended."""

    def items(self) -> Any:
        raise RuntimeError("hands off")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


RESULTS: dict[str, tuple[Any, Any]] = {
    # name → what the handler returns, and what is stored (... when nothing is, with a warning)
    "nothing": (None, None),
    "zero": (0, 0),
    "empty": ("", ""),
    "set": ({7}, [7]),
    "bytes": (b"\xff\x00", "/wA="),
    "decimal": (decimal.Decimal("1.10"), "1.10"),
    "datetime": (datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), "2026-01-02T00:00:00Z"),
    "infinity": ({"score": float("inf")}, {"score": None}),
    "nan": ([float("nan")], [None]),
    "huge integer": (10**200, 10**200),
    "integer beyond digits": (10**5000, ...),
    "half a pair": ({"a\udc00": ["\ud83d", "ok"]}, {"a\ufffd": ["\ufffd", "ok"]}),
    "nul": ({"k\x00": "v\x00v"}, {"k\ufffd": "v\ufffdv"}),
    "backslash": ("\\u0000", "\\u0000"),
    "object": (object(), ...),
    "exception": (Unspeakable(), ...),
    "class": (int, ...),
    "function": (print, ...),
    "recursive": (RECURSIVE, ...),
    "recursive and to be mended": (RECURSIVE_AND_MENDED, ...),
    "object after a half pair": (["\ud800", object()], ...),
    "hostile after a half pair": (["\ud800", Hostile(a=1)], ...),
    "tuple keys": ({(1, 2): 3}, ...),
    "too large": ("x" * 5000, ...),
    "deep": (msgspec.json.decode(b"[" * 900 + b"]" * 900), msgspec.json.decode(b"[" * 900 + b"]" * 900)),
    # Only the database can refuse these: they are passed on as they are.
    "raw and broken": (msgspec.Raw(b"{broken"), ...),
    "raw and not json": (msgspec.Raw(b'{"x": NaN}'), ...),
    "raw and half a pair": (msgspec.Raw(b'"\\ud800"'), ...),
    "raw and not utf-8": (msgspec.Raw(b'"\xff"'), ...),
}


async def test_every_result_ends_in_a_completed_job(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "fencepost")
    calls: list[str] = []

    @bench.job("give", payload=str)
    async def give(context: Context, payload: str) -> Any:
        calls.append(payload)
        return RESULTS[payload][0]

    @bench.job("give-in-thread", payload=str)
    def give_in_thread(context: Context, payload: str) -> Any:
        calls.append(payload)
        return RESULTS[payload][0]

    ids = await bench.enqueue_many("give", list(RESULTS)) + await bench.enqueue_many("give-in-thread", list(RESULTS))
    await bench.start(workers=16, max_result_bytes=4096)
    for name, job in zip(list(RESULTS) * 2, await bench.finished(*ids), strict=True):
        assert (job.status, job.attempts) == (Status.COMPLETED, 1), name
        _, stored = RESULTS[name]
        if stored is ... or stored is None:
            assert job.result is None, name
        else:
            assert job.result is not None, name
            assert msgspec.json.decode(job.result) == stored, name
    assert sorted(calls) == sorted([*RESULTS, *RESULTS])
    dropped = {
        str(job_id)
        for name, job_id in zip(list(RESULTS) * 2, ids, strict=True)
        if RESULTS[name][1] is ... and "raw" not in name
    }

    def warned() -> set[str]:
        return {vars(one)["job_id"] for one in records(caplog, "result not stored; the job counts as completed")}

    await wait_until(lambda: warned() == dropped, 1)
    refused = {str(job_id) for name, job_id in zip(list(RESULTS) * 2, ids, strict=True) if "raw" in name}
    assert {vars(one)["job_id"] for one in records(caplog, "an outcome was refused; writing it bare")} == refused


async def test_one_result_that_postgresql_refuses_spares_the_batch_it_travels_in(bench: Bench) -> None:
    @bench.job("give", payload=int)
    async def give(context: Context, payload: int) -> Any:
        return msgspec.Raw(b"{broken") if payload == 25 else payload

    worker = await bench.start(workers=50)
    batches: list[int] = []

    def counting(write: Callable[..., Any]) -> Callable[..., Any]:
        async def count(queue_id: int, outcomes: Any, **rest: Any) -> Any:
            batches.append(len(outcomes))
            return await write(queue_id, outcomes, **rest)

        return count

    # They may travel along with a claim as well.
    for way in ("settle", "turn"):
        setattr(worker._store, way, counting(getattr(worker._store, way)))
    ids = await bench.enqueue_many("give", list(range(50)))
    jobs = await bench.finished(*ids)
    assert {job.status for job in jobs} == {Status.COMPLETED}
    assert [None if job.result is None else msgspec.json.decode(job.result) for job in jobs] == [
        None if number == 25 else number for number in range(50)
    ]
    assert max(batches) > 1, "they did not travel together, so this proves nothing"
