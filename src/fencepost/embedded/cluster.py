"""Make PostgreSQL's data folder, and judge what an earlier server left in it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fencepost.embedded.binaries import Binaries
from fencepost.embedded.folders import SOCKET_FOLDER_PREFIX
from fencepost.embedded.launch import run
from fencepost.embedded.privileges import Identity
from fencepost.errors import EmbeddedError

NAME = "fencepost"
"""The superuser, and the database."""
TAIL_LINES = 12

_BUILTIN_LOCALE_MAJOR = 17
_LEFTOVER_PATIENCE = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 5.0))


def read_major(data: Path) -> int | None:
    """
    Read which PostgreSQL wrote the folder *data*; None when there isn't one yet.

    Raises EmbeddedError when something else is in its place.
    """
    try:
        return int((data / "PG_VERSION").read_text())
    except FileNotFoundError:
        if not data.exists() or not any(data.iterdir()):
            return None
        reason = "has no PG_VERSION"
    except ValueError:
        reason = "has a damaged PG_VERSION"
    raise EmbeddedError(f"{data} {reason}, so it isn't PostgreSQL's. Set DATA_DIR to another folder.")


def initialise(data: Path, *, binaries: Binaries, identity: Identity, durable: bool) -> None:
    """
    Make the data folder, with its superuser and its database, in one step.

    All is done in a folder beside it that is renamed at the end, so that *data* is
    complete or absent.
    """
    fresh = Path(tempfile.mkdtemp(prefix=f"{data.name}.new-", dir=data.parent))
    try:
        identity.own(fresh)
        _run_initdb(fresh, binaries=binaries, identity=identity, durable=durable)
        _create_database(fresh, binaries=binaries, identity=identity, durable=durable)
        fresh.rename(data)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if durable:
        _sync_folder(data.parent)


def remove_remains(data: Path) -> None:
    """Remove what an interrupted `initialise` left, as far as it can be removed already."""
    for remains in data.parent.glob(f"{data.name}.new-*"):
        shutil.rmtree(remains, ignore_errors=True)


def _run_initdb(fresh: Path, *, binaries: Binaries, identity: Identity, durable: bool) -> None:
    command: list[str | Path] = [binaries.initdb, "-D", fresh, "-U", NAME, "-E", "UTF8", "--auth=trust"]
    command += ["--data-checksums", "--no-instructions", *([] if durable else ["--no-sync"])]
    output = ""
    for locale in _locales(binaries.major):
        succeeded, output = run([*command, *locale], identity=identity, folder=fresh)
        if succeeded:
            return
        if "invalid locale" not in output:
            break
    raise EmbeddedError(_setup_failed(fresh.parent, output))


def _locales(major: int) -> Iterator[list[str]]:
    """Prefer the locale whose sort order no update of the system can change."""
    if major >= _BUILTIN_LOCALE_MAJOR:
        yield ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    else:
        yield ["--locale=C.UTF-8", "--lc-messages=C"]
        yield ["--locale=C"]


def _create_database(fresh: Path, *, binaries: Binaries, identity: Identity, durable: bool) -> None:
    settings = [
        "-c",
        "exit_on_error=on",
        "-c",
        "log_checkpoints=off",
        "-c",
        f"fsync={'on' if durable else 'off'}",
    ]
    command: list[str | Path] = [binaries.postgres, "--single", "-D", fresh, *settings, "postgres"]
    succeeded, output = run(command, identity=identity, folder=fresh, script=f"create database {NAME}\n")
    if not succeeded:
        raise EmbeddedError(_setup_failed(fresh.parent, output))


def _setup_failed(folder: Path, output: str) -> str:
    return (
        f"PostgreSQL could not set up its data in {folder}:\n{tail(output)}\n"
        "Put that right, set DATA_DIR to another folder, "
        "or set DATABASE_URL to a PostgreSQL server that you run."
    )


def tail(output: str) -> str:
    """Keep the last lines of what a program printed, indented, for a message."""
    lines = [line for line in output.splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in lines[-TAIL_LINES:]) or "  (it printed nothing)"


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class PidFile:
    """What a running PostgreSQL writes into `postmaster.pid`, as far as it has got."""

    pid: int
    socket_folder: str
    status: str

    @classmethod
    def read(cls, data: Path) -> PidFile | None:
        try:
            lines = (data / "postmaster.pid").read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return None
        lines += [""] * (8 - len(lines))
        if not re.fullmatch(r"[1-9]\d*", lines[0].strip()):
            return None
        return cls(int(lines[0]), lines[4].strip(), lines[7].strip())


def end_leftover(data: Path) -> int | None:
    """
    End the server that a killed owner left behind, if it is still there.

    On Linux it is already on its way out; elsewhere it learns it now. Returns the pid
    that a dead server's pid file still names. That number may be another process's by
    now, or a dead child's that nobody collected: PostgreSQL itself would take either
    for a living server and refuse to start.

    The caller holds the data directory's lock, so the server has no owner.
    """
    seen = PidFile.read(data)
    if seen is None:
        _remove_unreadable_pid_file(data)
        return None
    if not runs_on(seen.pid, data):
        return seen.pid
    if seen.socket_folder and not Path(seen.socket_folder).name.startswith(SOCKET_FOLDER_PREFIX):
        raise EmbeddedError(
            f"A PostgreSQL server that fencepost didn't start, process {seen.pid}, is using {data}. "
            "Stop it, or set DATABASE_URL to connect to it."
        )
    for number, seconds in _LEFTOVER_PATIENCE:
        with contextlib.suppress(ProcessLookupError):
            os.kill(seen.pid, number)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not runs_on(seen.pid, data):
                left = PidFile.read(data)
                return left.pid if left else None
            time.sleep(0.02)
    raise EmbeddedError(f"An earlier PostgreSQL server on {data}, process {seen.pid}, doesn't stop. End it by hand.")


def _remove_unreadable_pid_file(data: Path) -> None:
    """
    Remove a pid file that names nobody, when no process of a server is left on *data*: all of them work in that folder.

    A machine that lost its power, or a disk that was full, may leave an empty one, and PostgreSQL refuses to start
    beside it for ever. Where processes can't be listed it is left, with PostgreSQL's own words.
    """
    if not Path("/proc/self/cwd").exists():
        return
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cwd").samefile(data):
                return
    (data / "postmaster.pid").unlink(missing_ok=True)


def runs_on(pid: int, data: Path) -> bool:
    """Say whether process *pid* is a living PostgreSQL server on the folder *data*."""
    command = _command_line(pid)
    return f" -D {data} " in f"{command} " and "postgres" in command.partition(" -D ")[0]


def _command_line(pid: int) -> str:
    """Read how *pid* was started; empty for a process that is gone, or dead and not collected."""
    if not Path("/proc/self/cmdline").exists():
        return _command_line_from_ps(pid)
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return os.fsdecode(text.replace(b"\0", b" "))


def _command_line_from_ps(pid: int) -> str:
    command = ["/bin/ps", "-ww", "-o", "args=", "-p", str(pid)]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return os.fsdecode(answer.stdout).strip()
