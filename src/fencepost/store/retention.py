"""
Remove what has been kept long enough: finished jobs with all that is theirs, idempotency keys, and unique keys.

Two ways. A time range whose jobs are all past their time but a few is surveyed in small
steps and then dropped, with its survivors moved to the default partitions; that costs the
same for a thousand jobs and for a hundred million. Where too many must stay, and in the
default partitions, jobs are deleted in small batches.

Every step is one short transaction and asks for its turn first: it raises `NotOurTurn`
when another process prunes this schema at that moment. Steps may be repeated and may come
from any process, in any order: what a survey has found is in the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

import msgspec

from fencepost.domain.job import Status
from fencepost.settings import Settings
from fencepost.store.database import Database
from fencepost.store.querying import Row

MOVED_JOBS = 1000
MOVED_BYTES = 8 << 20
"""The most that is moved out of a range so that it can be dropped. It holds the tables meanwhile."""

FIRST_ID = UUID(int=0)
LAST_ID = UUID(int=(1 << 128) - 1)
_FOR_EVER_SECONDS = 1e10


class NotOurTurn(Exception):
    """Another process is removing old jobs of this schema right now; leave it to that one."""


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """How long things are kept, in seconds."""

    by_status: Mapping[str, float]
    """From `finished_at` on; a status that isn't here is kept for ever."""
    key_seconds: float | None = None
    """From the first request with a key on, and at least until its job has ended; None: as long as the job."""

    @classmethod
    def of(cls, settings: Settings) -> Keep:
        """What the settings say, where 0 is for ever."""
        times = {
            Status.COMPLETED: settings.retain_completed_seconds,
            Status.FAILED: settings.retain_failed_seconds,
            Status.DEAD_LETTER: settings.retain_dead_letter_seconds,
            Status.CANCELLED: settings.retain_cancelled_seconds,
        }
        keys = settings.idempotency_retention_seconds
        return cls(
            by_status={status.value: seconds for status, seconds in times.items() if seconds},
            key_seconds=_FOR_EVER_SECONDS if keys == 0 else keys,
        )

    @property
    def shortest_seconds(self) -> float | None:
        """The shortest time of any status; None when every job is kept for ever."""
        return min(self.by_status.values(), default=None)

    def reach(self, span: Span, horizon: UUID | None) -> UUID | None:
        """
        Up to which id jobs of *span* are looked at one by one; None when there is nothing to look for.

        A range that isn't over is left alone, unless waiting for it would keep jobs for longer
        than the times they were given. *horizon* is what `Retention.spans` says.
        """
        shortest = self.shortest_seconds
        if horizon is None or shortest is None:
            return None
        if span.starts_at is None or span.past:
            return span.high
        return min(span.high, horizon) if span.low < horizon and shortest < span.seconds else None

    @property
    def keeps_keys_for_ever(self) -> bool:
        """Whether no key ever goes."""
        return self.key_seconds == _FOR_EVER_SECONDS


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A range of ids: one that has partitions, or a gap between such, whose rows are in the default partitions."""

    low: UUID
    high: UUID
    """The first id beyond it."""
    starts_at: datetime | None = None
    """The key of its partitions; None for a gap."""
    ends_at: datetime | None = None
    surveyed_to: UUID | None = None
    """How far its survey is; None when what ends in it isn't watched yet."""
    past: bool = False
    """Over for so long that everything in it may be past its time."""
    due: bool = True
    """Whether it is to be looked at again: a range that was gone through is, each twentieth of its age."""

    @property
    def after(self) -> UUID:
        """What a walk through it starts behind."""
        return UUID(int=max(0, self.low.int - 1))

    @property
    def seconds(self) -> float:
        """How much time it covers; 0 for a gap."""
        if self.starts_at is None or self.ends_at is None:
            return 0.0
        return (self.ends_at - self.starts_at).total_seconds()


class Survey(msgspec.Struct, frozen=True):
    """How far the survey of a range is."""

    looked: int
    survivors: int
    """How many jobs must be kept, as far as it is known; counting stops a little above `MOVED_JOBS`."""
    complete: bool


class Step(msgspec.Struct, frozen=True):
    """What one batch did."""

    looked: int
    last_id: UUID | None
    """Where the next one goes on; None when there was nothing to look at."""
    jobs: int = 0
    keys: int = 0


