"""The child's stdout and stderr, which belong to its jobs one after the other."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

_NAMES = {"stdout": 1, "stderr": 2}


class Streams:
    """
    Keeps what is printed going to the worker.

    A job may close a stream, or put something of its own in its place: that is no reason for
    its attempt to fail, nor for the next one's print() to.
    """

    def __init__(self) -> None:
        self._spare = {name: os.dup(number) for name, number in _NAMES.items()}
        for name in _NAMES:
            # By lines, so that what was printed before a kill is there.
            getattr(sys, name).reconfigure(line_buffering=True, errors="backslashreplace")

    def flush(self) -> None:
        """Write out what was printed, and put back a stream that can't be used any more. Never raises."""
        for name in _NAMES:
            try:
                getattr(sys, name).flush()
            except Exception:  # noqa: BLE001 - closed, None, or of a class of the job's own
                with contextlib.suppress(Exception):
                    self._put_back(name)

    def _put_back(self, name: str) -> None:
        original: TextIO = getattr(sys, f"__{name}__")
        if original.closed:
            os.dup2(self._spare[name], _NAMES[name])
            original = open(_NAMES[name], "w", buffering=1, errors="backslashreplace")  # noqa: SIM115 - stays open
            setattr(sys, f"__{name}__", original)
        setattr(sys, name, original)
        original.flush()
