"""
Claim jobs for free slots, and hand them over.

One dispatcher a process serves every queue. A hint, a due time or a poll says that a
queue may have something; then a claim for all free slots goes there. Nothing is ever
claimed that can't start at once, so no lease runs down in a line in memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from fencepost.domain.backoff import pause_after
from fencepost.domain.job import Lease
from fencepost.errors import DatabaseUnavailable
from fencepost.logger import get_logger
from fencepost.store.claims import Claim
from fencepost.store.failures import for_operator, is_outage, is_the_servers, waited_too_long
from fencepost.store.workers import WorkerStore
from fencepost.telemetry.pulses import Pulse, unwatched
from fencepost.worker.cursors import Cursors, Starts
from fencepost.worker.settler import Settler

log = get_logger("fencepost.worker")

BLIND_LOOK_SECONDS = 60.0
"""How often lanes are looked at from their beginning, for a clock that was set back."""
CONTENDED_SECONDS = 0.005
"""When a claim saw more due jobs than it got, others were taking them: how long until the next try."""
SPLIT_SLOTS = 32
"""Up to as many slots are filled by one claim; it isn't worth a second."""
_LONGEST_PAUSE_SECONDS = 2.0


class Dispatcher:
    """
    Feeds one process's slots.

    Outcomes that wait in *settler* travel along with claims of their queue. *slots* is how many jobs run at the most;
    *free* says how many may start now; *slot_freed* is set when that has grown. *hand_over* starts leases, and is
    told when they were asked for, by the monotonic clock. *serves* says which queues are ours. *pulse* beats with
    each turn. `wake` may be called at any time, from the loop's thread.
    """

    def __init__(
        self,
        store: WorkerStore,
        *,
        settler: Settler,
        slots: int,
        free: Callable[[], int],
        slot_freed: asyncio.Event,
        hand_over: Callable[[list[Lease], float], None],
        lease_seconds: float,
        aging_seconds: float,
        poll_seconds: float,
        serves: Callable[[int], bool] = lambda queue_id: True,
        pulse: Pulse | None = None,
    ) -> None:
        self._store = store
        self._settler = settler
        # Two claims fill a large pool: while handlers of one run, the server works on the other.
        self._most = max(SPLIT_SLOTS, (slots + 1) // 2)
        self._free = free
        self._slot_freed = slot_freed
        self._hand_over = hand_over
        self._terms = {"lease_seconds": lease_seconds, "aging_seconds": aging_seconds}
        self._poll_seconds = poll_seconds
        self._serves = serves
        self._pulse = pulse or unwatched("dispatcher")
        self._cursors: dict[int, Cursors] = {}
        self._ready: dict[int, None] = {}
        """Queues that may have something due, in turn."""
        self._due_at: dict[int, float] = {}
        """Queues whose next scheduled job is due then, by the monotonic clock."""
        self._contended: dict[int, bool] = {}
        """Queues whose last claim counted on jobs that others hold."""
        self._woken = asyncio.Event()
        self._next_poll = 0.0
        self._next_blind_look = time.monotonic() + BLIND_LOOK_SECONDS
        self._look: asyncio.Task[None] | None = None
        self._stopping = False
        self.is_claiming = False
        """Whether a claim is under way, whose jobs nobody here knows yet."""

    def wake(self, queue_ids: Iterable[int]) -> None:
        """These queues may have something due."""
        self._ready.update(dict.fromkeys(filter(self._serves, queue_ids)))
        self._woken.set()

    def due_in(self, queue_id: int, seconds: float) -> None:
        """This queue will have something due then."""
        self._plan(queue_id, seconds)
        self._woken.set()

    def poll_now(self) -> None:
        """Anything may have changed: look at all queues."""
        self._next_poll = 0.0
        self._woken.set()

    def stop(self) -> None:
        """Claim no more. `run` returns after a claim that is under way."""
        self._stopping = True
        self._woken.set()
        self._slot_freed.set()

    async def run(self) -> None:
        """Claim until stopped. Survives every database error."""
        failures = 0
        while not self._stopping:
            try:
                await self._step()
                if failures:
                    failures = 0
                    self._pulse.turned()
            except Exception as error:
                failures += 1
                self._pulse.failed(error)
                pause = pause_after(failures, first_seconds=0.1, longest_seconds=_LONGEST_PAUSE_SECONDS)
                if is_the_servers(error):
                    log.warning(
                        "can't claim jobs", extra={"reason": for_operator(error), "retry_in_seconds": round(pause, 3)}
                    )
                else:
                    log.exception("fault while claiming jobs")
                self._start_over()
                # Or a wake-up from before the fault would be taken for one that came after it, at every turn.
                self._woken.clear()
                if not self._stopping:
                    await self._wait(pause)
        if self._look is not None:
            self._look.cancel()
            await asyncio.wait([self._look])

    def _start_over(self) -> None:
        """The next connection may lead to another server, with other clocks and transactions."""
        for cursors in self._cursors.values():
            cursors.forget()
        self._due_at.clear()
        self._next_poll = 0.0

    async def _step(self) -> None:
        self._look_behind()
        if self._free() <= 0:
            self._slot_freed.clear()
            if self._free() <= 0 and not self._stopping:
                self._pulse.rest()
                try:
                    await self._slot_freed.wait()
                finally:
                    self._pulse.wake()
            return
        now = time.monotonic()
        if now >= self._next_poll:
            await self._poll()
            if self._stopping:
                # Asked to stop meanwhile: what the poll has found is for others.
                return
            # The poll tells which old transactions have ended; what they left must not wait for the next one.
            self._look_behind()
        for queue_id in [queue_id for queue_id, at in self._due_at.items() if at <= now]:
            del self._due_at[queue_id]
            self._ready[queue_id] = None
        if self._ready:
            await self._claim(next(iter(self._ready)))
            self._pulse.turned_at = now
            return
        # It was looked, and there is nothing.
        self._pulse.turned_at = now
        self._woken.clear()
        if not self._ready and not self._stopping and self._next_poll:
            await self._wait(min([self._next_poll, *self._due_at.values()]) - time.monotonic())

    async def _wait(self, seconds: float) -> None:
        """Until woken, or *seconds* have passed. A time limit of asyncio's would put a task between hint and claim."""
        alarm = asyncio.get_running_loop().call_later(max(seconds, 0), self._woken.set)
        try:
            await self._woken.wait()
        finally:
            alarm.cancel()

    async def _poll(self) -> None:
        self._next_poll = time.monotonic() + self._poll_seconds
        starts = {queue_id: cursors.starts() for queue_id, cursors in self._cursors.items()}
        snapshot, queues = await self._store.due_queues(starts)
        for cursors in self._cursors.values():
            cursors.observed(snapshot)
        for queue in queues:
            if not self._serves(queue.queue_id):
                continue
            if queue.due:
                self._ready[queue.queue_id] = None
            if queue.next_run_at is not None:
                self._plan(queue.queue_id, (queue.next_run_at - queue.seen_at).total_seconds())

    def _plan(self, queue_id: int, seconds: float) -> None:
        at = time.monotonic() + max(seconds, 0)
        self._due_at[queue_id] = min(at, self._due_at.get(queue_id, at))

    async def _claim(self, queue_id: int) -> None:
        slots = max(1, min(self._free() // len(self._ready), self._most))
        del self._ready[queue_id]
        cursors = self._cursors.setdefault(queue_id, Cursors())
        starts = cursors.starts()
        self.is_claiming = True
        try:
            claim, asked_at = await self._take_turn(queue_id, slots, starts)
        except DatabaseUnavailable:
            raise
        except Exception:
            # It is this queue's fault, which must not come up again with every look at the others. If there is such a
            # queue, the poll finds it.
            self._forget(queue_id)
            raise
        finally:
            self.is_claiming = False
        self._hand_over(claim.leases, asked_at)
        if not claim.lanes:
            # Paused, or there is no such queue: a hint may name anything.
            self._cursors.pop(queue_id, None)
            return
        again = cursors.claimed(starts, claim)
        if again or len(claim.leases) == slots:
            # To the end of the line: other queues get their turn first.
            self._ready[queue_id] = None
        elif len(claim.lanes) > 1 and sum(lane.wanted for lane in claim.lanes) == slots:
            # The merge counted on jobs that others hold, maybe for long; there may be more behind them.
            self._contended[queue_id] = True
            self._plan(queue_id, CONTENDED_SECONDS)
        for lane in claim.lanes:
            if lane.next_run_at is not None and claim.seen_at is not None:
                self._plan(queue_id, (lane.next_run_at - claim.seen_at).total_seconds())

    def _forget(self, queue_id: int) -> None:
        self._ready.pop(queue_id, None)
        self._due_at.pop(queue_id, None)
        self._cursors.pop(queue_id, None)

    async def _take_turn(self, queue_id: int, slots: int, starts: Starts) -> tuple[Claim, float]:
        """Claim, along with writing what waits of the queue's outcomes; and say when that was asked for."""
        contended = self._contended.pop(queue_id, False)
        asked_at = time.monotonic()
        if batch := self._settler.take(queue_id):
            try:
                statuses, claim = await self._store.turn(
                    queue_id, [one for _, one in batch], slots=slots, cursors=starts, contended=contended, **self._terms
                )
            except Exception as error:
                if waited_too_long(error):
                    self._settler.put_apart(batch)
                else:
                    self._settler.give_back(queue_id, batch, is_doubtful=is_outage(error))
                    if is_outage(error):
                        raise
                # One of them is refused or has to wait; which is found out while the claim goes on without them.
                log.warning("outcomes were refused along with a claim", extra={"reason": str(error)})
            except BaseException:
                self._settler.give_back(queue_id, batch)
                raise
            else:
                self._settler.report(batch, statuses)
                return claim, asked_at
            asked_at = time.monotonic()
        claim = await self._store.claim(queue_id, slots=slots, cursors=starts, contended=contended, **self._terms)
        return claim, asked_at

    def _look_behind(self) -> None:
        """Start looking after old transactions that have ended, beside the claims."""
        if self._look is not None and not self._look.done():
            return
        if time.monotonic() >= self._next_blind_look:
            self._next_blind_look = time.monotonic() + BLIND_LOOK_SECONDS
            self._look = asyncio.get_running_loop().create_task(self._look_everywhere())
            return
        for queue_id, cursors in self._cursors.items():
            if cursors.to_look_after() is not None:
                self._look = asyncio.get_running_loop().create_task(self._look_after(queue_id, cursors))
                return

    async def _look_everywhere(self) -> None:
        for queue_id, cursors in list(self._cursors.items()):
            await self._look_from(queue_id, cursors, set(), {})

    async def _look_after(self, queue_id: int, cursors: Cursors) -> None:
        if (what := cursors.to_look_after()) is not None:
            await self._look_from(queue_id, cursors, *what)

    async def _look_from(self, queue_id: int, cursors: Cursors, suspects: set[int], starts: Starts) -> None:
        try:
            found = await self._store.first_pending(queue_id, starts)
        except DatabaseUnavailable:
            # The claims will meet the same, and start over.
            return
        except Exception:
            log.exception("fault while looking behind the cursors")
            return
        if cursors.looked_after(suspects, found):
            self.wake([queue_id])
