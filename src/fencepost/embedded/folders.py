"""Where data and sockets go, and how to make files there that nobody else can touch."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

from fencepost.embedded.privileges import Identity
from fencepost.errors import EmbeddedError

SOCKET_FOLDER_PREFIX = "fencepost-"
SOCKET_PORT = 5432
"""Not a port, only the last part of the socket's name."""
LONGEST_SOCKET_PATH = 103


def default_data_dir() -> Path:
    """
    Return where data goes when nobody said: `/var/lib/fencepost` for root, else in the
    user's own folder for data.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/fencepost")
    named = os.environ.get("XDG_DATA_HOME", "")
    try:
        base = Path(named) if named.startswith("/") else Path.home() / ".local" / "share"
    except RuntimeError:
        raise EmbeddedError("This user has no home folder. Set DATA_DIR to a folder for the data.") from None
    return base / "fencepost"


def make_data_dir(folder: Path) -> None:
    """
    Make the data directory and what leads to it; leave alone what is there.

    Root's may be passed through, because the server may have to be somebody else. What
    will be inside is closed in either case.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, exist_ok=True)


def open_private(path: Path, flags: int) -> int:
    """
    Open a file of ours in the data directory, only for its owner, never through a link.

    What root makes belongs to the folder's owner, who could not start again otherwise.
    """
    descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


def make_socket_folder(data_dir: Path, identity: Identity) -> Path:
    """
    Make the folder for the socket, with a name that follows from the data directory.

    Not under XDG_RUNTIME_DIR: it goes away when its user logs out, and the server may be
    meant to stay.
    """
    digest = hashlib.sha256(f"{identity.uid} {data_dir}".encode(errors="surrogateescape")).hexdigest()
    for base in ("/tmp", tempfile.gettempdir()):  # noqa: S108 - every folder there is checked
        folder = Path(base, SOCKET_FOLDER_PREFIX + digest[:12])
        if len(os.fsencode(folder / f".s.PGSQL.{SOCKET_PORT}")) > LONGEST_SOCKET_PATH:
            continue
        with contextlib.suppress(PermissionError, FileNotFoundError):
            try:
                _make_private_folder(folder, identity)
            except FileExistsError:  # somebody else's; ours gets a name that can't be foreseen
                folder = Path(tempfile.mkdtemp(prefix=SOCKET_FOLDER_PREFIX, dir=base))
                identity.own(folder)
            return folder
    raise EmbeddedError("No folder for the server's socket: neither /tmp nor TMPDIR lets this user make one.")


def _make_private_folder(path: Path, identity: Identity) -> None:
    """
    Make *path*, or accept it if it is a folder that only *identity* can enter.

    Raises FileExistsError when it is anything else: in /tmp somebody may have been first.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        found = path.lstat()
        closed = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) & 0o077 == 0
        if not closed or found.st_uid not in (identity.uid, os.geteuid()):
            raise
    identity.own(path)
