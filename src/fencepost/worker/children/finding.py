"""Find a job type by the path of its function, in a process that has imported nothing yet."""

from __future__ import annotations

import importlib
import runpy
import sys
import types
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from fencepost.errors import InvalidSettings
from fencepost.types.jobtype import JobType, Kind

MAIN = "__fencepost_main__"
"""What `__main__` is called here, so that `if __name__ == "__main__":` keeps a script from running again."""


@cache
def find(path: str, name: str, main: str | None) -> JobType:
    """
    The job type *name*, whose function is at *path*, `module:qualname`.

    What is there may be the decorated function (anything with a `job_type`), the job type, an
    app that has it, or a plain function of a context and a payload. Raises InvalidSettings,
    and whatever importing the module raises.
    """
    module_name, _, qualname = path.partition(":")
    found: Any = _main(main) if module_name == "__main__" else importlib.import_module(module_name)
    for part in qualname.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise InvalidSettings(
                f"{path!r} is not there in a process of its own: define {name!r} at the top of a module"
            ) from None
    known = getattr(found, "types", None)
    candidates = [found, getattr(found, "job_type", None), known.get(name) if isinstance(known, Mapping) else None]
    for candidate in candidates:
        if isinstance(candidate, JobType):
            return candidate
    if not callable(found):
        raise InvalidSettings(f"{path!r} is a {type(found).__name__}, not a function of a job")
    return JobType(name=name, handler=found, decoder=msgspec.json.Decoder(Any), kind=Kind.PROCESS)


@cache
def _main(file: str | None) -> types.ModuleType:
    """The worker's main script, run under another name. Raises InvalidSettings when it isn't a file."""
    if file is None:
        raise InvalidSettings("functions typed in at a prompt can't run in a process: put them in a module")
    module = types.ModuleType(MAIN)
    # Before it runs: its classes are looked up there.
    sys.modules["__main__"] = sys.modules[MAIN] = module
    module.__dict__.update(runpy.run_path(file, run_name=MAIN))
    return module
