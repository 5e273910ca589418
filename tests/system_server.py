"""
Runs the tests of the store on this machine's own PostgreSQL too, where it has one.

    python -m tests.system_server

The whole suite runs on the embedded PostgreSQL; what depends on the server's version is
in the store, so that part runs again on every other one that is found here.
"""

from __future__ import annotations

import os
import subprocess
import sys

from fencepost.embedded import find_all_binaries, find_binaries

FOLDERS = ["tests/store", "tests/migrations", "tests/properties"]


def main() -> int:
    """Run them; returns the worst exit code."""
    usual = find_binaries().folder
    others = [binaries for binaries in find_all_binaries() if binaries.folder != usual]
    if not others:
        print("no other PostgreSQL on this machine; the embedded one was enough")
    worst = 0
    for binaries in others:
        print(f"the store again, on PostgreSQL {binaries.version} of {binaries.folder}")
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "--numprocesses", "2", "--dist", "worksteal", *FOLDERS],
            env={**os.environ, "TEST_BINARIES": str(binaries.folder)},
            check=False,
        )
        worst = max(worst, ended.returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
