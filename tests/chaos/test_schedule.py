"""Schedules: drawn from a seed, the same each time, and read back as they were written."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.injector import FLEET_KINDS
from chaos.options import Options, rates
from chaos.plan import KINDS, PRESETS, Rate, Schedule, draw_schedule, read_schedule, write_schedule

WORKERS, APIS = ("w1", "w2", "w3"), ("a1", "a2")


def drawn(seed: int, seconds: float = 80.0, rates: dict[str, Rate] = KINDS) -> Schedule:
    return draw_schedule(seed, seconds, rates, workers=WORKERS, apis=APIS)


def test_a_seed_gives_the_same_schedule_each_time_and_another_gives_another() -> None:
    assert drawn(7) == drawn(7)
    assert drawn(7).faults != drawn(8).faults


def test_every_kind_strikes_in_two_minutes_within_the_time_and_at_its_own_targets() -> None:
    schedule = drawn(7)
    assert {fault.kind for fault in schedule.faults} == set(KINDS)
    assert [fault.at for fault in schedule.faults] == sorted(fault.at for fault in schedule.faults)
    assert all(0 < fault.at < 80 for fault in schedule.faults)
    members = {"workers": set(WORKERS), "apis": set(APIS), "clients": {*WORKERS, *APIS}, "": {""}}
    for fault in schedule.faults:
        rate = KINDS[fault.kind]
        assert fault.target in members[rate.on]
        assert rate.seconds[0] <= fault.seconds <= rate.seconds[1]
        assert rate.amount[0] <= fault.amount <= rate.amount[1]


def test_leaving_a_kind_out_leaves_the_others_where_they_were() -> None:
    without = {kind: rate for kind, rate in KINDS.items() if kind != "kill"}
    assert drawn(7, rates=without).faults == tuple(fault for fault in drawn(7).faults if fault.kind != "kill")


def test_the_presets_make_a_campaign_of_the_size_that_was_promised() -> None:
    # Minutes of each, some 40 in all: a thousand kills, a hundred of the postmaster, fifty failovers, twenty outages.
    minutes = {"kills": 8, "postgres": 9, "failovers": 8, "outages": 14.5}
    counts = dict.fromkeys(KINDS, 0)
    for preset, length in minutes.items():
        schedule = drawn(7, length * 60, PRESETS[preset])
        for kind in counts:
            counts[kind] += schedule.count(kind)
    # A kill of a group ends three processes where two run under a third, and one elsewhere.
    assert counts["kill"] + counts["kill_group"] >= 1_000
    assert counts["kill_postmaster"] >= 100
    assert counts["failover"] >= 50
    assert counts["outage"] >= 20
    assert all(KINDS[kind] for kind in PRESETS["outages"])
    assert PRESETS["outages"]["outage"].seconds == (30.0, 30.0)


def test_only_what_was_asked_for_and_can_be_done_is_drawn() -> None:
    options = Options(seed=1, minutes=1, rate=1, faults=("kill", "outage", "failover"))
    assert set(rates(options, frozenset({"outage"}))) == {"kill", "outage"}
    assert set(rates(Options(seed=1, minutes=1, rate=1), frozenset())) == FLEET_KINDS


def test_a_saved_schedule_is_read_as_it_was(tmp_path: Path) -> None:
    write_schedule(drawn(7), tmp_path / "schedule.json")
    assert read_schedule(tmp_path / "schedule.json") == drawn(7)


def test_a_schedule_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    write_schedule(drawn(7), path)
    path.write_text(path.read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(ValueError, match="format 99; this version reads 1"):
        read_schedule(path)


def test_the_command_that_does_it_again_says_all_that_matters() -> None:
    options = Options(seed=9, minutes=2, rate=50, preset="kills", faults=("kill", "stop"), broken="fence")
    assert options.replay == (
        "python -m chaos --seed 9 --minutes 2 --rate 50 --preset kills --faults kill,stop --broken fence"
    )
