"""The long campaign's table says what its runs found, and its exit code whether that is as it should be."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos import series
from chaos.checks import Result
from chaos.measures import Measures, Spread
from chaos.plan import Schedule
from chaos.report import Report, write_report
from chaos.series import RUNS, is_as_it_should_be


def report(name: str, *, faults: dict[str, int], failed: str | None = None, seconds: float = 100.0) -> Report:
    """What one of the runs may have found."""
    run = next(run for run in RUNS if run.name == name)
    spread = Spread(count=4, bar=2.5, median=1.25, max=2.0)
    checks = ["nothing_lost", "leases_apart", "tokens_once", "no_stale_write", "drained"]
    return Report(
        fencepost="1",
        python="3",
        postgresql="18",
        seed=run.seed,
        preset=run.preset,
        broken=run.broken,
        replay="",
        seconds=seconds,
        lease_seconds=2.0,
        recovery_seconds=0.5,
        schedule=Schedule(seed=run.seed, seconds=60, faults=()),
        faults=faults,
        not_carried_out={},
        killed_workers=faults.get("kill", 0),
        ends={},
        given_up=[],
        acknowledged=1_200,
        jobs_by_script={},
        doors={},
        repeats=7,
        statuses={"completed": 1_000, "dead_letter": 150},
        attempts=1_300,
        too_late=5,
        measures=Measures(
            given_back=spread,
            given_back_amid_faults=spread,
            after_kill=spread,
            after_kill_amid_faults=spread,
            after_restart=spread,
            after_restart_amid_faults=spread,
        ),
        checks=[
            Result(name=check, said="", looked_at=9, offences=3 if check == failed else 0, offenders=())
            for check in checks
        ],
    )


def table(folder: Path, *reports: Report) -> tuple[int, list[str], str]:
    """Exit code, lines and errors of the command for runs that left these reports."""
    names = []
    for one in reports:
        names.append(one.broken or one.preset)
        write_report(one, folder / f"{names[-1]}.json")
    called = CliRunner().invoke(series.main, ["--folder", str(folder), "--table", "--only", ",".join(names)])
    return called.exit_code, called.stdout.splitlines(), called.stderr


def test_runs_stand_side_by_side_and_in_all(tmp_path: Path) -> None:
    kills = report("kills", faults={"kill": 900, "stop": 3})
    recovery = report("recovery", faults={"kill": 20, "kill_postmaster": 2, "outage": 1})
    code, lines, _ = table(tmp_path, kills, recovery)
    assert code == 0
    assert lines[0] == "|  | kills | recovery | in all |"
    for line in (
        "| seed | 12 | 2 |  |",
        "| jobs | 1,150 | 1,150 | 2,300 |",
        "| enqueues acknowledged | 1,200 | 1,200 | 2,400 |",
        "| faults | 903 | 23 | 926 |",
        "| worker processes killed | 900 | 20 | 920 |",
        "| PostgreSQL killed | 0 | 2 | 2 |",
        "| jobs lost | 0 | 0 | 0 |",
        "| checks that held | all | all | all |",
        "| from a worker's kill until its job is given back | 1.25 s | 2.00 s | 4 | 2.5 s |",
    ):
        assert line in lines


@pytest.mark.parametrize(
    ("failed", "line"),
    [
        ("nothing_lost", "| jobs lost | 3 | 3 |"),
        ("tokens_once", "| two owners of a job, or of a token | 3 | 3 |"),
        ("leases_apart", "| two owners of a job, or of a token | 3 | 3 |"),
        ("no_stale_write", "| stale writes | 3 | 3 |"),
        ("drained", "| checks that held | not drained | not all |"),
    ],
)
def test_a_check_that_failed_fails_the_series_and_is_named(tmp_path: Path, failed: str, line: str) -> None:
    code, lines, _ = table(tmp_path, report("kills", faults={"kill": 1}, failed=failed))
    assert code == 1
    assert line in lines
    assert f"| checks that held | not {failed} | not all |" in lines


def test_a_broken_build_has_to_be_caught_in_time(tmp_path: Path) -> None:
    caught = report("fence", faults={}, failed="no_stale_write")
    code, lines, _ = table(tmp_path, caught)
    assert code == 0
    assert "| `fence` | `no_stale_write` | 100 s |" in lines
    assert not is_as_it_should_be(report("fence", faults={}))
    assert not is_as_it_should_be(report("fence", faults={}, failed="no_stale_write", seconds=301))


def test_a_run_that_left_no_report_fails_the_series(tmp_path: Path) -> None:
    called = CliRunner().invoke(series.main, ["--folder", str(tmp_path), "--table", "--only", "mixed"])
    assert called.exit_code == 1
    assert "mixed left no report" in called.stderr
