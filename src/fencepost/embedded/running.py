"""The embedded PostgreSQL of another process: whether it runs, and how to reach it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

from fencepost.embedded.lock import GRACE_SECONDS
from fencepost.errors import EmbeddedError

START_SECONDS = 30.0
"""How long the owner may take to start it."""


def find_running(data_dir: Path) -> tuple[str, int]:
    """
    Return the address of the private PostgreSQL that another process runs in *data_dir*, and that process's id.

    Waits for one that is just starting, so it blocks. The address stays the same when
    its owner starts it again. Raises EmbeddedError when nobody runs one there, or it
    can't be seen by this user.
    """
    data_dir = data_dir.expanduser().absolute().resolve()
    gone_at = time.monotonic() + GRACE_SECONDS
    ready_by = time.monotonic() + START_SECONDS
    while True:
        owner = _owner(data_dir)
        if owner is not None and owner[0] is not None:
            return owner[0], owner[1]
        if time.monotonic() > (gone_at if owner is None else ready_by):
            raise EmbeddedError(
                f"No process runs the private PostgreSQL in {data_dir}. Start `fencepost serve` first; or set DATA_DIR "
                "to the folder of one that runs, which it printed at its start, or DATABASE_URL to your PostgreSQL."
            )
        time.sleep(0.05)


def _owner(data_dir: Path) -> tuple[str | None, int] | None:
    """What the owner says: the address (None until it answers) and its process id. None when there is no owner."""
    try:
        descriptor = os.open(data_dir / "fencepost.lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EmbeddedError(f"The private PostgreSQL in {data_dir} can't be looked at: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        try:
            holder = json.loads(os.pread(descriptor, 4096, 0))
            return holder["dsn"], int(holder["pid"])
        except (ValueError, KeyError, TypeError):
            return None, 0
    finally:
        os.close(descriptor)
    return None
