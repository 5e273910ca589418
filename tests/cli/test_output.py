"""What commands show while they work."""

from __future__ import annotations

import io
import sys
import time

import pytest

from fencepost.cli import output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal_that_ends_full(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with output.progress(30_000, "drain 1/3 running") as advance:
        for _ in range(30):
            advance("", 1000)
    assert "30000/30000" in terminal.getvalue()
    assert terminal.getvalue().count("drain 1/3 running") < 10, "drawn at intervals, not at every step"


def test_progress_is_a_line_now_and_then_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with output.progress(4000, "drain 1/3 running") as advance:
        advance("", 1000)
        now += output.LINE_SECONDS
        advance("", 1000)
        advance("", 1000)
    assert capsys.readouterr().err == "drain 1/3 running: 2,000 of 4,000, 400/s\n"
    with output.progress(None, "waiting") as advance:
        now += output.LINE_SECONDS
        advance("3 left")
    assert capsys.readouterr().err == "waiting: 3 left\n"
