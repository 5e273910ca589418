"""The load test's judgement: it must find what it is there to find."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.cli.load_report import BAD, GOOD, Past, Percentiles, Plan, Record, Submission, judge

PLAN = Plan(jobs=1, fail_rate=0, max_attempts=2, duration="0s")
SUBMISSION = Submission(
    jobs=1, seconds=1, jobs_per_second=1, latency_ms=Percentiles(p50=1, p95=1, p99=1, max=1), repeated_requests=0
)


def at(second: int) -> str:
    return f"2026-11-29T12:00:{second:02}Z"


def record(**changes: Any) -> Record:
    fields: dict[str, Any] = {
        "id": "a",
        "type": GOOD,
        "status": "completed",
        "attempts": 1,
        "max_attempts": 2,
        "lease_token": 1,
        "created_at": at(0),
        "started_at": at(1),
        "finished_at": at(2),
        "history": [],
    }
    return Record(**{**fields, **changes})


def past(token: int, start: int, end: int, outcome: str = "failed") -> Past:
    return Past(token=token, outcome=outcome, started_at=at(start), ended_at=at(end))


def verdict(*records: Record | None) -> tuple[int, int, int]:
    """How many are lost, wrong, run twice."""
    ids = [one.id if one is not None else "a" for one in records]
    report = judge(PLAN, "http://x", 1, SUBMISSION, 1.0, ids, dict(zip(ids, records, strict=True)))
    assert report.is_clean == (not (report.lost or report.wrong or report.run_twice))
    return len(report.lost), len(report.wrong), len(report.run_twice)


DEAD = {
    "type": BAD,
    "status": "dead_letter",
    "attempts": 2,
    "lease_token": 2,
    "started_at": at(3),
    "finished_at": at(4),
}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (record(), (0, 0, 0)),
        (None, (1, 0, 0)),
        (record(status="processing", finished_at=None), (1, 0, 0)),
        (record(status="dead_letter", history=[past(1, 1, 2)]), (0, 1, 0)),
        (record(**DEAD, history=[past(1, 1, 2), past(2, 3, 4)]), (0, 0, 0)),
        (record(**{**DEAD, "attempts": 1}, history=[past(1, 1, 2), past(2, 3, 4)]), (0, 1, 0)),
        (record(**DEAD, history=[past(2, 3, 4)]), (0, 0, 1)),
        (record(**DEAD, history=[past(1, 1, 4), past(2, 3, 4)]), (0, 0, 1)),
        (record(lease_token=2), (0, 0, 1)),
        (
            record(lease_token=2, attempts=2, started_at=at(3), finished_at=at(4), history=[past(1, 1, 2, "lost")]),
            (0, 0, 0),
        ),
        (
            record(lease_token=2, attempts=2, started_at=at(1), finished_at=at(4), history=[past(1, 1, 2, "lost")]),
            (0, 0, 1),
        ),
    ],
)
def test_judgement(found: Record | None, expected: tuple[int, int, int]) -> None:
    assert verdict(found) == expected


def test_failing_share_is_spread_evenly() -> None:
    plan = Plan(jobs=1000, fail_rate=0.2, max_attempts=2, duration="0s")
    fails = [b"fail_test" in plan.body(number, "q") for number in range(1000)]
    assert sum(fails) == 200
    assert all(sum(fails[start : start + 100]) == 20 for start in range(0, 1000, 100))
