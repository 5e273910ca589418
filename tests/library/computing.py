"""A module whose job runs in a child process, which imports it."""

from __future__ import annotations

import os
from datetime import timedelta

from fencepost import Context, Fencepost, Permanent

app = Fencepost("postgresql://nowhere/none")


@app.job(process=True, timeout=20)
def compute(context: Context, span: timedelta, *, fail: bool = False) -> tuple[int, float, str]:
    """Where it runs, and what it was given."""
    if fail:
        raise Permanent("as asked")
    return os.getpid(), span.total_seconds(), context.type
