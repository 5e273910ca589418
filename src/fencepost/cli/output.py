"""What commands say while they work: on stderr, so that stdout pipes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import click

LINE_SECONDS = 5.0
"""How often progress is written where no bar can be drawn."""
BAR_SECONDS = 0.1
"""How often a bar is drawn: drawing takes longer than many a step, and what is shown is often being measured."""


class Advance(Protocol):
    """Says that so many steps are done, with a remark to show."""

    def __call__(self, remark: str, steps: int = 1) -> None:
        """Count *steps* as done."""
        ...


@contextmanager
def progress(total: int | None, label: str) -> Iterator[Advance]:
    """
    Show how far something is: a bar on a terminal, else a line now and then.

    Yields a function to call once a step, or with the number of steps. Without a *total*
    only the remarks are shown.
    """
    if sys.stderr.isatty() and total is not None:
        with click.progressbar(length=total, label=f"{label:10}", show_pos=True, file=sys.stderr) as bar:
            drawing = _Bar(bar)
            try:
                yield drawing
            finally:
                drawing.draw()
        return
    yield _Lines(total, label)


class _Bar:
    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._undrawn = 0
        self._drawn_at = time.monotonic()

    def __call__(self, remark: str, steps: int = 1) -> None:
        self._undrawn += steps
        if time.monotonic() - self._drawn_at >= BAR_SECONDS:
            self.draw()

    def draw(self) -> None:
        """Draw what is done."""
        steps, self._undrawn = self._undrawn, 0
        self._bar.update(steps)
        self._drawn_at = time.monotonic()


class _Lines:
    def __init__(self, total: int | None, label: str) -> None:
        self._total = total
        self._label = label
        self._done = 0
        self._started_at = self._said_at = time.monotonic()

    def __call__(self, remark: str, steps: int = 1) -> None:
        self._done += steps
        now = time.monotonic()
        if now - self._said_at < LINE_SECONDS:
            return
        self._said_at = now
        of = "" if self._total is None else f" of {self._total:,}"
        how_far = remark or f"{self._done:,}{of}, {self._done / (now - self._started_at):,.0f}/s"
        click.echo(f"{self._label}: {how_far}", err=True)
