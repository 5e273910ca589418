"""Our warnings where nobody has set up logging, and where somebody has."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap

import pytest

from fencepost.telemetry.unconfigured import describe

SCRIPT = """
import asyncio, logging, sys
from fencepost import Constant, Context, Fencepost, Permanent

app = Fencepost(sys.argv[1])
log = logging.getLogger("fencepost.worker")

@app.job(backoff=Constant(0.05))
async def send_receipt(context: Context, order: int) -> None:
    context.logger.warning("looked at", extra={"order": order})
    if context.attempt == 1:
        raise ConnectionError("no route to the printer")
    raise Permanent("out of paper")

async def main():
    async with app, app.worker():
        handle = await send_receipt.enqueue(7)
        try:
            await handle.result(timeout=20)
        except Exception:
            pass
    # Whoever waits for a result may have it a moment before the worker tells of the attempt.
    log.warning("leases can't be renewed yet", extra={"reason": "gone", "leases": 3})
    log.info("too quiet to be shown")

"""


def run(script: str, database_url: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), database_url],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ended.stderr


def test_without_a_handler_a_warning_says_what_matters(database_url: str) -> None:
    lines = run(SCRIPT + "asyncio.run(main())", database_url).splitlines()
    [first] = [line for line in lines if "attempt 1" in line and line.startswith("job finished")]
    assert first.startswith("job finished: send_receipt ")
    assert first.endswith(" failed in attempt 1, to be tried again in 0.05 s: ConnectionError: no route to the printer")
    # Where it was raised is what its author wants to see first.
    assert "Traceback (most recent call last):" in lines
    [last] = [line for line in lines if "attempt 2" in line and line.startswith("job finished")]
    assert last.endswith(" failed for good in attempt 2, now failed: Permanent: out of paper")
    assert "leases can't be renewed yet (reason: gone, leases: 3)" in lines
    assert [line for line in lines if line.startswith("looked at (") and line.endswith("order: 7)")]
    assert "too quiet" not in "".join(lines)


@pytest.mark.slow
def test_a_program_that_logs_is_left_alone(database_url: str) -> None:
    """Whether it says so before or after, and for all loggers or only for ours."""
    for setting in (
        "logging.basicConfig(format='%(message)s')\nasyncio.run(main())",
        "logging.getLogger('fencepost').addHandler(logging.StreamHandler())\nasyncio.run(main())",
        "app._producer.clients\nlogging.basicConfig(format='%(message)s')\nasyncio.run(main())",
    ):
        lines = run(SCRIPT + setting, database_url).splitlines()
        assert lines == ["looked at", "job finished"] * 2 + ["leases can't be renewed yet"], setting
    assert run(SCRIPT + "logging.lastResort = None\nasyncio.run(main())", database_url) == ""


def test_what_a_line_says() -> None:
    def line(message: str, **fields: object) -> str:
        return describe(logging.makeLogRecord({"msg": message, **fields}))

    attempt = {"job_id": "id", "job_type": "t", "attempt": 3}
    assert line("handler does not stop", job_id="id") == "handler does not stop (job_id: id)"
    assert line("nothing else") == "nothing else"
    timed_out = line(
        "job finished", **attempt, outcome="timed_out", status="dead_letter", error="5 s", error_type="TimedOut"
    )
    assert timed_out == "job finished: t id timed out in attempt 3, now dead_letter: TimedOut: 5 s"
    assert (
        line("job finished", **attempt, outcome="lost", status=None) == "job finished: t id lost its lease in attempt 3"
    )
    assert line("bad", traceback="Traceback:\n  x\n") == "bad\nTraceback:\n  x"
