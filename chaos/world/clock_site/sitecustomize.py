"""
Set this process's clock by a number in a file.

Python imports a module of this name at its start from the first place on its path that has
one; `clocks.Clock` puts this folder there. Only clocks that tell the time of day go wrong;
`time.monotonic` and its kind don't, as no machine's do.

Imports nothing of ours: it runs before everything, in programs that know nothing of it.
"""

from __future__ import annotations

import datetime
import gc
import importlib
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

VARIABLE = "CHAOS_CLOCK_FILE"


def _offset_reader(path: str) -> Callable[[], int]:
    with open(path, "rb") as file:
        memory = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    unpack = struct.Struct("=q").unpack_from

    def read() -> int:
        nanoseconds: int = unpack(memory)[0]
        return nanoseconds

    return read


def install(path: str) -> None:
    """Add the nanoseconds that *path* holds, at each look, to what every clock of the day says."""
    offset = _offset_reader(path)
    true_ns, true_clock, true_clock_ns = time.time_ns, time.clock_gettime, time.clock_gettime_ns
    true_gmtime, true_localtime, true_strftime = time.gmtime, time.localtime, time.strftime

    def now_ns() -> int:
        return true_ns() + offset()

    def now() -> float:
        return (true_ns() + offset()) / 1e9

    def clock(which: int) -> float:
        return now() if which == time.CLOCK_REALTIME else true_clock(which)

    def clock_ns(which: int) -> int:
        return now_ns() if which == time.CLOCK_REALTIME else true_clock_ns(which)

    def strftime(form: str, moment: Any = None, /) -> str:
        return true_strftime(form, true_localtime(now()) if moment is None else moment)

    time.time, time.time_ns = now, now_ns
    time.clock_gettime, time.clock_gettime_ns = clock, clock_ns
    time.strftime = strftime
    time.gmtime = lambda moment=None, /: true_gmtime(now() if moment is None else moment)
    time.localtime = lambda moment=None, /: true_localtime(now() if moment is None else moment)
    _install_datetime(now)


def _install_datetime(now: Callable[[], float]) -> None:
    """
    Change the class itself: a subclass in its place would be another type to whoever compares types.

    Its methods are in a table that Python shows read-only; the table itself is found behind that view.
    """
    utc = datetime.timezone.utc  # noqa: UP017 - the programs may be older than we

    def now_method(cls: Any, tz: datetime.tzinfo | None = None) -> Any:
        return cls.fromtimestamp(now(), tz)

    def utcnow_method(cls: Any) -> Any:
        return cls.fromtimestamp(now(), utc).replace(tzinfo=None)

    def today_method(cls: Any) -> Any:
        return cls.fromtimestamp(now())

    methods = {"now": now_method, "utcnow": utcnow_method, "today": today_method}
    for kind, names in ((datetime.datetime, methods), (datetime.date, {"today": today_method})):
        table: Any = gc.get_referents(kind.__dict__)[0]
        table.update({name: classmethod(method) for name, method in names.items()})
    import ctypes

    for kind in (datetime.datetime, datetime.date):
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _import_the_usual() -> None:
    """Some systems have a module of this name; it is still wanted."""
    own = os.path.dirname(os.path.abspath(__file__))
    path, this = sys.path, sys.modules.pop("sitecustomize", None)
    sys.path = [place for place in path if os.path.abspath(place) != own]
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        if this is not None:
            sys.modules["sitecustomize"] = this
    finally:
        sys.path = path


if __name__ == "sitecustomize":
    if os.environ.get(VARIABLE):
        install(os.environ[VARIABLE])
    _import_the_usual()
