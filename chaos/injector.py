"""Carry a schedule out, against the fleet and the ground it stands on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from chaos.fleet import Fleet, Member
from chaos.ground import Ground
from chaos.ledger import under_way
from chaos.plan import Fault, Schedule

LINGERING = 16
"""Jobs that are handed in for a worker that is about to be cut off to have some of."""
LINGER_SECONDS = 4.0
"""How long it is waited for them to start there. They take half a lease."""
FLEET_KINDS = frozenset({"kill", "kill_group", "kill_api", "stop", "stop_long", "stop_api", "terminate"})
"""What is done to processes; all else is the ground's."""


class Injected(msgspec.Struct, kw_only=True):
    """A fault that was carried out."""

    fault: Fault
    began: float
    """Monotonic, like `over` and `accepted`."""
    over: float = 0.0
    accepted: float | None = None
    """From when on the database took connections again."""
    killed: list[int] = []
    """Processes that were killed."""
    error: str | None = None
    """Why it could not be done."""


class Injector:
    """Carries faults out, each at its time; they overlap as they come."""

    def __init__(
        self, fleet: Fleet, ground: Ground, *, ledger_folder: Path, hand_in: Callable[[str, int], None]
    ) -> None:
        self._fleet = fleet
        self._ground = ground
        self._ledger_folder = ledger_folder
        self._hand_in = hand_in
        self._stopped: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.injected: list[Injected] = []

    @property
    def counts(self) -> Counter[str]:
        """Faults so far by kind."""
        return Counter(one.fault.kind for one in self.injected if one.error is None)

    @property
    def killed(self) -> int:
        """Worker processes that were killed."""
        return sum(len(one.killed) for one in self.injected if one.fault.kind in ("kill", "kill_group"))

    async def run(self, schedule: Schedule) -> None:
        """All of it; returns when the last fault is over."""
        began = time.monotonic()
        for fault in schedule.faults:
            await asyncio.sleep(max(0.0, began + fault.at - time.monotonic()))
            task = asyncio.create_task(self._carry_out(fault))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.sleep(max(0.0, began + schedule.seconds - time.monotonic()))
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def heal(self) -> None:
        """Undo what is still on."""
        for pid in self._stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._stopped.clear()
        await asyncio.to_thread(self._ground.heal)

    async def _carry_out(self, fault: Fault) -> None:
        one = Injected(fault=fault, began=time.monotonic())
        ways: dict[str, Callable[[Injected, Member], Awaitable[None]]] = {
            "kill": self._kill,
            "kill_group": self._kill_group,
            "kill_api": self._kill_group,
            "stop": self._stop,
            "stop_long": self._stop,
            "stop_api": self._stop,
            "terminate": self._terminate,
        }
        try:
            if fault.kind in ways:
                await ways[fault.kind](one, self._fleet.members[fault.target])
            elif fault.kind == "isolate":
                await self._isolate(one)
            else:
                one.accepted = await asyncio.to_thread(self._ground.inject, fault)
        except Exception as error:  # noqa: BLE001 - told in the report; the campaign goes on
            one.error = f"{type(error).__name__}: {error}"
        one.over = time.monotonic()
        self.injected.append(one)

    async def _kill(self, one: Injected, member: Member) -> None:
        """One process that runs jobs: the member itself, or one of the worker processes under it."""
        family = member.family()
        wanted = member.process_count
        if not wanted:
            self._end(one, member, family[:1])
        elif len(family) == wanted + 1:
            self._end(one, member, [family[1 + int(one.fault.at * 1000) % wanted]])
        else:
            # Its supervisor makes a pause before it starts another; so all of it, for a fresh start.
            self._end(one, member, family)

    async def _kill_group(self, one: Injected, member: Member) -> None:
        self._end(one, member, member.family())

    def _end(self, one: Injected, member: Member, pids: list[int]) -> None:
        member.struck = True
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                one.killed.append(pid)
        if not one.killed:
            one.error = "not running just then"

    async def _stop(self, one: Injected, member: Member) -> None:
        """Stop all of it for a while, as a machine that is paused does."""
        family = member.family()
        self._stopped.update(family)
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(one.fault.seconds)
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._stopped.difference_update(family)

    async def _isolate(self, one: Injected) -> None:
        """
        Cut a worker off for longer than a lease, while it has attempts that end meanwhile.

        So when it is back it has outcomes to write of jobs that others have by then.
        """
        self._hand_in("linger", LINGERING)
        member = self._fleet.members[one.fault.target]
        deadline = time.monotonic() + LINGER_SECONDS
        while sum(under_way(self._ledger_folder, pid, "linger") for pid in member.family()) < 2:
            if time.monotonic() > deadline:
                one.error = "it got none of the jobs"
                return
            await asyncio.sleep(0.05)
        await asyncio.to_thread(self._ground.inject, msgspec.structs.replace(one.fault, kind="refuse"))

    async def _terminate(self, one: Injected, member: Member) -> None:
        if not member.signal(signal.SIGTERM):
            one.error = "not running just then"
