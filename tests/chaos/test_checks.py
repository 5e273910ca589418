"""The checks of a campaign, each held against evidence that breaks just what it is there for."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from chaos.checks import CHECKS, check_all
from chaos.evidence import AttemptRow, Evidence, JobRow, Probe
from chaos.ledger import Ack, CancelAck, End, Intent, RolledBack, Start

CREATED = 1_000.0
"""When everything began, by the database; the ledger's monotonic time is 900 less."""
OFFSET = 900.0


def start(job: str, token: int, *, at: float = 1.0, script: str = "quick", pid: int = 7) -> Start:
    return Start(job, token, token, script, pid, CREATED + at, CREATED - OFFSET + at)


def end(job: str, token: int, how: str = "ok", *, at: float = 2.0) -> End:
    return End(job, token, how, 7, CREATED + at, CREATED - OFFSET + at)


def completed(job: str, key: str, script: str, *, token: int = 1, attempts: int | None = None) -> JobRow:
    return JobRow(
        id=job,
        key=key,
        created_at=CREATED,
        token=token,
        attempts=token if attempts is None else attempts,
        started_at=CREATED + 1,
        finished_at=CREATED + 2.5,
        result_token=token,
        script=script,
        payload_key=key,
    )


def sound() -> Evidence:
    """A small campaign in which all is as it should be: a job of each kind that some check looks at."""
    keys = {
        "quick": Intent("http-1", "quick", "http", CREATED),
        "poison": Intent("http-2", "poison", "http", CREATED),
        "snooze": Intent("http-3", "snooze", "http", CREATED),
        "effect": Intent("library-4", "effect", "library", CREATED),
        "scheduled": Intent("http-5", "scheduled", "http", CREATED, 1.0),
        "cancel": Intent("http-6", "cancel", "http", CREATED),
        "lost": Intent("http-7", "quick", "http", CREATED),
        "rollback": Intent("rollback-8", "quick", "rollback", CREATED),
    }
    dead = JobRow(id="poison", key="http-2", max_attempts=3, attempts=3, token=3, status="dead_letter", script="poison")
    return Evidence(
        submissions=[
            *keys.values(),
            *(Ack(intent.key, job, "created", CREATED) for job, intent in keys.items() if job != "rollback"),
            RolledBack("rollback-8"),
            CancelAck("cancel", "cancelled", CREATED + 1),
        ],
        attempts=[
            start("quick", 1),
            end("quick", 1),
            *(start("poison", token, script="poison") for token in (1, 2, 3)),
            *(end("poison", token, "fail") for token in (1, 2, 3)),
            start("snooze", 1, script="snooze"),
            end("snooze", 1, "snooze"),
            start("snooze", 2, script="snooze"),
            end("snooze", 2),
            start("effect", 1, script="effect"),
            end("effect", 1),
            start("scheduled", 1, script="scheduled"),
            end("scheduled", 1),
            start("lost", 1, at=-5, pid=8),
            start("lost", 2),
            end("lost", 2),
        ],
        jobs=[
            completed("quick", "http-1", "quick"),
            dead,
            completed("snooze", "http-3", "snooze", token=2, attempts=1),
            completed("effect", "library-4", "effect"),
            completed("scheduled", "http-5", "scheduled"),
            JobRow(id="cancel", key="http-6", token=0, attempts=0, status="cancelled", script="cancel"),
            completed("lost", "http-7", "quick", token=2),
        ],
        attempt_rows=[
            *(
                AttemptRow(id="poison", token=token, attempt=token, outcome="failed", started_at=token, ended_at=token)
                for token in (1, 2, 3)
            ),
            AttemptRow(
                id="lost", token=1, attempt=1, outcome="lost", started_at=CREATED - 5, ended_at=CREATED - 5 + 2.1
            ),
        ],
        effects=[("effect", 1)],
        orders=["library-4"],
        wall_offset=OFFSET,
        audits=3,
    )


def alter(evidence: Evidence, job: str, **changes: object) -> None:
    """Change a row of the database."""
    place = next(place for place, row in enumerate(evidence.jobs) if row.id == job)
    evidence.jobs[place] = msgspec.structs.replace(evidence.jobs[place], **changes)


def drop(evidence: Evidence, job: str) -> None:
    evidence.jobs[:] = [row for row in evidence.jobs if row.id != job]


def drop_end(evidence: Evidence, job: str, token: int) -> None:
    evidence.attempts[:] = [
        record
        for record in evidence.attempts
        if not (isinstance(record, End) and record.job == job and record.token == token)
    ]


def failing(evidence: Evidence) -> dict[str, tuple[str, ...]]:
    return {result.name: result.offenders for result in check_all(evidence) if not result.ok}


def test_a_sound_campaign_passes() -> None:
    assert failing(sound()) == {}
    assert {result.name for result in check_all(sound()) if result.looked_at == 0} == set(), "each has seen something"


