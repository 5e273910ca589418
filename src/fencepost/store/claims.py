"""What claims, sweeps and renewals answer, and what their snapshots say."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from fencepost.domain.job import Lease, Status
from fencepost.store.database import Row


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
    """When its next scheduled job is due, if the claim ran short."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What one claim brought. No lanes: the queue is paused, or empty since ever."""

    leases: list[Lease]
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


def read_claim(rows: Sequence[Row], queue_id: int, queue: str) -> Claim:
    """Read the rows of `claim.sql`: those of lanes have no id."""
    lanes, leases, snapshot, seen_at, transaction = [], [], None, None, 0
    for row in rows:
        if row["id"] is not None:
            leases.append(_lease(row, queue_id, queue))
            continue
        snapshot, seen_at, transaction = row["snapshot"], row["seen_at"], row["transaction"]
        lanes.append(
            LaneScan(
                priority=row["priority"],
                wanted=row["wanted"],
                rest=None if row["rest_id"] is None else Position(row["rest_run_at"], row["rest_id"]),
                next_run_at=row["run_at"],
            )
        )
    return Claim(
        leases=leases,
        lanes=lanes,
        seen_at=seen_at,
        snapshot=None if snapshot is None else Snapshot.parse(snapshot),
        transaction=transaction,
    )


def _lease(row: Row, queue_id: int, queue: str) -> Lease:
    return Lease(
        id=row["id"],
        queue_id=queue_id,
        queue=queue,
        token=row["token"],
        type=row["type"],
        priority=row["priority"],
        payload=row["payload"],
        attempt=row["attempt"],
        max_attempts=row["max_attempts"],
        timeout_seconds=row["timeout_seconds"],
        run_at=row["run_at"],
        request_id=row["request_id"],
    )
