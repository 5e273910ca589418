"""Clocks that can be wrong, and jump while their processes run: those of the fleet, and those of the servers."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

SITE = Path(__file__).parent / "clock_site"
"""What is put on the processes' path; see `sitecustomize` in it."""
VARIABLE = "CHAOS_CLOCK_FILE"
SOURCE = Path(__file__).parent / "server_clock.c"
"""What a server loads before everything else. There is no other way to set one server's clock alone."""
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

    def preloaded(self, library: Path) -> dict[str, str]:
        """What makes any other program go by this clock; *library* comes from `build_library`."""
        return {"LD_PRELOAD": str(library), VARIABLE: str(self.file)}

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


def build_library() -> Path | None:
    """
    Compile `server_clock.c` into a folder of its own, which whoever asked removes.

    None where there is no C compiler, or what it makes is not obeyed: then the servers'
    clocks can't be set, and nothing of that can be covered.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    # Not in the world's folder: programs may be forbidden in /dev/shm.
    folder = Path(tempfile.mkdtemp(prefix="fencepost-clock-"))
    folder.chmod(0o711)
    library = folder / "server_clock.so"
    built = subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], capture_output=True, check=False
    )
    if built.returncode == 0 and _is_obeyed(library, folder):
        library.chmod(0o644)
        return library
    shutil.rmtree(folder, ignore_errors=True)
    return None


def _is_obeyed(library: Path, folder: Path) -> bool:
    clock = Clock(folder, "trial")
    try:
        clock.set(-1.5e9)
        date = subprocess.run(
            ["date", "-u", "+%Y"], env={**os.environ, **clock.preloaded(library)}, capture_output=True, check=False
        )
        return date.returncode == 0 and date.stdout.strip().isdigit() and int(date.stdout) < 2000
    finally:
        clock.close()
