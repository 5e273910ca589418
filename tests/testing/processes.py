"""Jobs for child processes, which import them from here."""

from __future__ import annotations

from fencepost import Fencepost

app = Fencepost("postgresql://nobody@127.0.0.1:1/nowhere")


@app.job(process=True, max_attempts=1)
def divide(by: int) -> float:
    """Compute something."""
    return 12 / by
