"""
Whether loops go round.

Each loop that must not stop has a `Pulse`, where it notes that it has come round, which
costs it an attribute. Somebody outside of it looks at them all about once a second
(`Vitals.look`): a loop that has work and hasn't come round for longer than its patience
is stuck. That is said once in the log, in the metrics, and by /readyz.

What is stuck isn't ended or started anew: every loop goes on by itself once what holds
it up is over, and work that is under way can't be told from work that never ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

import msgspec

from fencepost.logger import get_logger

log = get_logger("fencepost.health")

BLOCKED_SECONDS = 5.0
"""An event loop that hasn't come round for this long is blocked: what runs in it can't be blamed for standing still."""
ERROR_CHARACTERS = 300
"""How much of a loop's last error is told."""


class LoopState(msgspec.Struct, frozen=True, kw_only=True):
    """How a loop is, at one moment."""

    name: str
    age_seconds: float
    """How long ago it came round; 0 while it has nothing to do."""
    is_vital: bool = True
    """Whether a process in which it is stuck doesn't do what it is there for."""
    trouble: str | None = None
    """A sentence, if it is stuck: which loop, since when, and its last error."""


class Pulse:
    """
    The pulse of one loop.

    It belongs to the loop's thread; others only read it. *task* says in a few words what the
    loop does, *advice* what somebody who finds it stuck should do. Who only has work at
    times starts with *idle*, and says so with `rest`.
    """

    __slots__ = (
        "advice",
        "error",
        "idle",
        "in_loop",
        "is_told",
        "is_vital",
        "name",
        "patience_seconds",
        "task",
        "turned_at",
    )

    def __init__(
        self,
        name: str,
        *,
        task: str,
        patience_seconds: float,
        advice: str,
        is_vital: bool = True,
        in_loop: bool = True,
        idle: bool = False,
    ) -> None:
        self.name = name
        self.task = task
        self.patience_seconds = patience_seconds
        self.advice = advice
        self.is_vital = is_vital
        self.in_loop = in_loop
        """Whether it runs in the event loop whose beat the same `Vitals` hears."""
        self.idle = idle
        self.turned_at = time.monotonic()
        """When it last came round, or got something to do. Loops that are in a hurry set it themselves."""
        self.error: str | None = None
        """What it last met, since it last came round."""
        self.is_told = False
        """That it is stuck is in the log."""

    def turned(self) -> None:
        """It has come round, and goes on."""
        self.turned_at = time.monotonic()
        self.error = None

    def rest(self) -> None:
        """It has nothing to do, for as long as that may be."""
        self.idle = True
        self.error = None

    def wake(self) -> None:
        """It has something to do, from now on."""
        self.turned_at = time.monotonic()
        self.idle = False

    def failed(self, error: BaseException) -> None:
        """It did not come round, for this reason."""
        self.error = (str(error) or type(error).__name__)[:ERROR_CHARACTERS]


class Vitals:
    """
    The pulses of one thread's loops, and the beat of the event loop that they share.

    `look` is called by somebody who doesn't run there. *blocked_patience_seconds* is how long
    the event loop itself may stand still: a handler that blocks it stops the claims, but is
    within its rights until its time is up.
    """

    def __init__(self, *, blocked_patience_seconds: float | None = None) -> None:
        self._pulses: list[Pulse] = []
        self._beat: Pulse | None = None
        if blocked_patience_seconds is not None:
            self._beat = Pulse(
                "event_loop",
                task="runs the handlers, and everything else of this worker",
                patience_seconds=blocked_patience_seconds,
                advice="a handler blocks it: make that a plain function, which gets a thread, or process=True",
            )
        self._resumed_at = 0.0
        self._looked_at = time.monotonic()
        self._is_blocked = False
        self._lock = threading.Lock()
        self._is_over = False

    def add(self, pulse: Pulse) -> Pulse:
        """Look at this one too."""
        self._pulses.append(pulse)
        return pulse

    def beat(self) -> None:
        """The event loop comes round. To be called from it, every second or so."""
        if self._beat is None:
            return
        now = time.monotonic()
        if now - self._beat.turned_at > BLOCKED_SECONDS:
            # Nobody has had a chance since then.
            self._resumed_at = now
        self._beat.turned_at = now

    def end(self) -> None:
        """The loops are being stopped on purpose: none is stuck any more."""
        self._is_over = True

    def look(self) -> list[LoopState]:
        """How all of them are. What has got stuck since the last look is logged, and what goes on again."""
        if self._is_over:
            return []
        with self._lock:
            now = time.monotonic()
            if now - self._looked_at > BLOCKED_SECONDS:
                # The whole process stood still, or nobody looked: they get their time.
                self._resumed_at = max(self._resumed_at, now)
            self._looked_at = now
            return list(self._judge(now))

    def _judge(self, now: float) -> Iterable[LoopState]:
        blocked = False
        if self._beat is not None:
            age = now - self._beat.turned_at
            blocked = age > BLOCKED_SECONDS
            self._tell_blocked(blocked, age)
            yield self._state(self._beat, age)
        for pulse in self._pulses:
            age = 0.0 if pulse.idle else now - max(pulse.turned_at, self._resumed_at)
            yield self._state(pulse, max(age, 0.0), excused=blocked and pulse.in_loop)

    def _state(self, pulse: Pulse, age: float, *, excused: bool = False) -> LoopState:
        stuck = age > pulse.patience_seconds and not excused
        trouble = sentence(pulse, age) if stuck else None
        if stuck != pulse.is_told and not excused:
            pulse.is_told = stuck
            if trouble is not None:
                log.error("a loop is stuck", extra={"loop": pulse.name, "reason": trouble, "advice": pulse.advice})
            else:
                log.warning("a loop goes on again", extra={"loop": pulse.name})
        return LoopState(name=pulse.name, age_seconds=round(age, 3), is_vital=pulse.is_vital, trouble=trouble)

    def _tell_blocked(self, blocked: bool, age: float) -> None:
        if blocked and not self._is_blocked:
            log.warning(
                "a handler blocks the worker's event loop: nothing else runs there, and nothing is claimed",
                extra={"blocked_seconds": round(age, 1)},
            )
        self._is_blocked = blocked


def sentence(pulse: Pulse, age: float) -> str:
    """Say of a stuck loop which it is, since when, and what it last met."""
    since = datetime.now(UTC) - timedelta(seconds=age)
    text = (
        f"the {pulse.name.replace('_', ' ')} ({pulse.task}) has not come round since {since:%Y-%m-%dT%H:%M:%SZ}, "
        f"{age:.0f} seconds ago"
    )
    return f"{text}; its last error: {pulse.error}" if pulse.error else text


def worst(states: Iterable[LoopState]) -> list[LoopState]:
    """One state a name, the worst: what several processes say of themselves."""
    by_name: dict[str, LoopState] = {}
    for state in states:
        known = by_name.get(state.name)
        if known is None or (state.trouble is not None, state.age_seconds) > (
            known.trouble is not None,
            known.age_seconds,
        ):
            by_name[state.name] = state
    return list(by_name.values())


def troubles(states: Iterable[LoopState]) -> list[str]:
    """Why a process in such a state isn't ready."""
    return [state.trouble for state in states if state.trouble is not None and state.is_vital]


def unwatched(name: str) -> Pulse:
    """A pulse that nobody looks at."""
    return Pulse(name, task="", patience_seconds=float("inf"), advice="")


Look = Callable[[], list[LoopState]]
"""Tells how loops are."""
