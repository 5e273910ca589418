"""Names with commas between them on the command lines of the campaign."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from chaos import series
from chaos.__main__ import main
from chaos.names import Names
from chaos.plan import KINDS


def test_they_are_taken_apart_in_the_order_given() -> None:
    assert Names(["kill", "cut", "delay"]).convert("delay, kill", None, None) == ("delay", "kill")


@pytest.mark.parametrize("text", ["", "kill,", "kill,nope", "KILL"])
def test_any_other_is_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is none of kill, cut"):
        Names(["kill", "cut"]).convert(text, None, None)


def test_no_campaign_starts_with_an_unknown_one(tmp_path: Path) -> None:
    one = CliRunner().invoke(main, ["--faults", "kill,nope", "--report", str(tmp_path / "report.json")])
    assert one.exit_code == 2
    assert "'nope' is none of " + ", ".join(KINDS) in " ".join(one.stderr.split())
    many = CliRunner().invoke(series.main, ["--folder", str(tmp_path), "--only", "nope"])
    assert many.exit_code == 2
    assert "'nope' is none of kills, failovers" in many.stderr
    assert not list(tmp_path.iterdir())
