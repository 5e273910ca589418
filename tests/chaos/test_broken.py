"""Builds that are broken on purpose: what is taken out is there, and nothing else changes."""

from __future__ import annotations

import filecmp
from pathlib import Path

import pytest

from chaos import broken
from chaos.broken import BREAKS, CannotBreak, broken_source
from chaos.fleet import ROOT

CHANGED = {
    "fence": {"settle.sql"},
    "skip-locked": {"claim.sql"},
    "transaction": {"settle.sql", "workers.py", "broken_leases.sql", "broken_finished.sql"},
}


@pytest.mark.parametrize("name", sorted(BREAKS))
def test_a_break_changes_what_it_says_and_nothing_else(name: str, tmp_path: Path) -> None:
    copy = broken_source(name, tmp_path) / "fencepost"
    original = ROOT / "src" / "fencepost"
    changed = {
        path.name
        for path in copy.rglob("*")
        if path.is_file()
        and not (
            (original / path.relative_to(copy)).exists()
            and filecmp.cmp(path, original / path.relative_to(copy), shallow=False)
        )
    }
    assert changed == CHANGED[name]
    for path in copy.rglob("workers.py"):
        compile(path.read_text(), str(path), "exec")


@pytest.mark.parametrize("name", sorted(BREAKS))
def test_a_break_of_what_is_not_there_any_more_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "other"
    sql = source / "src" / "fencepost" / "store" / "sql"
    sql.mkdir(parents=True)
    for path in (sql / "settle.sql", sql / "claim.sql", sql.parent / "workers.py"):
        path.write_text("-- written anew\n")
    monkeypatch.setattr(broken, "ROOT", source)
    with pytest.raises(CannotBreak, match="is there 0 times"):
        broken_source(name, tmp_path)
