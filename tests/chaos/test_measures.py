"""How long recoveries took, by a ledger that was made up."""

from __future__ import annotations

from chaos.evidence import AttemptRow, Evidence
from chaos.injector import Injected
from chaos.ledger import AttemptRecord, End, Start
from chaos.measures import Measures, measure
from chaos.plan import Fault


def start(job: str, token: int, at: float, *, pid: int = 1, parent: int = 0) -> Start:
    return Start(job, token, token, "quick", pid, at, at, parent)


def end(job: str, token: int, at: float) -> End:
    return End(job, token, "ok", 1, at, at)


def kill(at: float, *pids: int) -> Injected:
    return Injected(fault=Fault(at=at, kind="kill", target="w1"), began=at, over=at, killed=list(pids))


def measured(injected: list[Injected], attempts: list[AttemptRecord]) -> Measures:
    lost = [
        AttemptRow(id=record.job, token=1, attempt=1, outcome="lost", ended_at=1_000 + 12.1)
        for record in attempts
        if record.token == 1
    ]
    evidence = Evidence(
        submissions=[], attempts=attempts, jobs=[], attempt_rows=lost, lease_seconds=2.0, wall_offset=1_000.0
    )
    return measure(evidence, injected, recovery_seconds=0.5)


def test_the_time_from_a_kill_to_the_next_start_of_what_ran() -> None:
    found = measured(
        [kill(10, 1)],
        [
            start("ran", 1, 9.5),
            start("ran", 2, 12.25, pid=2),
            # Had ended by then.
            start("done", 1, 9),
            end("done", 1, 9.9),
            start("done", 2, 30, pid=2),
            # Was lost before, so another had it already.
            start("lost", 1, 3),
            start("lost", 2, 6, pid=2),
            # In a child of the process.
            start("child", 1, 9.5, pid=3, parent=1),
            start("child", 2, 13, pid=2),
        ],
    )
    assert (found.after_kill.count, found.after_kill.max, found.after_kill.over_bar) == (2, 3.0, 1)
    assert found.after_kill_amid_faults.count == 0
    # The one that was lost before is in the database's history as of then; here all have one time.
    assert (found.given_back.count, found.given_back.max, found.given_back.over_bar) == (3, 2.1, 0)
    assert found.given_back.bar == 2.5


def test_a_kill_amid_other_faults_is_counted_apart() -> None:
    outage = Injected(fault=Fault(at=11, kind="outage", seconds=5), began=11, over=16, accepted=16)
    found = measured([kill(10, 1), outage], [start("ran", 1, 9.5), start("ran", 2, 17, pid=2)])
    assert (found.after_kill.count, found.given_back.count) == (0, 0)
    assert (found.after_kill_amid_faults.max, found.given_back_amid_faults.max) == (7.0, 2.1)


def test_a_claim_that_died_before_it_began_is_counted_apart_too() -> None:
    found = measured([kill(10, 1)], [start("ran", 1, 9.5), start("ran", 3, 15, pid=2)])
    assert (found.after_kill.count, found.after_kill_amid_faults.count) == (0, 1)


def test_the_time_from_when_the_server_is_back_to_the_first_start() -> None:
    def restart(began: float, accepted: float) -> Injected:
        return Injected(fault=Fault(at=began, kind="restart"), began=began, over=accepted, accepted=accepted)

    found = measured(
        [restart(10, 12), restart(20, 21), restart(21.5, 30)],
        [start("a", 1, 9), start("b", 1, 12.75), start("c", 1, 31)],
    )
    # After the second nothing had started when it went down again.
    assert (found.after_restart.count, found.after_restart.max, found.after_restart.over_bar) == (2, 1.0, 0)
    assert found.after_restart_amid_faults.count == 0
    assert found.after_restart.bar == 5.0
