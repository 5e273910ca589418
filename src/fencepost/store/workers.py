"""What a worker process asks of the database: claims, settlements, leases, recovery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from fencepost.domain.job import Status
from fencepost.domain.outcome import Outcome
from fencepost.store import partitions
from fencepost.store.claims import Claim, DueQueue, Extension, Position, Recovery, Snapshot, read_claim
from fencepost.store.database import Database


class LeaseBusy(Exception):
    """Somebody has the lease locked just now; nothing was written."""


class WorkerStore:
    """The statements of a worker, for one event loop."""

    def __init__(self, database: Database, worker_id: UUID) -> None:
        self.database = database
        self.worker_id = worker_id
        self._queue_names: dict[int, str] = {}

    async def claim(
        self,
        queue_id: int,
        *,
        slots: int,
        cursors: dict[int, Position],
        lease_seconds: float,
        aging_seconds: float,
        contended: bool = False,
    ) -> Claim:
        """
        Take up to *slots* due jobs from a queue, most urgent first.

        Never waits for another worker: rows that someone else is taking are skipped, so
        an empty answer means "nothing free now", not "nothing there". The order is exact
        within one call and approximate between workers. With *contended* jobs that others hold
        take no part in how the slots are shared among the lanes; that costs more locks.
        """
        queue = await self._queue_name(queue_id)
        how = self._how(queue_id, slots, cursors, lease_seconds, aging_seconds, contended)
        rows = await self.database.fetch("claim", **how)
        return read_claim(rows, queue_id, queue, aging_seconds=aging_seconds)

    async def turn(
        self,
        queue_id: int,
        outcomes: Sequence[Outcome],
        *,
        slots: int,
        cursors: dict[int, Position],
        lease_seconds: float,
        aging_seconds: float,
        contended: bool = False,
    ) -> tuple[list[Status | None], Claim]:
        """Settle and claim in one statement: `settle` and `claim` at once, both applied or neither."""
        queue = await self._queue_name(queue_id)
        how = self._how(queue_id, slots, cursors, lease_seconds, aging_seconds, contended)
        rows = await self.database.fetch("turn", **how, **_ends(outcomes))
        claimed = [row for row in rows if not row["settled"]]
        differing = {(row["id"], row["transaction"]): row["type"] for row in rows if row["settled"]}
        return _statuses(outcomes, differing), read_claim(claimed, queue_id, queue, aging_seconds=aging_seconds)

    def _how(
        self,
        queue_id: int,
        slots: int,
        cursors: dict[int, Position],
        lease_seconds: float,
        aging_seconds: float,
        contended: bool,
    ) -> dict[str, object]:
        """What both statements that claim are told."""
        return {
            "queue_id": queue_id,
            "slots": slots,
            "worker_id": self.worker_id,
            "lease_seconds": lease_seconds,
            "aging_seconds": aging_seconds,
            "contended": contended,
            "cursors": _places(cursors),
        }

    async def _queue_name(self, queue_id: int) -> str:
        """A queue's name, which never changes."""
        if queue_id not in self._queue_names:
            rows = await self.database.fetch("queue_name", queue_id=queue_id)
            if not rows:
                # A hint may name anything: without such a queue the claim finds nothing, and the name isn't needed.
                # Not kept, for the queue may be made later.
                return ""
            self._queue_names[queue_id] = rows[0]["name"]
        return self._queue_names[queue_id]

    async def settle(self, queue_id: int, outcomes: Sequence[Outcome]) -> list[Status | None]:
        """
        Write how attempts ended, all in one statement.

        Returns where each job went, in the order of *outcomes*; None for an attempt that had
        lost its lease: nothing was written for it. *outcomes* must not name an attempt twice.
        """
        rows = await self.database.fetch("settle", queue_id=queue_id, **_ends(outcomes))
        return _statuses(outcomes, {(row["id"], row["token"]): row["status"] for row in rows})

    async def extend(self, queue_id: int, held: Sequence[tuple[UUID, int]], *, lease_seconds: float) -> list[Extension]:
        """
        Renew leases from now on. One that is missing from the answer is lost.

        Never waits: one that somebody has locked is `busy` in the answer and isn't renewed.
        """
        rows = await self.database.fetch(
            "extend",
            queue_id=queue_id,
            ids=[job_id for job_id, _ in held],
            tokens=[token for _, token in held],
            lease_seconds=lease_seconds,
        )
        return [Extension(row["id"], row["token"], row["cancel_requested"], row["busy"]) for row in rows]

    async def settle_apart(self, queue_id: int, outcome: Outcome) -> Status | None:
        """
        Write how one attempt ended, unless somebody has its lease locked; answers as `settle` does.

        For attempts that may be completing in an open transaction of their handler's: waiting for
        that would hold up whatever else is to be written. Raises LeaseBusy.
        """
        lease = {"id": outcome.id, "queue_id": queue_id, "token": outcome.token}
        async with self.database.transaction() as transaction:
            rows = await transaction.fetch("lock_lease", **lease)
            if rows and not rows[0]["locked"]:
                raise LeaseBusy
            rows = await transaction.fetch("settle", queue_id=queue_id, **_ends([outcome]))
        return _statuses([outcome], {(row["id"], row["token"]): row["status"] for row in rows})[0]

    async def completed(self, queue_id: int, ended: Sequence[tuple[UUID, int]]) -> set[tuple[UUID, int]]:
        """Which of these attempts, named by id and token, have completed their jobs."""
        rows = await self.database.fetch(
            "completed",
            queue_id=queue_id,
            ids=[job_id for job_id, _ in ended],
            tokens=[token for _, token in ended],
        )
        return {(row["id"], row["token"]) for row in rows}

    async def written(self, queue_id: int, outcome: Outcome) -> Status | None:
        """Where the job went, if this very outcome was written before; None if it wasn't, or left no trace."""
        rows = await self.database.fetch(
            "written", queue_id=queue_id, id=outcome.id, token=outcome.token, ending=outcome.ending.value
        )
        return Status(rows[0]["status"]) if rows else None

    async def write_progress(self, queue_id: int, progress: Mapping[tuple[UUID, int], bytes]) -> set[tuple[UUID, int]]:
        """
        Keep how far attempts are, by id and token, as JSON text.

        Returns those whose lease somebody had locked, so that nothing was written: try those again.
        """
        rows = await self.database.fetch(
            "progress",
            queue_id=queue_id,
            ids=[job_id for job_id, _ in progress],
            tokens=[token for _, token in progress],
            progress=msgspec.json.encode(
                {f"{job_id} {token}": msgspec.Raw(raw) for (job_id, token), raw in progress.items()}
            ),
        )
        return {(row["id"], row["token"]) for row in rows}

    async def notify(self, hint: str) -> None:
        """Send a hint to whoever listens on the schema's channel."""
        await self.database.fetch("notify", channel=self.database.channel, hint=hint)

    async def cancel_requests(self, queue_id: int, ids: Sequence[UUID]) -> list[tuple[UUID, int]]:
        """Which of these running jobs somebody wants stopped, as (id, token)."""
        rows = await self.database.fetch("cancel_requests", queue_id=queue_id, ids=list(ids))
        return [(row["id"], row["token"]) for row in rows]

    async def recover(self, queue_id: int, *, after: datetime | None, max_rows: int, spared: int = 0) -> Recovery:
        """Take back jobs whose lease has run out, from *after* on; the first *spared* of them are left as they are."""
        rows = await self.database.fetch("recover", queue_id=queue_id, after=after, max_rows=max_rows, spared=spared)
        head, *jobs = sorted(rows, key=lambda row: row["id"] is not None)
        # A lease that somebody held just then may stay as it is, so a sweep never gets past one.
        held = head["locked_until"] or head["seen_at"]
        return Recovery(
            jobs=[(row["id"], row["attempt"], Status(row["status"])) for row in jobs],
            last_locked_until=min(held, max(row["locked_until"] for row in jobs)) if jobs else None,
            snapshot=Snapshot.parse(head["snapshot"]),
            transaction=head["transaction"],
            seen_at=min(held, head["seen_at"]),
        )

    async def due_queues(self, cursors: dict[int, dict[int, Position]]) -> tuple[Snapshot, list[DueQueue]]:
        """Which queues have a job due, and when the next one of each will be."""
        places = {
            f"{queue_id}:{lane}": (at.run_at, at.id)
            for queue_id, queue in cursors.items()
            for lane, at in queue.items()
        }
        rows = await self.database.fetch("due_queues", cursors=msgspec.json.encode(places))
        snapshot = next(row["snapshot"] for row in rows if row["queue_id"] is None)
        due = [
            DueQueue(queue_id=row["queue_id"], due=row["due"], next_run_at=row["next_run_at"], seen_at=row["seen_at"])
            for row in rows
            if row["queue_id"] is not None
        ]
        return Snapshot.parse(snapshot), due

    async def first_pending(self, queue_id: int, after: dict[int, Position]) -> dict[int, Position]:
        """The first due job of each lane after a place, or after its start where none is given."""
        rows = await self.database.fetch("first_pending", queue_id=queue_id, cursors=_places(after))
        return {row["priority"]: Position(row["run_at"]) for row in rows}

    async def leased_queues(self) -> list[int]:
        """The queues in which something runs."""
        return [row["id"] for row in await self.database.fetch("leased_queues")]

    async def heartbeat(self, *, host: str, pid: int, version: str, slots: int) -> None:
        """Say that this process lives."""
        await self.database.fetch(
            "register_worker", id=self.worker_id, host=host, pid=pid, version=version, slots=slots
        )

    async def forget(self, *, silence_seconds: float) -> None:
        """Remove this process from the list of workers, and those not heard of for a while."""
        await self.database.fetch("forget_workers", id=self.worker_id, silence_seconds=silence_seconds)

    async def ensure_partitions(self, *, partition_days: int) -> int:
        """Make the time partitions that will soon be needed; returns for how many ranges."""
        return await partitions.ensure(self.database, partition_days=partition_days)


