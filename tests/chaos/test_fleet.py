"""Which ends of the fleet's processes are held against it."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.fleet import Fleet, Member, MemberSpec, environments


def ended(tmp_path: Path, *arguments: str, processes: int = 0, struck: bool = False) -> Fleet:
    """A fleet of one member, which ran with these arguments and is gone."""
    spec = MemberSpec(name="worker-1", role="worker", arguments=arguments, processes=processes)
    member = Member(spec, environment=dict(environments({}, source=None)), folder=tmp_path)
    fleet = Fleet([member])
    member.start()
    member.wait(60)
    code = member.ended()
    assert code is not None
    member.struck = struck
    fleet.note_end(member, code)
    return fleet


@pytest.mark.parametrize(
    ("processes", "struck", "given_up"),
    [(2, True, True), (2, False, False), (0, True, False)],
    ids=["supervisor-of-a-killed-process", "supervisor", "one-process"],
)
def test_only_a_supervisor_whose_process_was_killed_may_give_up(
    tmp_path: Path, processes: int, struck: bool, given_up: bool
) -> None:
    fleet = ended(tmp_path, "doctor", "--no-such-option", processes=processes, struck=struck)
    assert fleet.given_up == []
    assert len(fleet.unexpected) == 1
    assert "No such option" in fleet.unexpected[0]
    fleet.unexpected.clear()
    fleet.note_end(fleet.members["worker-1"], 1)
    assert [bool(fleet.given_up), bool(fleet.unexpected)] == [given_up, not given_up]


def test_what_faults_and_scripts_do_is_not_held_against_it(tmp_path: Path) -> None:
    fleet = ended(tmp_path, "--version")
    for code in (-9, -11, -15, 77):
        fleet.note_end(fleet.members["worker-1"], code)
    assert (fleet.given_up, fleet.unexpected) == ([], [])
    assert fleet.ends == {"worker 0": 1, "worker -9": 1, "worker -11": 1, "worker -15": 1, "worker 77": 1}
