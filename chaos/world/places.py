"""Where a world's files go."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
NEEDED_BYTES = 2 * 1024**3


def make_folder(prefix: str = "fencepost-chaos-") -> Path:
    """
    Make an empty folder that other accounts may pass through; whoever asked removes it.

    In memory where there are 2 GB to spare, which makes a failover three times as fast:
    copying a server is making a thousand files. Processes are killed here, never machines,
    so that a disk would make nothing safer. Else where temporary files go.
    """
    base = None
    if os.access(SHARED_MEMORY, os.W_OK) and shutil.disk_usage(SHARED_MEMORY).free > NEEDED_BYTES:
        base = SHARED_MEMORY
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    folder.chmod(0o711)
    return folder
