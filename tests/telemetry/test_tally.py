"""What worker processes count, and how it is added up."""

from __future__ import annotations

import random
import threading

import msgspec

from fencepost.domain.outcome import Ending
from fencepost.telemetry.events import Events
from fencepost.telemetry.metrics import Metrics
from fencepost.telemetry.tally import Counts, Tally

STATUSES = [None, "pending", "completed", "failed", "dead_letter", "cancelled"]


def happen(events: Events, seed: int) -> None:
    """A day in the life of a worker, always the same for one seed."""
    chance = random.Random(seed)
    for _ in range(300):
        events.started()
        if chance.random() < 0.1:
            events.stuck(+1)
        if chance.random() < 0.1:
            events.recovered(chance.randrange(5))
        if chance.random() < 0.1:
            events.pruned(chance.randrange(5))
        if chance.random() < 0.9:
            # Sixteenths, so that sums don't depend on their order.
            events.ended(chance.choice(list(Ending)), chance.choice(STATUSES), chance.randrange(100_000) / 16)


def series(metrics: Metrics) -> list[str]:
    text = metrics.exposition(None).decode().splitlines()
    return [line for line in text if line.startswith(("job", "active_workers", "stuck_handlers"))]


def test_two_tallies_add_up_to_what_one_process_would_have_counted() -> None:
    direct, merged = Metrics(), Metrics()
    for seed in (1, 2):
        happen(direct, seed)
        tally = Tally()
        for part in (seed, seed + 10):
            happen(tally, part)
            counts = tally.take()
            assert counts is not None
            merged.merge(msgspec.json.decode(msgspec.json.encode(counts), type=Counts))
        happen(direct, seed + 10)
    assert series(merged) == series(direct)
    assert "jobs_completed_total 0.0" not in series(direct)


def test_tally_hears_all_that_workers_report() -> None:
    reported = {name for name in vars(Events) if not name.startswith("_")} - {"submitted", "retried_by_hand"}
    assert reported == {name for name in vars(Tally) if not name.startswith("_")} - {"take"}


def test_nothing_is_handed_over_twice() -> None:
    tally = Tally()
    assert tally.take() is None
    tally.started()
    assert tally.take() == Counts(active=1)
    assert tally.take() is None
    tally.stuck(+1)
    assert tally.take() == Counts(active=1, stuck=1)


def test_counts_from_many_threads_add_up() -> None:
    tally, metrics = Tally(), Metrics()

    def work() -> None:
        for _ in range(1_000):
            tally.started()
            tally.ended(Ending.SUCCEEDED, "completed", 0.01)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        metrics.merge(tally.take() or Counts())
    metrics.merge(tally.take() or Counts())
    assert {"jobs_completed_total 4000.0", "active_workers 0.0"} <= set(series(metrics))


def test_worker_processes_are_counted() -> None:
    metrics = Metrics()
    for _ in range(3):
        metrics.process_started()
    metrics.process_ended(expected=False)
    metrics.process_ended(expected=True)
    text = metrics.exposition(None).decode()
    assert "\nworker_processes 1.0\n" in text
    assert "\nworker_process_ends_total 1.0\n" in text
