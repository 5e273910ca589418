"""What the load test expects of each job, and what it reports."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from itertools import pairwise

import msgspec

GOOD, BAD = "sleep", "fail_test"
"""The job types of a load test: one that succeeds, one that never does."""


class Plan(msgspec.Struct, frozen=True):
    """What is submitted."""

    jobs: int
    fail_rate: float
    max_attempts: int
    duration: str

    def body(self, number: int, queue: str) -> bytes:
        """The request for job *number*; the failing share is spread evenly."""
        fails = int((number + 1) * self.fail_rate) > int(number * self.fail_rate)
        return msgspec.json.encode(
            {
                "type": BAD if fails else GOOD,
                "payload": {"n": number} if fails else {"duration": self.duration},
                "queue": queue,
                "max_attempts": self.max_attempts,
            }
        )


class Record(msgspec.Struct):
    """What of a job's record is judged."""

    id: str
    type: str
    status: str
    attempts: int
    max_attempts: int
    lease_token: int
    created_at: str
    started_at: str | None
    finished_at: str | None
    history: list[Past] = []


class Past(msgspec.Struct):
    """An attempt that did not succeed."""

    token: int
    outcome: str
    started_at: str
    ended_at: str


class Percentiles(msgspec.Struct):
    """A distribution, in milliseconds."""

    p50: float
    p95: float
    p99: float
    max: float


class Submission(msgspec.Struct):
    """How submitting went."""

    jobs: int
    seconds: float
    jobs_per_second: float
    latency_ms: Percentiles
    repeated_requests: int
    """Requests that got no answer or a 503 and were sent again, under the same idempotency key."""


class Report(msgspec.Struct):
    """What `--json` prints."""

    url: str
    jobs: int
    clients: int
    fail_rate: float
    submission: Submission
    processing_seconds: float
    """From the first submission until the last job had ended."""
    completion_rate: float
    """The share of the jobs meant to succeed that did."""
    by_status: dict[str, int]
    retries: int
    first_start_ms: Percentiles
    """From creation to the start of the only attempt, for jobs that needed one."""
    lost: list[str]
    """Acknowledged jobs that the service doesn't know or that had not ended in time."""
    wrong: list[str]
    """Jobs that ended otherwise than their type does."""
    run_twice: list[str]
    """Jobs with an attempt that nothing accounts for, or two that overlap."""

    @property
    def is_clean(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.wrong or self.run_twice)


def judge(
    plan: Plan,
    url: str,
    clients: int,
    submission: Submission,
    seconds: float,
    ids: list[str],
    records: dict[str, Record | None],
) -> Report:
    """Compare what was acknowledged with what the service has."""
    known = [record for record in records.values() if record is not None]
    ended = [record for record in known if record.finished_at is not None]
    lost = [job_id for job_id in ids if job_id not in {record.id for record in ended}]
    good = [record for record in ended if record.type == GOOD]
    return Report(
        url=url,
        jobs=plan.jobs,
        clients=clients,
        fail_rate=plan.fail_rate,
        submission=submission,
        processing_seconds=round(seconds, 3),
        completion_rate=sum(record.status == "completed" for record in good) / max(1, len(good)),
        by_status=dict(Counter(record.status for record in known)),
        retries=sum(max(0, record.attempts - 1) for record in known),
        first_start_ms=percentiles(
            [
                _milliseconds(record.created_at, record.started_at)
                for record in good
                if record.attempts == 1 and record.started_at
            ]
        ),
        lost=lost + [f"{len(ids) - len(set(ids))} ids twice"] * (len(ids) != len(set(ids))),
        wrong=[record.id for record in ended if not _ended_as_planned(record)],
        run_twice=[record.id for record in ended if not _accounted_for(record)],
    )


def _ended_as_planned(record: Record) -> bool:
    if record.type == GOOD:
        return record.status == "completed"
    return record.status == "dead_letter" and record.attempts == record.max_attempts


def _accounted_for(record: Record) -> bool:
    """Whether each lease token belongs to one known attempt, and no attempt began before the one before had ended."""
    tokens = sorted(past.token for past in record.history)
    expected = record.lease_token - 1 if record.status == "completed" else record.lease_token
    if tokens != list(range(1, expected + 1)):
        return False
    times = sorted((_moment(past.started_at), _moment(past.ended_at)) for past in record.history)
    if record.status == "completed" and record.started_at and record.finished_at:
        times.append((_moment(record.started_at), _moment(record.finished_at)))
    return all(later[0] >= earlier[1] for earlier, later in pairwise(times))


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _milliseconds(earlier: str, later: str) -> float:
    return (_moment(later) - _moment(earlier)).total_seconds() * 1000


def percentiles(values: list[float]) -> Percentiles:
    """Summarise *values*, in milliseconds."""
    ordered = sorted(values) or [0.0]

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)

    return Percentiles(p50=at(0.5), p95=at(0.95), p99=at(0.99), max=round(ordered[-1], 2))


def as_text(report: Report) -> str:
    """The report for people."""
    submission, latency, start = report.submission, report.submission.latency_ms, report.first_start_ms
    statuses = ", ".join(f"{count:,} {status}" for status, count in sorted(report.by_status.items()))
    lines = [
        f"submitted   {submission.jobs:,} jobs in {submission.seconds:.2f} s from {report.clients} clients: "
        f"{submission.jobs_per_second:,.0f}/s",
        f"latency     p50 {latency.p50:.1f} ms, p95 {latency.p95:.1f} ms, p99 {latency.p99:.1f} ms, "
        f"max {latency.max:.1f} ms; {submission.repeated_requests} requests repeated",
        f"processed   in {report.processing_seconds:.2f} s from the first submission to the last ending",
        f"start       p50 {start.p50:.1f} ms, p95 {start.p95:.1f} ms, p99 {start.p99:.1f} ms after creation",
        f"ended       {statuses}; {report.retries:,} retries",
        f"completion  {report.completion_rate:.2%} of the jobs meant to succeed",
    ]
    for label, found in (("lost", report.lost), ("wrong end", report.wrong), ("run twice", report.run_twice)):
        lines.append(f"{label:11} {len(found)}" + (f": {', '.join(found[:5])}" if found else ""))
    return "\n".join(lines)