def _places(cursors: dict[int, Position]) -> bytes:
    """Cursors as the statements take them."""
    return msgspec.json.encode({priority: (at.run_at, at.id) for priority, at in cursors.items()})


class _Detail(msgspec.Struct, omit_defaults=True):
    """What `settle.sql` is told of an attempt that did more than succeed."""

    ending: str = "succeeded"
    status: str = "completed"
    delay_seconds: float = 0.0
    result: msgspec.Raw | None = None
    error_type: str | None = None
    error: str | None = None
    traceback: str | None = None


def _ends(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """
    Outcomes as `settle.sql` takes them.

    Arrays are written as text: the driver takes several times as long for each of their elements.
    """
    details = {f"{outcome.id} {outcome.token}": _detail(outcome) for outcome in outcomes if not outcome.is_plain}
    return {
        "ids": _array([outcome.id for outcome in outcomes]),
        "tokens": _array([outcome.token for outcome in outcomes]),
        "details": msgspec.json.encode(details) if details else None,
    }


def _array(values: Sequence[UUID] | Sequence[int]) -> str:
    """PostgreSQL's text of an array: JSON's, in other brackets."""
    return "{" + msgspec.json.encode(values)[1:-1].decode() + "}"


def _detail(outcome: Outcome) -> _Detail:
    return _Detail(
        ending=outcome.ending.value,
        status=outcome.status.value,
        delay_seconds=outcome.delay_seconds,
        result=None if outcome.result is None else msgspec.Raw(outcome.result),
        error_type=outcome.error_type,
        error=outcome.error,
        traceback=outcome.traceback,
    )


def _statuses(outcomes: Sequence[Outcome], differing: dict[tuple[UUID, int], str | None]) -> list[Status | None]:
    """Where each job went: where it was sent, unless the database answered otherwise."""
    if not differing:
        return [outcome.status for outcome in outcomes]
    sent = {(outcome.id, outcome.token): outcome.status.value for outcome in outcomes} | differing
    return [None if status is None else Status(status) for status in sent.values()]
