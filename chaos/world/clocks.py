"""Clocks of the fleet's processes that can be wrong, and jump while they run."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path

SITE = Path(__file__).parent / "clock_site"
"""What is put on the processes' path; see `sitecustomize` in it."""
VARIABLE = "CHAOS_CLOCK_FILE"
_NUMBER = struct.Struct("=q")


class Clock:
    """
    The time of day as a group of Python processes sees it.

    The offset is in memory that the processes share, so a jump is seen at their very next look.
    """

    def __init__(self, folder: Path, name: str) -> None:
        """Keep the offset in the file *name*`.clock` of *folder*, which exists. It begins at 0."""
        self.file = folder.resolve() / f"{name}.clock"
        self.file.write_bytes(_NUMBER.pack(0))
        with self.file.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _NUMBER.size)

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """*base*, or our own environment, with what makes a Python process go by this clock."""
        given = dict(os.environ if base is None else base)
        path = [str(SITE), *([given["PYTHONPATH"]] if given.get("PYTHONPATH") else [])]
        return {**given, "PYTHONPATH": os.pathsep.join(path), VARIABLE: str(self.file)}

    @property
    def offset(self) -> float:
        """How many seconds the processes are ahead of the true time; negative when they are behind."""
        nanoseconds: int = _NUMBER.unpack_from(self._memory)[0]
        return nanoseconds / 1e9

    def set(self, seconds: float) -> None:
        """Be *seconds* ahead of the true time from now on; 0 is right again."""
        _NUMBER.pack_into(self._memory, 0, round(seconds * 1e9))

    def jump(self, seconds: float) -> None:
        """Jump *seconds* ahead of what the clock says now, or back."""
        self.set(self.offset + seconds)

    def close(self) -> None:
        """Let go of the file and remove it. Processes that have it go on with the last offset."""
        self._memory.close()
        self.file.unlink(missing_ok=True)
