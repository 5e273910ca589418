"""
Keep the leases of long attempts, from outside the loop that runs them.

A handler that blocks its event loop would also block a renewal that ran there, lose its
lease while it works, and run twice. So renewals have a thread, a loop and a connection
of their own.

A lease is first renewed when a third of it has passed: short jobs cost nothing. The
answer to a renewal also says that the lease was lost, or that the job is to be
cancelled. When renewals fail, or hang, for as long as a lease lasts, it is taken for
lost: the handler is stopped rather than left to run beside whoever has the job by then.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

from fencepost.domain.jitter import between
from fencepost.domain.outcome import Ending
from fencepost.errors import DatabaseUnavailable
from fencepost.logger import get_logger
from fencepost.store.claims import Extension
from fencepost.store.failures import for_operator
from fencepost.store.workers import WorkerStore
from fencepost.telemetry.pulses import Pulse, unwatched
from fencepost.worker.attempt import Attempt, Key

log = get_logger("fencepost.worker")

SHORTEST_RENEWAL_SECONDS = 1.0
"""A renewal that takes longer than this, and than a third of a lease, is tried again on another connection."""
_SILENT = "it does not answer"


class LeaseKeeper:
    """
    Renews what `hold` was called for, until `drop`.

    *store* is made in the keeper's own thread. *interrupt* is called from that thread,
    with the attempt and the reason: LOST or CANCELLED. *pulse* beats with each round in which
    nothing that is due was left unrenewed; *look* is called about once a second, for it is
    the one thread of a worker that no handler can block.
    """

    def __init__(
        self,
        open_store: Callable[[], WorkerStore],
        *,
        lease_seconds: float,
        interrupt: Callable[[Attempt, Ending], None],
        pulse: Pulse | None = None,
        look: Callable[[], object] = lambda: None,
    ) -> None:
        self._open_store = open_store
        self._lease_seconds = lease_seconds
        self._interrupt = interrupt
        self._pulse = pulse or unwatched("lease_keeper")
        self._look = look
        self._held: set[Attempt] = set()
        """Two threads use it; single operations on a set need no lock."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._main, name="fencepost-leases", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def stop(self) -> None:
        """Stop renewing; returns when the thread has ended, or after two seconds."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(2)

    def hold(self, attempt: Attempt, *, claimed_at: float, limit_seconds: float) -> None:
        """
        Keep this attempt's lease, which has lasted since *claimed_at* at the latest, for *limit_seconds* at most.

        The limit is for a handler that blocks its loop for good: its timeout can't fire,
        so the lease must run out for the job to go on elsewhere.
        """
        attempt.renew_at = claimed_at + self._lease_seconds / 3
        attempt.valid_until = claimed_at + self._lease_seconds
        attempt.stop_renewing_at = attempt.started_at + limit_seconds
        self._held.add(attempt)

    def drop(self, attempt: Attempt) -> None:
        """Its outcome is written, or there is nothing to write."""
        self._held.discard(attempt)

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop or asyncio.new_event_loop()) as runner:
            runner.run(self._keep())

    async def _keep(self) -> None:
        store = self._open_store()
        tick = min(max(self._lease_seconds / 12, 0.02), 1.0)
        renewal = asyncio.create_task(self._renew_due(store))
        try:
            while not self._stop.is_set():
                with suppress(TimeoutError):
                    # Spread, so that many workers don't come back together after an outage.
                    await asyncio.wait_for(self._stop.wait(), tick * between(0.75, 1))
                try:
                    # Beside the renewal, which may be hanging in a connection that has gone silent.
                    self._give_up_expired()
                    self._look()
                except Exception:
                    log.exception("fault while keeping leases")
                if renewal.done():
                    renewal = asyncio.create_task(self._renew_due(store))
        finally:
            renewal.cancel()
            await asyncio.wait([renewal])
            with suppress(DatabaseUnavailable):
                await store.database.close()

    async def _renew_due(self, store: WorkerStore) -> None:
        """One round. Survives every error; those that weren't renewed come again in the next."""
        try:
            if await self._renew_each(store):
                self._pulse.turned()
        except Exception as error:
            self._pulse.failed(error)
            log.exception("fault while renewing leases")

    async def _renew_each(self, store: WorkerStore) -> bool:
        """Returns whether nothing that is due was left out."""
        now = time.monotonic()
        complete = True
        due: dict[int, list[Attempt]] = defaultdict(list)
        for held in self._list():
            if now >= held.renew_at:
                held.asked_at = held.asked_at or now
                due[held.lease.queue_id].append(held)
        for queue_id, batch in due.items():
            try:
                # So that a silent connection is replaced while the lease still lasts.
                async with asyncio.timeout(max(self._lease_seconds / 3, SHORTEST_RENEWAL_SECONDS)):
                    if not store.database.is_open:
                        await store.database.open()
                    await self._renew(store, queue_id, batch)
            except (DatabaseUnavailable, TimeoutError) as error:
                complete = False
                # What the pulse is told is shown to strangers.
                self._pulse.failed(error if str(error) else DatabaseUnavailable(_SILENT))
                reason = for_operator(error) if str(error) else _SILENT
                log.warning("leases can't be renewed yet", extra={"reason": reason, "leases": len(batch)})
            except Exception as error:
                complete = False
                self._pulse.failed(error)
                log.exception("fault while renewing leases")
        return complete

    async def _renew(self, store: WorkerStore, queue_id: int, batch: list[Attempt]) -> None:
        asked_at = time.monotonic()
        held_still: dict[Key, Extension] = {
            (extension.id, extension.token): extension
            for extension in await store.extend(
                queue_id, [held.key for held in batch], lease_seconds=self._lease_seconds
            )
        }
        for held in batch:
            extension = held_still.get(held.key)
            if extension is None:
                continue
            held.asked_at = None
            # One that is locked can't be anybody else's before that ends: it is asked for again at the next tick, and
            # not given up for as long as that is the answer.
            if not extension.busy:
                held.renew_at = asked_at + self._lease_seconds / 3
                held.valid_until = asked_at + self._lease_seconds
            if extension.cancel_requested:
                self._interrupt(held, Ending.CANCELLED)
        missing = [held for held in batch if held.key not in held_still]
        if missing:
            await self._part_with(store, queue_id, missing)

    async def _part_with(self, store: WorkerStore, queue_id: int, missing: list[Attempt]) -> None:
        """These have no lease any more, which is as it should be for those that completed by themselves."""
        completing = [held.key for held in missing if held.completing]
        completed = await store.completed(queue_id, completing) if completing else set()
        for held in missing:
            if held.key in completed:
                self.drop(held)
            elif held in self._held:
                self._give_up(held, "lease lost; the job may be someone else's by now")

    def _give_up_expired(self) -> None:
        now = time.monotonic()
        for held in self._list():
            # A renewal gets its time: after a standstill of this process the lease may still be there.
            unanswered = held.asked_at is not None and now >= held.asked_at + self._lease_seconds / 3
            if now >= held.valid_until and unanswered:
                self._give_up(held, "lease could not be renewed in time; the handler is stopped")
            elif now >= held.stop_renewing_at and held.ended_at is None:
                self._give_up(held, "handler blocks its event loop past its timeout; its lease is no longer renewed")

    def _give_up(self, held: Attempt, message: str) -> None:
        self.drop(held)
        if held.ended_at is not None or held.abandoned:
            # Nothing is left to stop; the settlement will tell whose the job is.
            return
        log.warning(
            message,
            extra={
                "job_id": str(held.lease.id),
                "job_type": held.lease.type,
                "attempt": held.lease.attempt,
            },
        )
        self._interrupt(held, Ending.LOST)

    def _list(self) -> list[Attempt]:
        while True:
            try:
                return list(self._held)
            except RuntimeError:
                # It changed size meanwhile: the other thread was quicker.
                continue
