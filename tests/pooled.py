"""
Runs the tests of the store through a PgBouncer, in session mode and in transaction mode.

    python -m tests.pooled [--all] [--if-installed] [MODE]

Without `--all` it is as much as takes a minute for each mode, those first whose behaviour
depends most on the connection: what runs in more than one statement, is cancelled, waits for
others, or listens. Tests that are about a connection to the server itself are marked `direct`.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests import pgbouncer

MODES = ["session", "transaction"]
EVERYTHING = ["tests/store", "tests/migrations/test_migrate.py"]
BRIEF = [
    *(f"tests/store/test_{name}.py" for name in ("completion", "database", "hints", "merging", "races", "fencing")),
    *(f"tests/store/test_{name}.py" for name in ("turn", "queues", "listing", "order", "idempotency", "enqueue")),
    "tests/store/test_state_machine.py",
    "tests/migrations/test_migrate.py",
]


def main(arguments: list[str]) -> int:
    """Run them; returns the worst exit code."""
    if not pgbouncer.is_installed():
        said = f"NOT RUN: the store behind a pooler. {pgbouncer.MISSING}"
        print(said, file=sys.stderr)
        return 0 if "--if-installed" in arguments else 2
    tests = EVERYTHING if "--all" in arguments else BRIEF
    worst = 0
    for mode in [mode for mode in MODES if mode in arguments] or MODES:
        print(f"the store again, through PgBouncer in {mode} mode", flush=True)
        command = [sys.executable, "-m", "pytest", "--numprocesses", "2", "--dist", "worksteal", "-m", "not direct"]
        ended = subprocess.run([*command, *tests], env={**os.environ, "TEST_POOLER": mode}, check=False)
        worst = max(worst, ended.returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
