"""Go's grammar of durations, and writing them so that they are read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.domain.durations import LONGEST_SECONDS, format_duration, parse_duration

READ = {
    "0": 0,
    "0s": 0,
    "5s": 5,
    "1.5h": 5400,
    "1m30s": 90,
    "90s": 90,
    "250ms": 0.25,
    "1h15m30.918273645s": 4530.918273645,
    ".5s": 0.5,
    "1.s": 1,
    "10us": 1e-5,
    "10µs": 1e-5,  # U+00B5
    "10μs": 1e-5,  # U+03BC
    "52763797000ns": 52.763797,
    "2d": 172_800,
    "1h1h": 7200,
    "0.000000001s": 1e-9,
    "36500d": LONGEST_SECONDS,
}

REFUSED = [
    "", " ", "5", "5 s", " 5s", "5s ", "-5s", "+5s", "s", ".", ".s", "1..5s", "1,5s", "1e3s", "five seconds",
    "5S", "5w", "5y", "5mo", "1m 30s", "5s\n", "\n5s", "0x5s", "٣s", "５s", "5ｓ", "NaN", "inf", "infs", "00", "0.0",
    "36501d", "9" * 90 + "h", "1s" * 60, "5s\x00", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize(("text", "seconds"), READ.items())
def test_reads(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12, abs=0)


@pytest.mark.parametrize("text", REFUSED)
def test_refuses_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration; write|is longer than a hundred years"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (1, "1s"), (59, "59s"), (60, "1m"), (90, "90s"), (3600, "1h"), (5400, "90m"), (86400, "1d"),
        (0.25, "250ms"), (0.001, "1ms"), (1.5, "1.5s"), (1_000_001, "1000001s"), (1.23456789, "1.23456789s"),
        (123_456.5, "123456.5s"), (1e-9, "0.000000001s"),
    ],
)  # fmt: skip
def test_writes(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.one_of(st.floats(min_value=1e-9, max_value=LONGEST_SECONDS), st.integers(0, int(LONGEST_SECONDS))))
def test_what_is_written_is_read_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.text(alphabet="0123456789.dhmsnuµ-+ e", max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError:
        return
    assert 0 <= seconds <= LONGEST_SECONDS
