"""
What tests of programs that use fencepost need.

    Kit         an app on a test's database: what is enqueued, run it all, move the clock
    run_inline  one job, here and now, without a database
    recording   enqueues that store nothing and are remembered
    plugin      pytest's fixtures: a database for each test, and a kit on it

Importing this costs nothing; the parts are loaded when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencepost.testing.draining import HandlerFailed
    from fencepost.testing.inline import run_inline, run_inline_sync
    from fencepost.testing.kit import Kit, MakeKit
    from fencepost.testing.matching import Waiting
    from fencepost.testing.recording import Recording, recording
    from fencepost.testing.report import Ran, Report

__all__ = [
    "HandlerFailed",
    "Kit",
    "MakeKit",
    "Ran",
    "Recording",
    "Report",
    "Waiting",
    "recording",
    "run_inline",
    "run_inline_sync",
]

_PLACES = {
    "HandlerFailed": "draining",
    "Kit": "kit",
    "MakeKit": "kit",
    "Ran": "report",
    "Recording": "recording",
    "Report": "report",
    "Waiting": "matching",
    "recording": "recording",
    "run_inline": "inline",
    "run_inline_sync": "inline",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    # The function `recording` has the name of its module, which the import has just put here.
    globals()[name] = found
    return found
