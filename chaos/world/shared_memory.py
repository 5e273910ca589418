"""Remove the System V segment of a PostgreSQL whose processes were all killed: nobody else would."""

from __future__ import annotations

import ctypes
from pathlib import Path

_IPC_RMID = 0
_KEY_LINE = 6
"""Of `postmaster.pid`: the key and the id of the segment."""


def remove_segment(data: Path) -> bool:
    """
    Remove the segment that the server on the data folder *data* left; say whether there was one.

    Only when all its processes are gone: a segment in use would be removed as soon as they are.
    """
    try:
        _, identifier = (data / "postmaster.pid").read_text().splitlines()[_KEY_LINE].split()
    except (OSError, IndexError, ValueError):
        return False
    return bool(ctypes.CDLL(None).shmctl(ctypes.c_int(int(identifier)), ctypes.c_int(_IPC_RMID), None) == 0)