class Retention:
    """The steps of retention, in one schema."""

    def __init__(self, database: Database, keep: Keep) -> None:
        self._database = database
        self.keep = keep
        self._times = msgspec.json.encode(keep.by_status)

    async def spans(self) -> tuple[list[Span], UUID | None]:
        """
        Every range and every gap between them by id, and the id from which on nothing can be past its time.

        That id is None when every job is kept for ever.
        """
        rows = await self._database.fetch("retention_spans", shortest_seconds=self.keep.shortest_seconds)
        found: list[Span] = []
        reached = FIRST_ID
        for row in rows[1:]:
            if reached < row["low"]:
                found.append(Span(low=reached, high=row["low"]))
            found.append(Span(**dict(row)))
            reached = row["high"]
        return [*found, Span(low=reached, high=LAST_ID)], rows[0]["high"]

    async def key_spans(self) -> list[Span]:
        """Where keys can be that are past their time, or whose job is gone."""
        if self.keep.key_seconds is None:
            return [span for span in (await self.spans())[0] if span.starts_at is None]
        if self.keep.keeps_keys_for_ever:
            return []
        [row] = await self._database.fetch("key_spans", key_seconds=self.keep.key_seconds)
        return [Span(low=FIRST_ID, high=row["until_id"]), Span(low=row["from_id"], high=LAST_ID)]

    async def watch(self, span: Span) -> None:
        """Have noted what ends in *span* from now on. Raises DatabaseUnavailable when its lock isn't to be had."""
        _turn(await self._database.fetch("watch_range", starts_at=span.starts_at))

    async def survey(self, span: Span, *, rows: int, begun: bool = False) -> Survey:
        """
        Look at the next *rows* finished jobs of a watched range, and note those that must be kept.

        What was surveyed for other times than `keep` is surveyed anew; but when this one has
        *begun*, another process does so for its own just now, and NotOurTurn is raised: each
        would undo every step of the other.
        """
        row = _turn(
            await self._database.fetch(
                "survey_range",
                starts_at=span.starts_at,
                keep=self._times,
                begun=begun,
                max_rows=rows,
                most_jobs=MOVED_JOBS,
            )
        )
        if row["is_of_others"]:
            raise NotOurTurn
        return Survey(row["looked"], row["survivors"], row["complete"])

    async def leave(self, span: Span) -> None:
        """Note that *span* was gone through with `remove_jobs`; its next survey begins anew. Nothing for a gap."""
        _turn(await self._database.fetch("leave_range", starts_at=span.starts_at))

    async def drop(self, span: Span) -> tuple[int, int] | None:
        """
        Drop a surveyed range; returns how many jobs went and how many were moved.

        None when too many would have to be moved, or when it isn't there any more. Raises
        DatabaseUnavailable when its locks aren't to be had, and NotOurTurn also when its
        survey was not made for these times.
        """
        rows = await self._database.fetch(
            "drop_range", starts_at=span.starts_at, keep=self._times, most_jobs=MOVED_JOBS, most_bytes=MOVED_BYTES
        )
        for row in rows:
            if row["outcome"] in ("busy", "of others"):
                raise NotOurTurn
            if row["outcome"] == "dropped":
                return row["removed"], row["moved"]
        return None

    async def remove_jobs(self, *, after: UUID, before: UUID, rows: int) -> Step:
        """Remove what is past its time among the next *rows* finished jobs of a range."""
        row = _turn(
            await self._database.fetch(
                "prune_jobs",
                after=after,
                before=before,
                keep=self._times,
                key_seconds=self.keep.key_seconds,
                max_rows=rows,
            )
        )
        return Step(row["looked"], row["last_id"], row["removed"], row["keys"])

    async def remove_keys(self, *, after: UUID, before: UUID, rows: int) -> Step:
        """Remove what is past its time among the next *rows* keys, by their jobs' ids."""
        row = _turn(
            await self._database.fetch(
                "prune_keys", after=after, before=before, key_seconds=self.keep.key_seconds, max_rows=rows
            )
        )
        return Step(row["looked"], row["last_id"], 0, row["keys"])

    async def remove_unique_keys(self, *, after: tuple[str, str], rows: int) -> tuple[int, tuple[str, str] | None]:
        """
        Remove what keeps nothing away any more among the next *rows* unique keys behind *after*.

        Returns how many went, and where the next step goes on; None when there was nothing to look at.
        """
        row = _turn(
            await self._database.fetch("prune_unique_keys", after_type=after[0], after_key=after[1], max_rows=rows)
        )
        return row["keys"], (row["last_type"], row["last_key"]) if row["looked"] else None

    async def count(self, *, after: UUID, before: UUID, rows: int) -> Step:
        """Count what is past its time among the next *rows* finished jobs of a range. Changes nothing."""
        [row] = await self._database.fetch("count_expired", after=after, before=before, keep=self._times, max_rows=rows)
        return Step(row["looked"], row["last_id"], row["expired"])


def _turn(rows: list[Row]) -> Row:
    if not rows[0]["mine"]:
        raise NotOurTurn
    return rows[0]