VIOLATIONS: list[tuple[str, str, Callable[[Evidence], object]]] = [
    ("an acknowledged job is gone", "nothing_lost", lambda found: drop(found, "quick")),
    (
        "a job ran that isn't there",
        "nothing_lost",
        lambda found: found.attempts.append(start("never", 1)),
    ),
    ("a job is nowhere", "one_place", lambda found: alter(found, "quick", places=0, status=None, token=None)),
    ("a job is in two places", "one_place", lambda found: alter(found, "quick", places=2)),
    ("a row has no job", "one_place", lambda found: found.orphans.append("stray")),
    ("a job is still pending", "all_ended", lambda found: alter(found, "quick", status="pending")),
    ("a job is still leased", "all_ended", lambda found: alter(found, "quick", status="processing")),
    ("a poison job completed", "as_scripted", lambda found: alter(found, "poison", status="completed")),
    ("a quick job is a dead letter", "as_scripted", lambda found: alter(found, "quick", status="dead_letter")),
    ("a dead letter had an attempt too few", "as_scripted", lambda found: alter(found, "poison", attempts=2)),
    ("a job had an attempt too many", "attempts_bounded", lambda found: alter(found, "poison", attempts=4)),
    (
        "its history has one too many",
        "attempts_bounded",
        lambda found: found.attempt_rows.append(AttemptRow(id="poison", token=4, attempt=4, outcome="failed")),
    ),
    ("two processes had one lease", "tokens_once", lambda found: found.attempts.append(start("quick", 1, pid=9))),
    ("a token is beyond the job's last", "tokens_once", lambda found: found.attempts.append(start("quick", 2))),
    ("an attempt is missing from the history", "tokens_accounted", lambda found: found.attempt_rows.pop()),
    ("a snooze cost an attempt", "tokens_accounted", lambda found: alter(found, "snooze", attempts=2)),
    (
        "a lease began before the one before it had ended",
        "leases_apart",
        lambda found: alter(found, "lost", started_at=CREATED - 4),
    ),
    (
        "a lease was taken back before it ran out",
        "leases_apart",
        lambda found: found.attempt_rows.append(
            msgspec.structs.replace(found.attempt_rows.pop(), ended_at=CREATED - 5 + 1.0)
        ),
    ),
    ("a result is another attempt's", "no_stale_write", lambda found: alter(found, "lost", result_token=1)),
    ("a completed job has no result", "no_stale_write", lambda found: alter(found, "quick", result_token=None)),
    ("the attempt never succeeded", "no_stale_write", lambda found: drop_end(found, "quick", 1)),
    (
        "it was completed before its attempt had succeeded",
        "no_stale_write",
        lambda found: alter(found, "quick", finished_at=CREATED + 1.5),
    ),
    ("a failure that never happened", "history_true", lambda found: drop_end(found, "poison", 2)),
    (
        "a key made two jobs",
        "keys_once",
        lambda found: found.jobs.append(completed("other", "http-1", "quick")),
    ),
    ("an answer named another job", "keys_once", lambda found: found.submissions.append(Ack("http-1", "lost", "", 0))),
    ("a job nobody handed in", "keys_once", lambda found: found.jobs.append(completed("ghost", "http-99", "quick"))),
    ("an effect twice", "effects_once", lambda found: found.effects.append(("effect", 1))),
    ("no effect", "effects_once", lambda found: found.effects.clear()),
    ("the effect of another attempt", "effects_once", lambda found: found.effects.__setitem__(0, ("effect", 2))),
    ("an effect without a job", "effects_once", lambda found: found.effects.append(("nobody", 1))),
    ("a job without its order", "transactions_whole", lambda found: found.orders.clear()),
    ("an order without its job", "transactions_whole", lambda found: drop(found, "effect")),
    (
        "what was rolled back is there",
        "transactions_whole",
        lambda found: found.jobs.append(completed("undone", "rollback-8", "quick")),
    ),
    ("started before its time", "not_before_due", lambda found: alter(found, "scheduled", created_at=CREATED + 0.5)),
    ("a cancelled job completed", "cancels_kept", lambda found: alter(found, "cancel", status="completed")),
    (
        "a job was claimed after it had been cancelled",
        "cancels_kept",
        lambda found: found.attempt_rows.append(
            AttemptRow(id="cancel", token=1, attempt=1, outcome="cancelled", started_at=CREATED + 3)
        ),
    ),
    ("a snapshot didn't add up", "snapshots_balanced", lambda found: found.unbalanced.append("at 3: 4 jobs")),
]


@pytest.mark.parametrize(("check", "violate"), [pytest.param(*rest, id=name) for name, *rest in VIOLATIONS])
def test_each_violation_is_caught(check: str, violate: Callable[[Evidence], object]) -> None:
    evidence = sound()
    violate(evidence)
    assert check in failing(evidence)


def test_every_check_has_a_violation() -> None:
    assert {check for _, check, _ in VIOLATIONS} == set(CHECKS)


def test_offenders_are_named_and_all_are_counted() -> None:
    evidence = sound()
    evidence.jobs += [JobRow(id=f"stuck {number}", key=None, status="pending") for number in range(30)]
    found = {result.name: result for result in check_all(evidence)}["all_ended"]
    assert found.offences == 30
    assert len(found.offenders) == 20
    assert found.offenders[0].startswith("stuck 0")


def test_a_probe_that_failed_is_a_failed_check() -> None:
    evidence = sound()
    evidence.probes = [Probe("workers_work", "Every worker works.", 3, ("w1",)), Probe("drained", "All is done.", 1)]
    assert failing(evidence) == {"workers_work": ("w1",)}
