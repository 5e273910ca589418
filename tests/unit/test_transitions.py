"""The state machine as data: complete, and as the contract has it."""

from __future__ import annotations

from datetime import UTC, datetime

from fencepost.domain.context import Context
from fencepost.domain.ids import new_id
from fencepost.domain.job import TRANSITIONS, Event, NewJob, Status

FINAL = {Status.COMPLETED, Status.FAILED, Status.CANCELLED}


def test_every_status_can_be_reached() -> None:
    assert set(TRANSITIONS.values()) == set(Status)


def test_every_event_leads_somewhere_and_only_creation_begins() -> None:
    assert {event for _, event in TRANSITIONS} == set(Event)
    assert [event for status, event in TRANSITIONS if status is None] == [Event.CREATE]


def test_final_is_final() -> None:
    assert not FINAL & {status for status, _ in TRANSITIONS}


def test_a_dead_letter_comes_back_only_by_hand() -> None:
    assert [event for status, event in TRANSITIONS if status is Status.DEAD_LETTER] == [Event.RETRY]


def test_only_a_claim_starts_an_attempt() -> None:
    assert [pair for pair, to in TRANSITIONS.items() if to is Status.PROCESSING] == [(Status.PENDING, Event.CLAIM)]


def test_no_event_leaves_a_job_where_it_is() -> None:
    assert all(before is not after for (before, _), after in TRANSITIONS.items())


def test_the_last_failure_ends_a_job() -> None:
    for event in (Event.FAIL_LAST, Event.EXPIRE_LAST):
        assert TRANSITIONS[Status.PROCESSING, event] is Status.DEAD_LETTER


def test_the_words_are_those_of_the_database() -> None:
    assert {status.value for status in Status} == {
        "pending", "processing", "completed", "failed", "dead_letter", "cancelled",
    }  # fmt: skip


def test_the_schedule_as_it_was_asked_for() -> None:
    job = NewJob(id=new_id(), type="work", max_attempts=1, run_at=datetime(2031, 1, 1, tzinfo=UTC))
    assert job.schedule == "at 2031-01-01T00:00:00+00:00"
    assert NewJob(id=new_id(), type="work", max_attempts=1, delay_seconds=0.1).schedule == "in 0.1s"
    assert NewJob(id=new_id(), type="work", max_attempts=1).schedule == "now"


def test_a_handler_can_tell_its_last_attempt() -> None:
    context = Context(id=new_id(), type="work", queue="q", attempt=2, max_attempts=3, token=1, timeout_seconds=1.0)
    assert not context.is_last
    assert Context(id=new_id(), type="work", queue="q", attempt=3, max_attempts=3, token=1, timeout_seconds=1.0).is_last
