"""When a loop counts as stuck, and what is said of it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from fencepost.telemetry import pulses
from fencepost.telemetry.metrics import Metrics
from fencepost.telemetry.pulses import LoopState, Pulse, Vitals, troubles, unwatched, worst
from tests.cost import bytecodes


class Clock:
    """The monotonic clock, in a test's hands."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pulses, "time", clock)
    return clock


def make(patience: float = 15.0, **options: Any) -> Pulse:
    return Pulse("miller", task="grinds", patience_seconds=patience, advice="oil it", **options)


def wait(clock: Clock, vitals: Vitals, seconds: float, *, beats: bool = True) -> list[LoopState]:
    """So many seconds go by, looked at once a second."""
    states = vitals.look()
    for _ in range(round(seconds)):
        clock.now += 1
        if beats:
            vitals.beat()
        states = vitals.look()
    return states


def test_it_is_stuck_beyond_its_patience_and_told_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    vitals = Vitals()
    pulse = vitals.add(make())
    assert not troubles(wait(clock, vitals, 15))
    pulse.failed(ValueError("no grain"))
    (text,) = troubles(wait(clock, vitals, 10))
    assert text.startswith("the miller (grinds) has not come round since 20")
    assert text.endswith("Z, 25 seconds ago; its last error: no grain")
    (told,) = caplog.records
    assert (told.levelno, vars(told)["loop"], vars(told)["advice"]) == (logging.ERROR, "miller", "oil it")
    pulse.turned()
    assert not troubles(wait(clock, vitals, 1))
    assert caplog.records[-1].getMessage() == "a loop goes on again"
    assert pulse.error is None
    assert troubles(wait(clock, vitals, 16))
    assert len(caplog.records) == 3, "stuck anew is told anew"


def test_one_that_has_nothing_to_do_is_well(clock: Clock) -> None:
    vitals = Vitals()
    pulse = vitals.add(make(idle=True))
    assert not troubles(wait(clock, vitals, 100))
    pulse.wake()
    assert not troubles(wait(clock, vitals, 15)), "it counts from when it got something to do"
    assert troubles(wait(clock, vitals, 1))
    pulse.rest()
    assert not troubles(vitals.look())
    assert vitals.look()[0].age_seconds == 0


def test_one_that_is_not_vital_does_not_make_the_process_unready(clock: Clock) -> None:
    vitals = Vitals()
    vitals.add(make(is_vital=False))
    states = wait(clock, vitals, 20)
    assert (states[0].trouble is not None, troubles(states)) == (True, [])


def test_while_the_event_loop_is_blocked_nothing_in_it_is_blamed(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    vitals = Vitals(blocked_patience_seconds=60)
    pulse = vitals.add(make())
    elsewhere = vitals.add(make(in_loop=False))
    elsewhere.name = "keeper"
    wait(clock, vitals, 5)
    assert not caplog.records
    assert [text.split(" (")[0] for text in troubles(wait(clock, vitals, 40, beats=False))] == ["the keeper"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.ERROR]
    elsewhere.turned()
    (text,) = [one for one in troubles(wait(clock, vitals, 21, beats=False)) if "event" in one]
    assert text.startswith("the event loop (runs the handlers")
    # It goes on: what is in it gets its own time first.
    vitals.beat()
    elsewhere.turned()
    assert not troubles(wait(clock, vitals, 14))
    elsewhere.turned()
    assert len(troubles(wait(clock, vitals, 2))) == 1
    assert pulse.is_told


def test_after_a_standstill_of_the_process_all_get_their_time(clock: Clock) -> None:
    vitals = Vitals(blocked_patience_seconds=60)
    pulse = vitals.add(make(in_loop=False))
    wait(clock, vitals, 3)
    clock.now += 3600
    vitals.beat()
    assert not troubles(vitals.look())
    assert troubles(wait(clock, vitals, 16))
    assert pulse.is_told


def test_what_is_stopped_on_purpose_is_not_stuck(clock: Clock) -> None:
    vitals = Vitals()
    vitals.add(make())
    vitals.end()
    assert wait(clock, vitals, 100) == []


def test_the_worst_of_several_is_shown() -> None:
    well = LoopState(name="miller", age_seconds=3.0)
    stuck = LoopState(name="miller", age_seconds=2.0, trouble="the miller…")
    other = LoopState(name="baker", age_seconds=0.0)
    assert worst([well, stuck, other]) == [stuck, other]
    metrics = Metrics()
    metrics.watch(lambda: [well, stuck, other])
    text = metrics.exposition(None).decode()
    assert 'loop_last_turn_age_seconds{loop="miller"} 2.0' in text
    assert 'loop_stuck{loop="miller"} 1.0' in text
    assert 'loop_stuck{loop="baker"} 0.0' in text


def test_a_turn_costs_next_to_nothing() -> None:
    """Each claim, settlement and renewal pays for it."""
    assert bytecodes(unwatched("any").turned) < 30
