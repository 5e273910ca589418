"""
Runs the tests of the store through a PgBouncer, in session mode and in transaction mode.

    python -m tests.pooled [--if-installed] [MODE]

They are those whose behaviour can depend on the connection: what runs in more than one
statement, is cancelled, waits for others, or listens. That a statement does the same
through a pooler as without one is tested by the rest of them elsewhere.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests import pgbouncer

BOTH = ["tests/store/test_database.py", "tests/store/test_hints.py", "tests/store/test_merging.py"]
TESTS = {
    "session": BOTH,
    "transaction": [
        *BOTH,
        "tests/store/test_completion.py",
        "tests/store/test_races.py",
    ],
}


def main(arguments: list[str]) -> int:
    """Run them; returns the worst exit code."""
    if not pgbouncer.is_installed():
        said = f"NOT RUN: the store behind a pooler. {pgbouncer.MISSING}"
        print(said, file=sys.stderr)
        return 0 if "--if-installed" in arguments else 2
    modes = [mode for mode in TESTS if mode in arguments] or list(TESTS)
    worst = 0
    for mode in modes:
        print(f"the store again, through PgBouncer in {mode} mode")
        command = [sys.executable, "-m", "pytest", "--numprocesses", "2", "--dist", "worksteal", "-m", "not direct"]
        ended = subprocess.run([*command, *TESTS[mode]], env={**os.environ, "TEST_POOLER": mode}, check=False)
        worst = max(worst, ended.returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
