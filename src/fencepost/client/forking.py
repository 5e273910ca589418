"""
What a forked child has no part in: locks that a thread of its parent held, connections, loops.

Only the thread that forks goes on in the child, so a lock of another is never released there.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forgetful(Protocol):
    """What makes a new start in a child."""

    def forget(self) -> None:
        """Have new locks, and nothing of the parent's. Called in the child, by its only thread."""
        ...


_owners: weakref.WeakSet[Forgetful] = weakref.WeakSet()


def forget_in_children(owner: Forgetful) -> None:
    """Have *owner* forget in every child that is forked from now on, for as long as it exists."""
    _owners.add(owner)


def _forget_all() -> None:
    for owner in list(_owners):
        owner.forget()


os.register_at_fork(after_in_child=_forget_all)
