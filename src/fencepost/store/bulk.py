"""
Retry, cancel and delete many jobs by what they are.

A run finds the jobs that match, newest first, and changes them in batches, each one
statement and one transaction; so it can be as large as it likes and holds up nobody,
and what an interrupted run has done is done. What a job is (its type, queue, tags,
when it was made) never changes; where it stands is repeated in the statement that
moves it. So a job that moved since it was found is left alone, and a worker's claim
or settlement at the same moment wins or loses whole. Jobs whose rows somebody has
locked are passed over and looked at again at the end.

A job that is made while a run goes on is hardly ever part of it: its id is newer than
where the run has got to.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from uuid import UUID

import msgspec

from fencepost.domain.job import Limits, Status
from fencepost.errors import InvalidJob, QueueNotFound
from fencepost.store.database import Database
from fencepost.store.hints import Hints
from fencepost.store.listing import SCAN_ROWS, Filter, check, find, statement_for
from fencepost.store.queues import Queues

BATCH_JOBS = 500
"""How many jobs a transaction changes."""
RETURNS = (0.05, 0.2, 0.8)
"""After how many seconds jobs that were locked are looked at again."""

Place = tuple[UUID, int]
"""A job's id and its queue's."""


class Action(enum.StrEnum):
    """What can be done to many jobs."""

    RETRY = "retry"
    """`dead_letter` jobs go back to pending, with all their attempts."""
    CANCEL = "cancel"
    """Pending jobs end cancelled; running ones are asked to stop."""
    DELETE = "delete"
    """Ended jobs are removed, with their attempts and keys."""


class Selection(Filter, frozen=True, kw_only=True):
    """Which jobs an action is for: those that meet every condition given."""

    ids: tuple[UUID, ...] | None = None
    """Only these."""
    everything: bool = False
    """Has to be said when there is no condition at all."""

    @property
    def has_condition(self) -> bool:
        """Whether it says anything of the jobs that are meant."""
        conditions = (self.status, self.type, self.queue, self.tag, self.since, self.until, self.ids)
        return any(condition is not None for condition in conditions)


class Result(msgspec.Struct, kw_only=True):
    """What a run has done, or has done so far."""

    matched: int = 0
    """Jobs that met the conditions when they were looked at."""
    changed: int = 0
    """Jobs put back, cancelled or asked to stop, or removed."""
    requested: int = 0
    """Those of them that were running and have been asked to stop."""
    skipped: int = 0
    """Jobs left alone: they moved on meanwhile, stayed locked, or (for a retry) another job holds their unique key."""


_STATEMENTS = {Action.RETRY: "bulk_retry", Action.CANCEL: "bulk_cancel", Action.DELETE: "bulk_delete"}

Progress = Callable[[Result], Awaitable[None]]
"""Told how far a run is, after each batch. What it raises ends the run."""

_ALLOWED = {
    Action.RETRY: {Status.DEAD_LETTER},
    Action.CANCEL: {Status.PENDING, Status.PROCESSING},
    Action.DELETE: {Status.COMPLETED, Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED},
}


class Bulk:
    """Changes many jobs of one schema at a time."""

    def __init__(self, database: Database, queues: Queues, hints: Hints) -> None:
        self._database = database
        self._queues = queues
        self._hints = hints

    async def count(self, action: Action, which: Selection) -> int:
        """Count the jobs that *action* would be for, now. Changes nothing. Raises InvalidJob like the action."""
        which = _checked(action, which)
        return sum([len(batch) async for batch in self._batches(action, which)])

    async def retry(self, which: Selection, *, spread_seconds: float = 0.0, progress: Progress | None = None) -> Result:
        """
        Put `dead_letter` jobs back, each with a full budget of attempts.

        They are due at once; with *spread_seconds* at moments spread evenly over that time, so
        that a service which has just recovered isn't met by all of them together. A job whose
        unique key another one holds is left where it is; of several with one key the newest goes.

        Raises InvalidJob for a selection that can't be meant.
        """
        if not 0 <= spread_seconds <= Limits.DELAY_SECONDS:
            raise InvalidJob(f"must be 0 to {Limits.DELAY_SECONDS:.0f} seconds", field="spread_seconds")
        return await self._run(Action.RETRY, which, progress, {"spread_seconds": float(spread_seconds)})

    async def cancel(self, which: Selection, *, progress: Progress | None = None) -> Result:
        """
        Cancel jobs that wait, and ask the workers of those that run to stop.

        A job that is asked to stop may still end by itself first; it never runs again.

        Raises InvalidJob for a selection that can't be meant.
        """
        where = {
            "pending": which.status in (None, Status.PENDING),
            "processing": which.status in (None, Status.PROCESSING),
        }
        return await self._run(Action.CANCEL, which, progress, dict[str, object](where))

    async def delete(self, which: Selection, *, progress: Progress | None = None) -> Result:
        """
        Remove ended jobs for good, with their attempts and their idempotency and unique keys.

        A live job is never removed: cancel it first. The next request with the key of a
        removed job makes a new one.

        Raises InvalidJob for a selection that can't be meant.
        """
        return await self._run(Action.DELETE, which, progress, {"status": which.status})

    async def _run(
        self, action: Action, which: Selection, progress: Progress | None, values: dict[str, object]
    ) -> Result:
        run = _Run(self._database, self._hints, action, values)
        which = _checked(action, which)
        try:
            async for batch in self._batches(action, which):
                await run.change(batch)
                if progress is not None:
                    await progress(msgspec.structs.replace(run.result))
            await run.return_to_locked()
        finally:
            # Workers are told once that jobs are due again.
            self._hints.committed(run.woken, named=set())
        if progress is not None:
            await progress(msgspec.structs.replace(run.result))
        return run.result

    async def _batches(self, action: Action, which: Selection) -> AsyncIterator[list[Place]]:
        """The jobs that match, newest first, as many at a time as one statement changes."""
        async for found in self._found(action, which):
            for start in range(0, len(found), BATCH_JOBS):
                yield found[start : start + BATCH_JOBS]

    async def _found(self, action: Action, which: Selection) -> AsyncIterator[list[Place]]:
        """The jobs that match, as many at a time as one look finds: it costs the same for few and for many."""
        try:
            queue_id = None if which.queue is None else await self._queues.id_of(which.queue)
        except QueueNotFound:
            return
        look = partial(find, self._database, _statement(action, which), which, queue_id=queue_id, limit=SCAN_ROWS)
        if which.ids is not None:
            ids = sorted(set(which.ids), reverse=True)
            for start in range(0, len(ids), SCAN_ROWS):
                yield (await look(before=None, ids=ids[start : start + SCAN_ROWS])).found
            return
        before: UUID | None = None
        while True:
            places = await look(before=before)
            yield places.found
            before = places.next_before
            if before is None:
                return


class _Run:
    """One run: what it has done, what it still has to look at again, and whom it has to wake."""

    def __init__(self, database: Database, hints: Hints, action: Action, values: dict[str, object]) -> None:
        self.result = Result()
        self.woken: set[int] = set()
        """Queues in which jobs are due again."""
        self._database = database
        self._hints = hints
        self._action = action
        self._values = values
        self._locked: list[Place] = []

    async def change(self, batch: Sequence[Place]) -> None:
        """Change a batch of jobs that match, but for those that are locked."""
        self.result.matched += len(batch)
        self._locked += await self._change(batch)

    async def return_to_locked(self) -> None:
        """Look again at the jobs that were locked, a few times, a little later each."""
        for seconds in RETURNS:
            if not self._locked:
                break
            await asyncio.sleep(seconds)
            again, self._locked = self._locked, []
            for start in range(0, len(again), BATCH_JOBS):
                self._locked += await self._change(again[start : start + BATCH_JOBS])
        self.result.skipped += len(self._locked)

    async def _change(self, batch: Sequence[Place]) -> list[Place]:
        """Change what can be changed now; returns what was locked."""
        fetch = self._hints.fetch if self._action is Action.CANCEL else self._database.fetch
        rows = await fetch(_STATEMENTS[self._action], **self._values, **self._about(batch))
        effects = {(row["id"], row["queue_id"]): row["effect"] for row in rows}
        changed = [place for place, effect in effects.items() if effect not in (None, "held")]
        self.result.changed += len(changed)
        self.result.requested += sum(effect == "requested" for effect in effects.values())
        self.result.skipped += len(batch) - len(effects) + sum(effect == "held" for effect in effects.values())
        if self._action is Action.RETRY:
            self.woken |= {queue_id for _, queue_id in changed}
        return [place for place, effect in effects.items() if effect is None]

    def _about(self, batch: Sequence[Place]) -> dict[str, object]:
        ids = [job_id for job_id, _ in batch]
        if self._action is Action.CANCEL:
            return {"ids": ids, "hints": [self._hints.cancellation(queue_id, job_id) for job_id, queue_id in batch]}
        return {"ids": ids, "low": min(ids), "high": max(ids)}


def _checked(action: Action, which: Selection) -> Selection:
    """Check that a selection can be meant for *action*. Raises InvalidJob."""
    if not which.has_condition and not which.everything:
        raise InvalidJob(
            f"give a condition to {action} only some jobs (status, type, queue, tag, since, until, ids), "
            f"or everything=True to {action} all of them"
        )
    check(which)
    allowed = _ALLOWED[action]
    if which.status is not None and which.status not in allowed:
        *others, last = [status.value for status in Status if status in allowed]
        words = f"{', '.join(others)} or {last}" if others else last
        raise InvalidJob(f"only {words} jobs can be {_PAST[action]}, not {which.status}", field="status")
    if action is Action.RETRY:
        return msgspec.structs.replace(which, status=Status.DEAD_LETTER)
    return which


_PAST = {Action.RETRY: "retried", Action.CANCEL: "cancelled", Action.DELETE: "deleted"}


def _statement(action: Action, which: Selection) -> str:
    """The statement that finds the jobs an action may be for, and looks at few others."""
    if which.ids is not None:
        return "bulk_named"
    if which.status is None:
        return "bulk_live" if action is Action.CANCEL else "bulk_ended"
    return statement_for(which.status)
