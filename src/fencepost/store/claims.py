"""What claims, sweeps and renewals answer, and what their snapshots say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from fencepost.domain.job import Lease, Status
from fencepost.logger import get_logger
from fencepost.store.querying import Row

log = get_logger("fencepost.store")


class Position(msgspec.Struct, frozen=True, order=True):
    """A place in a lane: everything that sorts after it is still to be looked at."""

    run_at: datetime
    id: UUID = UUID(int=0)

    def just_before(self) -> Position:
        """The place from which this one is the first to be looked at."""
        return Position(self.run_at, UUID(int=max(self.id.int - 1, 0)))


class Snapshot(msgspec.Struct, frozen=True):
    """Which transactions a statement could not see: those running, and those from `xmax` on."""

    xmax: int
    running: frozenset[int]

    def sees_end_of(self, transaction: int) -> bool:
        """Whether *transaction* had ended, so that whatever it left was visible."""
        return transaction < self.xmax and transaction not in self.running

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Read PostgreSQL's `xmin:xmax:xip,…` (functions-info, pg_snapshot)."""
        _, xmax, running = text.split(":")
        return cls(int(xmax), frozenset(map(int, running.split(","))) if running else frozenset())


class LaneScan(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim saw of one lane."""

    priority: int
    wanted: int
    """How many jobs it was to take from this lane."""
    rest: Position | None
    """The first due job that the claim saw and did not take; None when it took all it saw."""
    next_run_at: datetime | None
    """When its next scheduled job is due, if no job was left that is due already."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What one claim brought. No lanes: the queue is paused, or empty since ever."""

    leases: list[Lease]
    """The most urgent first."""
    lanes: list[LaneScan]
    snapshot: Snapshot | None
    seen_at: datetime | None
    """The database's clock before the snapshot was taken."""
    transaction: int = 0
    """The claim's own transaction: its id was taken after the snapshot."""


class DueQueue(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a queue has something to claim."""

    queue_id: int
    due: bool
    next_run_at: datetime | None
    seen_at: datetime


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """What one sweep over expired leases brought."""

    jobs: list[tuple[UUID, int, Status]]
    """Id, attempt, and where the job went."""
    last_locked_until: datetime | None
    """How far it got, when there were more than it was to take: no lease before that is left."""
    snapshot: Snapshot
    transaction: int
    """The sweep's own transaction: its id was taken after the snapshot."""
    seen_at: datetime
    """How far it got when there were not: the database's clock, or a lease that somebody held."""


class Extension(msgspec.Struct, frozen=True):
    """A lease that is still held."""

    id: UUID
    token: int
    cancel_requested: bool
    busy: bool = False
    """Somebody has it locked just now: it wasn't renewed, and nobody else can take it."""


def read_claim(rows: Sequence[Row], queue_id: int, queue: str, *, aging_seconds: float) -> Claim:
    """Read the rows of `claim.sql`: those of lanes have no id."""
    heads = [row for row in rows if row["id"] is None]
    definitions = {row["id"]: row for row in rows if row["id"] is not None}
    leases: list[Lease] = []
    gone: list[UUID] = []
    for job_id, attempt, token in _in_order(heads, aging_seconds):
        job = definitions.get(job_id)
        if job is None:
            # Somebody deleted it by hand, or detached its partition. It must not keep the others from being run.
            gone.append(job_id)
            continue
        leases.append(
            Lease(
                id=job_id,
                queue_id=queue_id,
                queue=queue,
                token=token,
                type=job["type"],
                payload=job["payload"],
                attempt=attempt,
                max_attempts=job["max_attempts"],
                timeout_seconds=job["timeout_seconds"],
                request_id=job["request_id"],
            )
        )
        if job["snapshot"] is not None:
            leases[-1] = _with_more(leases[-1], job["snapshot"])
    if gone:
        log.error(
            "jobs were claimed that aren't in the table jobs; `fencepost doctor` says why",
            extra={"queue": queue, "count": len(gone), "job_id": str(gone[0])},
        )
    if not heads:
        return Claim(leases=leases, lanes=[], snapshot=None, seen_at=None)
    return Claim(
        leases=leases,
        lanes=[_lane(row) for row in heads],
        seen_at=heads[0]["seen_at"],
        snapshot=Snapshot.parse(heads[0]["snapshot"]),
        transaction=heads[0]["transaction"],
    )


class _More(msgspec.Struct):
    """What a few jobs have beside the rest."""

    tags: tuple[str, ...]
    metadata: msgspec.Raw
    trace_context: str | None
    expired: bool


def _with_more(lease: Lease, text: str) -> Lease:
    """
    Add what `claim.sql` says of the job beside the rest.

    The lease is there already, and those it was claimed with. So what somebody has put into the table by hand, and
    what can't be read, is left out: it must not keep any of them from being run.
    """
    try:
        more = msgspec.json.decode(text, type=_More)
        if bytes(more.metadata)[:1] not in b"{n":
            raise ValueError("metadata is not an object")
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        log.warning(
            "tags and metadata left out, since they can't be read",
            extra={"job_id": str(lease.id), "reason": str(error)},
        )
        # PostgreSQL puts the shorter names first, and in an array of texts there are no objects.
        is_over = text.partition('"expired": ')[2].startswith("true")
        return msgspec.structs.replace(lease, expired=is_over and not _was_started_before(lease))
    metadata = bytes(more.metadata).decode()
    return msgspec.structs.replace(
        lease,
        tags=more.tags,
        metadata=None if metadata == "null" else metadata,
        trace_context=more.trace_context,
        expired=more.expired and not _was_started_before(lease),
    )


def _was_started_before(lease: Lease) -> bool:
    """
    Whether this is a first attempt but not a first start: it started in time, or somebody wants it all the same.

    It was given back by a stop or a snooze, or was put back by hand. A retry after a failure is none.
    """
    return lease.attempt == 1 and lease.token > 1


def _lane(row: Row) -> LaneScan:
    return LaneScan(
        priority=row["priority"],
        wanted=row["wanted"],
        rest=None if row["rest_id"] is None else Position(row["rest_run_at"], row["rest_id"]),
        next_run_at=row["next_run_at"],
    )


def _in_order(heads: Sequence[Row], aging_seconds: float) -> Iterable[tuple[UUID, int, int]]:
    """Id, attempt and token of the jobs taken, the most urgent first, as the statement merges the lanes."""
    lanes = [row for row in heads if row["ids"]]
    if len(heads) == 1:
        return [taken for row in lanes for taken in zip(row["ids"], row["attempts"], row["tokens"], strict=True)]
    urgency: list[Any] = []
    for row in lanes:
        for run_at, *taken in zip(row["run_at"], row["ids"], row["attempts"], row["tokens"], strict=True):
            at, priority = run_at.timestamp(), row["priority"]
            urgency.append(((at - priority * aging_seconds, at) if aging_seconds else (-priority, at), *taken))
    return [taken for _, *taken in sorted(urgency)]
