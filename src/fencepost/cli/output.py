"""What commands say while they work: on stderr, so that stdout pipes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

LINE_SECONDS = 5.0
"""How often progress is written where no bar can be drawn."""


@contextmanager
def progress(total: int | None, label: str) -> Iterator[Callable[[str], None]]:
    """
    Show how far something is: a bar on a terminal, else a line now and then.

    Yields a function to call once a step, with a remark to show. Without a *total* only
    the remarks are shown.
    """
    if sys.stderr.isatty() and total is not None:
        with click.progressbar(length=total, label=f"{label:10}", show_pos=True, file=sys.stderr) as bar:
            yield lambda remark: bar.update(1)
        return
    started_at = said_at = time.monotonic()
    done = 0

    def advance(remark: str) -> None:
        nonlocal done, said_at
        done += 1
        now = time.monotonic()
        if now - said_at >= LINE_SECONDS:
            said_at = now
            how_far = remark or f"{done:,} of {total:,}, {done / (now - started_at):,.0f}/s"
            click.echo(f"{label}: {how_far}", err=True)

    yield advance
