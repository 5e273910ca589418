"""The campaign's page says all that it does."""

from __future__ import annotations

import re

from chaos.broken import BREAKS
from chaos.checks import CHECKS
from chaos.evidence import Probe
from chaos.fleet import ROOT
from chaos.plan import KINDS, PRESETS

PAGE = (ROOT / "docs/explanation/chaos.md").read_text(encoding="utf-8")


def test_every_fault_preset_check_and_break_is_on_the_page() -> None:
    probes = {
        name
        for path in (ROOT / "chaos").glob("*.py")
        for name in re.findall(rf'{Probe.__name__}\(\s*"(\w+)"', path.read_text(encoding="utf-8"))
    }
    assert len(probes) >= 9
    for name in {*KINDS, *PRESETS, *CHECKS, *probes, *BREAKS}:
        assert f"`{name}`" in PAGE, f"{name} is not on the page"
