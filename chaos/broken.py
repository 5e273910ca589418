"""Builds of fencepost that are broken on purpose: copies of the source with one safeguard taken out."""

from __future__ import annotations

import shutil
from pathlib import Path

from chaos.fleet import ROOT

_SETTLE_IN_TWO = """
        rows = await self.database.fetch("broken_leases", queue_id=queue_id, ids=_ends(outcomes)["ids"])
        held = {(row["id"], row["token"]): row for row in rows}
        rows = await self.database.fetch("settle", queue_id=queue_id, **_ends(outcomes))
        answer = _statuses(outcomes, {(row["id"], row["token"]): row["status"] for row in rows})
        gone = [
            {
                "id": str(outcome.id), "token": outcome.token, "status": status.value,
                "attempts": held[outcome.id, outcome.token]["attempt"],
                "started_at": held[outcome.id, outcome.token]["started_at"].isoformat(),
                "result": None if outcome.result is None else msgspec.Raw(outcome.result),
            }
            for outcome, status in zip(outcomes, answer, strict=True)
            if status is not None and status.value != "pending" and (outcome.id, outcome.token) in held
        ]
        if gone:
            await self.database.fetch("broken_finished", queue_id=queue_id, ended=msgspec.json.encode(gone))
        return answer
"""
_TURN_IN_TWO = """
        statuses = await self.settle(queue_id, outcomes)
        how = {"slots": slots, "cursors": cursors, "lease_seconds": lease_seconds, "aging_seconds": aging_seconds}
        return statuses, await self.claim(queue_id, contended=contended, **how)
"""
_BROKEN_LEASES = """
-- What a settlement is about to delete.
select l.id, l.token, l.attempt, l.started_at
  from fencepost.leases l
 where l.queue_id = cast(:queue_id as int)
   and l.id = any (cast(cast(:ids as text) as uuid[]))
"""
_BROKEN_FINISHED = """
-- The other half of a settlement, in a transaction of its own.
insert into fencepost.finished (id, queue_id, status, attempts, token, started_at, finished_at, result)
select e.id, cast(:queue_id as int), e.status, e.attempts, e.token, e.started_at, clock_timestamp(),
       case when e.status = 'completed' then nullif(e.result, jsonb 'null') end
  from jsonb_to_recordset(cast(:ended as jsonb))
       as e (id uuid, token bigint, status text, attempts smallint, started_at timestamptz, result jsonb)
returning id
"""


class CannotBreak(Exception):
    """The text that was to be taken out isn't there any more, so nothing was broken."""


def _fence(store: Path) -> None:
    """A settlement writes whatever token it has."""
    _replace(
        store / "sql" / "settle.sql",
        "       and ((l.id, l.token) in (select i.id, i.token from input i)) is true\n",
        "",
    )


def _skip_locked(store: Path) -> None:
    """A claim waits for rows that another has locked."""
    limit = "         limit share.wanted\n           for update"
    _replace(store / "sql" / "claim.sql", f"{limit} skip locked\n", f"{limit}\n")


def _transaction(store: Path) -> None:
    """A settlement deletes the lease in one transaction, and says how the job ended in another."""
    _replace(store / "sql" / "settle.sql", "     where h.status <> 'pending'\n", "     where false\n")
    (store / "sql" / "broken_leases.sql").write_text(_BROKEN_LEASES)
    (store / "sql" / "broken_finished.sql").write_text(_BROKEN_FINISHED)
    workers = store / "workers.py"
    _replace(
        workers,
        '\n        rows = await self.database.fetch("settle", queue_id=queue_id, **_ends(outcomes))\n'
        '        return _statuses(outcomes, {(row["id"], row["token"]): row["status"] for row in rows})\n',
        _SETTLE_IN_TWO,
    )
    _replace(
        workers,
        "\n        queue = await self._queue_name(queue_id)\n        how = self._how(queue_id, slots,"
        ' cursors, lease_seconds, aging_seconds, contended)\n        rows = await self.database.fetch("turn",',
        _TURN_IN_TWO + '        how = {}\n        rows = await self.database.fetch("turn",',
    )


BREAKS = {"fence": _fence, "skip-locked": _skip_locked, "transaction": _transaction}
"""By the name that `--broken` takes."""


def broken_source(name: str, folder: Path) -> Path:
    """
    Make a broken copy of the source under *folder*; returns what PYTHONPATH has to begin with.

    Raises CannotBreak when the source isn't what it was when the break was written.
    """
    copy = folder / "broken"
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    BREAKS[name](copy / "fencepost" / "store")
    return copy


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    if text.count(old) != 1:
        raise CannotBreak(f"{path.name}: what is to be replaced is there {text.count(old)} times: {old.strip()[:80]!r}")
    path.write_text(text.replace(old, new))
