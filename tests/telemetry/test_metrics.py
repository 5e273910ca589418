"""The metrics' names, labels and counts."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest

from fencepost.domain.outcome import Ending
from fencepost.telemetry.metrics import Metrics


@dataclass
class Queue:
    name: str
    depth: int
    in_flight: int = 0


def lines(metrics: Metrics, queues: list[Queue] | None = None) -> list[str]:
    return metrics.exposition(queues).decode().splitlines()


def test_every_series_is_there_from_the_start() -> None:
    text = lines(Metrics(), [])
    for line in (
        "jobs_submitted_total 0.0",
        "jobs_completed_total 0.0",
        'jobs_failed_total{status="failed"} 0.0',
        'jobs_failed_total{status="dead_letter"} 0.0',
        "jobs_retried_total 0.0",
        "jobs_recovered_total 0.0",
        "jobs_pruned_total 0.0",
        "jobs_in_flight 0.0",
        "active_workers 0.0",
        "stuck_handlers 0.0",
        *(f'job_processing_duration_seconds_count{{outcome="{ending}"}} 0.0' for ending in Ending),
    ):
        assert line in text
    for start in ("process_cpu_seconds_total", "python_info{", "python_gc_objects_collected_total{"):
        assert any(line.startswith(start) for line in text)
    assert not any("_created" in line for line in text)


def test_two_sets_know_nothing_of_each_other() -> None:
    first, second = Metrics(), Metrics()
    first.submitted(3)
    assert "jobs_submitted_total 3.0" in lines(first)
    assert "jobs_submitted_total 0.0" in lines(second)


@pytest.mark.parametrize(
    ("ending", "status", "counted"),
    [
        (Ending.SUCCEEDED, "completed", "jobs_completed_total 1.0"),
        (Ending.FAILED, "pending", "jobs_retried_total 1.0"),
        (Ending.TIMED_OUT, "pending", "jobs_retried_total 1.0"),
        (Ending.FAILED, "dead_letter", 'jobs_failed_total{status="dead_letter"} 1.0'),
        (Ending.PERMANENT, "failed", 'jobs_failed_total{status="failed"} 1.0'),
        (Ending.RELEASED, "pending", None),
        (Ending.CANCELLED, "cancelled", None),
        (Ending.SUCCEEDED, None, None),
    ],
)
def test_an_ending_counts_once(ending: Ending, status: str | None, counted: str | None) -> None:
    metrics = Metrics()
    metrics.started()
    metrics.ended(ending, status, 0.2)
    ones = [line for line in lines(metrics) if line.startswith("jobs_") and line.endswith(" 1.0")]
    assert ones == ([] if counted is None else [counted])
    outcome = "lost" if status is None else ending.value
    assert f'job_processing_duration_seconds_count{{outcome="{outcome}"}} 1.0' in lines(metrics)
    assert "active_workers 0.0" in lines(metrics)


def test_busy_slots_include_handlers_that_will_not_stop() -> None:
    metrics = Metrics()
    metrics.started()
    metrics.started()
    metrics.stuck(+1)
    metrics.ended(Ending.TIMED_OUT, "pending", 1.0)
    assert {"active_workers 2.0", "stuck_handlers 1.0"} <= set(lines(metrics))
    metrics.stuck(-1)
    metrics.ended(Ending.SUCCEEDED, "completed", 1.0)
    assert {"active_workers 0.0", "stuck_handlers 0.0"} <= set(lines(metrics))


def test_recovery_and_retries_by_hand() -> None:
    metrics = Metrics()
    metrics.recovered(4)
    metrics.retried_by_hand()
    metrics.pruned(30)
    metrics.pruned(12)
    assert {"jobs_recovered_total 4.0", "jobs_retried_total 1.0", "jobs_pruned_total 42.0"} <= set(lines(metrics))


def test_queues_beyond_two_hundred_are_summed_up() -> None:
    metrics = Metrics()
    text = lines(metrics, [Queue(f"q{n:05}", 1, 2) for n in range(2_000)])
    depths = [line for line in text if line.startswith("queue_depth{")]
    assert len(depths) == 201
    assert 'queue_depth{queue="other"} 1800.0' in depths
    assert "jobs_in_flight 4000.0" in text
    again = lines(metrics, [Queue("aaa", 5), Queue("q00000", 7), Queue("other", 1)])
    assert [line for line in again if line.startswith("queue_depth{")] == [
        'queue_depth{queue="other"} 6.0',
        'queue_depth{queue="q00000"} 7.0',
    ]


def test_without_a_database_the_rest_is_still_told() -> None:
    metrics = Metrics()
    metrics.submitted(1)
    lines(metrics, [Queue("q", 1)])
    text = lines(metrics, None)
    assert "jobs_submitted_total 1.0" in text
    assert not any(line.startswith(("queue_depth{", "jobs_in_flight ")) for line in text)


def test_odd_methods_share_a_label() -> None:
    metrics = Metrics()
    for n in range(500):
        metrics.requested(f"METHOD{n}", "/jobs", 405, 0.001)
    counts = [line for line in lines(metrics) if line.startswith("http_request_duration_seconds_count")]
    assert counts == ['http_request_duration_seconds_count{method="other",route="/jobs",status="405"} 500.0']


def test_counts_from_many_threads_add_up() -> None:
    metrics = Metrics()

    def count() -> None:
        for _ in range(1_000):
            metrics.started()
            metrics.submitted(1)
            metrics.ended(Ending.SUCCEEDED, "completed", 0.01)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert {"jobs_submitted_total 4000.0", "jobs_completed_total 4000.0", "active_workers 0.0"} <= set(lines(metrics))
