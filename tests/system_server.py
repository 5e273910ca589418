"""
Runs the tests of the store on this machine's own PostgreSQL too, where it has one.

    python -m tests.system_server

The whole suite runs on the embedded PostgreSQL; what depends on the server's version is
in the store, so that part runs again on every other one that is found here. For versions
that aren't, see fetched_servers.py.
"""

from __future__ import annotations

import os
import subprocess
import sys

from fencepost.embedded import Binaries, find_all_binaries, find_binaries

FOLDERS = ["tests/store", "tests/migrations", "tests/properties"]


def main() -> int:
    """Run them; returns the worst exit code."""
    usual = find_binaries().folder
    others = [binaries for binaries in find_all_binaries() if binaries.folder != usual]
    if not others:
        print("no other PostgreSQL on this machine; the embedded one was enough")
    return max(map(run_on, others), default=0)


def run_on(binaries: Binaries) -> int:
    """Run the tests of the store on this server; returns the exit code."""
    print(f"the store again, on PostgreSQL {binaries.version} of {binaries.folder}", flush=True)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "--numprocesses", "2", "--dist", "worksteal", *FOLDERS],
        env={**os.environ, "TEST_BINARIES": str(binaries.folder)},
        check=False,
    )
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main())
