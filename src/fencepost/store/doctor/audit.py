"""
The invariant: every job is in exactly one of `pending`, `leases` and `finished`.

Gone through range by range of ids, in the one state that the transaction sees, so that
each statement is short and the whole can stop when its time is up.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from fencepost.store.doctor import partitions
from fencepost.store.doctor.findings import Finding, duration, error, named, warning
from fencepost.store.doctor.patient import Patient
from fencepost.store.retention import FIRST_ID, LAST_ID, Keep

NAMED_IDS = 5


class Tally(msgspec.Struct):
    """What was seen so far."""

    counts: Counter[str] = msgspec.field(default_factory=Counter)
    rows: Counter[str] = msgspec.field(default_factory=Counter)
    """How many of each problem."""
    ids: dict[str, list[UUID]] = {}
    places: dict[str, set[str]] = {}
    """Where those were found that shouldn't be, or not in both."""

    def add(self, problem: str, rows: int, ids: list[UUID]) -> None:
        """Take in *rows* of a problem, some of which have these *ids*."""
        self.rows[problem] += rows
        known = self.ids.setdefault(problem, [])
        known += ids[: NAMED_IDS - len(known)]


async def spans(patient: Patient) -> list[tuple[UUID, UUID]]:
    """Ranges that cover all ids: those with partitions, and the gaps between."""
    found, reached = [], FIRST_ID
    for row in await patient.fetch("ranges"):
        if reached < row["low"]:
            found.append((reached, row["low"]))
        found.append((row["low"], row["high"]))
        reached = row["high"]
    return [*found, (reached, LAST_ID)]


async def audit(patient: Patient, advance: Callable[[str, int], None]) -> tuple[list[Finding], str]:
    """Look for jobs that are nowhere or twice, and rows that belong to none. Returns also what there is, in words."""
    ranges = await spans(patient)
    apart = await partitions.apart(patient)
    deadline = asyncio.get_running_loop().time() + patient.limits.audit_seconds
    tally = Tally()
    keys = Keep.of(patient.settings).key_seconds is None
    done = 0
    try:
        # The newest first, where trouble would be.
        for low, high in reversed(ranges):
            await _look(patient, tally, low, high, deadline=deadline, keys=keys)
            done += 1
            advance(f"{tally.counts['jobs']:,} jobs", 1)
    except (asyncpg.QueryCanceledError, TimeoutError):
        advance("", len(ranges) - done)
        return [*_findings(tally, apart), _unfinished(patient, done, len(ranges))], ""
    counts = tally.counts
    return _findings(tally, apart), (
        f"{counts['jobs']:,} jobs = {counts['pending']:,} pending + {counts['leases']:,} leases + "
        f"{counts['finished']:,} finished, each in one place"
    )


async def _look(patient: Patient, tally: Tally, low: UUID, high: UUID, *, deadline: float, keys: bool) -> None:
    async def fetch(name: str, **values: object) -> list[Any]:
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            raise TimeoutError
        return list(await patient.fetch(name, seconds=left, low=low, high=high, **values))

    [counts] = await fetch("audit_counts")
    tally.counts.update(dict(counts))
    for row in await fetch("audit_places", most=NAMED_IDS):
        tally.add(row["problem"], row["rows"], row["ids"])
        tally.places.setdefault(row["problem"], set()).update(place for place in row["places"] if place)
    [attempts] = await fetch("audit_attempts", most=NAMED_IDS)
    tally.add("attempts", attempts["rows"], attempts["ids"])
    if keys:
        [dangling] = await fetch("audit_keys", most=NAMED_IDS)
        tally.add("keys", dangling["rows"], dangling["ids"])


def _findings(tally: Tally, apart: str | None) -> list[Finding]:
    """What was found; where rows may only be out of sight, *apart* is the code of why, and comes first."""
    return [
        make(
            f"audit.{problem}",
            f"{tally.rows[problem]:,} {what}{_where(tally, problem)}: {_some(tally, problem)}",
            remedy if apart is None or problem in _IN_SIGHT else f"see to {apart} first, and look again",
        )
        for problem, make, what, remedy in _PROBLEMS
        if tally.rows[problem]
    ]


def _where(tally: Tally, problem: str) -> str:
    places = tally.places.get(problem)
    return f" ({', '.join(sorted(places))})" if places else ""


def _some(tally: Tally, problem: str) -> str:
    known = tally.ids[problem]
    return named(known) + (", …" if tally.rows[problem] > len(known) else "")


def _unfinished(patient: Patient, done: int, of: int) -> Finding:
    return warning(
        "audit.unfinished",
        f"the audit came through {done} of {of} time ranges in {duration(patient.limits.audit_seconds)}, newest first",
        "run it again at a quieter time, or with --patience 1h; --quick leaves the audit out",
    )


_TELL = "nothing of fencepost's does this: keep the rows, look for who wrote to the tables, and report it"
_IN_SIGHT = ("twice", "unseen")
"""What rows that can't be seen don't explain."""
_PROBLEMS = (
    ("lost", error, "jobs are in none of pending, leases and finished, so they never run or end", _TELL),
    ("twice", error, "jobs are in several of pending, leases and finished at once", _TELL),
    ("stray", error, "rows of pending, leases or finished belong to no job", _TELL),
    (
        "unseen",
        error,
        "rows belong to a queue or a lane that isn't there, so no worker looks for them",
        "make the queue or the lane: docs/how-to/doctor.md has the statements",
    ),
    ("attempts", warning, "attempts in the history belong to no job", "they do no harm; delete them when you know why"),
    (
        "keys",
        warning,
        "idempotency keys belong to no job",
        "retention removes them within hours: fencepost prune does it now; with IDEMPOTENCY_RETENTION they are meant",
    ),
)
