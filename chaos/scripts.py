"""The parts that jobs play: what each does, and how it must end whatever happens around it."""

from __future__ import annotations

import random
from typing import Literal

import msgspec

Door = Literal["http", "bulk", "library", "sql", "rollback"]
PATIENT = 100
"""Attempts of a job that has to complete in the end: each kill of its worker costs one."""
UNIQUE_KEYS = tuple(f"only {number}" for number in range(1, 13))


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """One part."""

    name: str
    weight: float
    """How often it is played, in relation to the others."""
    type: str = "play"
    ends: tuple[str, ...] = ("completed",)
    """The statuses it may end in."""
    max_attempts: int = PATIENT
    uses_all: bool = False
    """Its attempts are exactly max_attempts in the end."""
    times: tuple[int, int] = (0, 0)
    """How many tokens or attempts go wrong first: drawn from this range."""
    timeout: float | None = None
    delay: tuple[float, float] | None = None
    priority: tuple[int, int] | None = None
    unique: bool = False
    cancels: bool = False


SCRIPTS: dict[str, Script] = {
    script.name: script
    for script in (
        Script(name="quick", weight=46),
        Script(name="probe", weight=0),
        Script(name="linger", weight=0.5, priority=(100, 100)),
        Script(name="plain", weight=10, type="play_plain"),
        Script(name="slow", weight=3),
        Script(name="retry", weight=6, times=(1, 3)),
        Script(name="poison", weight=3, ends=("dead_letter",), max_attempts=3, uses_all=True),
        Script(name="permanent", weight=3, ends=("failed",)),
        Script(name="snooze", weight=4, times=(1, 3)),
        Script(name="effect", weight=8),
        Script(name="large", weight=2),
        Script(name="scheduled", weight=5, delay=(0.5, 4.0)),
        Script(name="priority", weight=5, priority=(1, 100)),
        Script(name="unique", weight=3, unique=True),
        Script(name="cancel", weight=2, ends=("cancelled", "completed"), cancels=True),
        Script(name="timeout", weight=0.6, ends=("dead_letter",), max_attempts=2, uses_all=True, timeout=0.4),
        Script(name="stubborn", weight=0.4, ends=("dead_letter",), max_attempts=2, uses_all=True, timeout=0.4),
        Script(name="child", weight=0.4, type="play_in_child"),
        Script(name="child_dies", weight=0.3, type="play_in_child", times=(1, 1)),
        Script(name="block", weight=0.15),
        Script(name="block_thread", weight=0.3, type="play_plain"),
        Script(name="exit", weight=0.04, times=(1, 1)),
        Script(name="segfault", weight=0.02, times=(1, 1)),
        Script(name="kill_self", weight=0.04, times=(1, 2)),
        Script(name="crash_always", weight=0.02, ends=("dead_letter",), max_attempts=2, uses_all=True),
    )
}
"""By name."""

_NAMES = list(SCRIPTS)
_WEIGHTS = [SCRIPTS[name].weight for name in _NAMES]


class Casting(msgspec.Struct, frozen=True, kw_only=True):
    """One job to hand in: a script, and what was drawn for it."""

    key: str
    script: Script
    times: int = 0
    delay: float = 0.0
    priority: int = 0
    unique: str | None = None

    @property
    def payload(self) -> dict[str, object]:
        """The payload of its job."""
        return {"script": self.script.name, "key": self.key, "times": self.times}

    def as_json(self) -> dict[str, object]:
        """The job as the HTTP API takes it, without its key."""
        job: dict[str, object] = {
            "type": self.script.type,
            "payload": self.payload,
            "max_attempts": self.script.max_attempts,
            "priority": self.priority,
        }
        if self.script.timeout is not None:
            job["timeout"] = f"{self.script.timeout:g}s"
        if self.delay:
            job["delay"] = f"{self.delay:.3f}s"
        if self.unique is not None:
            job["unique"] = {"key": self.unique}
        return job


def cast(draw: random.Random, key: str, *, name: str | None = None) -> Casting:
    """Draw a job. All that decides how it ends is in it."""
    script = SCRIPTS[name or draw.choices(_NAMES, _WEIGHTS)[0]]
    return Casting(
        key=key,
        script=script,
        times=draw.randint(*script.times),
        delay=round(draw.uniform(*script.delay), 3) if script.delay else 0.0,
        priority=draw.randint(*script.priority) if script.priority else 0,
        unique=draw.choice(UNIQUE_KEYS) if script.unique else None,
    )
