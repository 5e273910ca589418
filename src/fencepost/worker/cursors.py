"""
Where a dispatcher's scan of each lane begins.

Jobs of a lane are taken in the order of (run_at, id), and the index entries of those
taken stay behind as dead ones until vacuum comes, which a long transaction elsewhere
can hold off for hours. A scan that starts from the beginning reads them all again, at
every claim. So each dispatcher remembers how far it has come.

What may be behind the cursor, and how it is found
--------------------------------------------------
A claim takes what it sees. Where it saw a due job that it could not take, locked by
another dispatcher's claim that may yet roll back, the cursor stops before it. So a job
behind the cursor is one that the claim's snapshot did not show: put there by a
transaction that was still open. `run_at` is never before the clock at the insert, made
after the transaction got its id:

    producer                            dispatcher
    begins, stamps run_at = 12:00:01
                                        claims at 12:00:02; cursor there
    commits                             the job is behind the cursor

A transaction that begins after the snapshot can't do that. One that began before is
either in the snapshot's list of running ones, or unknown to it: the list ends at xmax,
which is one more than the last transaction to have *completed*, and later ones may be
running too. But each claim has a transaction id of its own, taken after its snapshot and
completed before the next. So the next claim's snapshot knows, as running or as ended,
every transaction that began before this claim; and one that this claim did not know yet
began after the claim before it, so it left nothing behind the cursor of that time. Hence:

  - each claim starts where the cursor was two claims ago: that covers transactions which
    were unknown last time and have ended since;
  - a transaction that a claim's list names for the first time becomes a suspect, with
    that same place: nothing it may leave is before it. Once a snapshot shows that it has
    ended, one look from there on finds whatever it left, and it is a suspect no longer.

Short suspects (most: an enqueue's commit) are covered by starting the next claims a
little further back. Long ones would make every claim start far back, so they wait
until they have ended, and are then looked after beside the claims, once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec

from fencepost.store.claims import Claim, Position, Snapshot

Starts = dict[int, Position]
"""Lane (priority) → where its scan begins. A lane that is missing is scanned from its beginning."""

YOUNG_SECONDS = 0.1
"""How long claims start further back for a transaction, before it is left to be looked after when it has ended."""


class _Suspect(msgspec.Struct):
    starts: Starts
    seen_at: float
    ended: bool = False


class Cursors:
    """The cursors of one queue, for one dispatcher. Hints for speed: losing them costs time, never a job."""

    def __init__(self, *, young_seconds: float = YOUNG_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._young_seconds = young_seconds
        self._clock = clock
        self._positions: Starts = {}
        self._suspects: dict[int, _Suspect] = {}
        self._unknown_since: Starts = {}
        """Where the cursor was before the last claim: nothing that claim could not know of is before that."""
        self._last_own = 0

    def starts(self) -> Starts:
        """Where the next claim is to begin."""
        young = [suspect.starts for suspect in self._suspects.values() if self._is_young(suspect)]
        starts = {}
        for lane, position in self._positions.items():
            if lane in self._unknown_since:
                starts[lane] = min([position, self._unknown_since[lane], *(places[lane] for places in young)])
        return starts

    def claimed(self, starts: Starts, claim: Claim) -> bool:
        """
        Take in what a claim that began at *starts* has seen.

        Returns whether there may be a job behind the cursors that the next claim will find.
        """
        if claim.snapshot is None or claim.seen_at is None:
            return False
        # Where nothing is left, everything due was taken, up to the clock before the snapshot.
        end = Position(claim.seen_at)
        came_to = {
            lane.priority: end if lane.rest is None else min(end, lane.rest.just_before()) for lane in claim.lanes
        }
        return self.advanced(starts, came_to, claim.snapshot, claim.transaction)

    def advanced(self, starts: Starts, came_to: Mapping[int, Position], snapshot: Snapshot, own: int) -> bool:
        """
        Take in that a scan from *starts* took all it could see up to *came_to*, lane by lane.

        *own* is the scan's transaction. Returns what `claimed` does.
        """
        if not snapshot.sees_end_of(self._last_own):
            # Another server: one that doesn't know what we did last.
            self.forget()
            return True
        before = dict(self._positions)
        for lane, position in came_to.items():
            if not self._moved_back(lane, starts):
                self._positions[lane] = position
        self._take_in(snapshot, lambda suspect: _covers(starts, suspect.starts, list(came_to)))
        for transaction in snapshot.running - self._suspects.keys():
            self._suspects[transaction] = _Suspect(self._unknown_since, self._clock())
        self._unknown_since, self._last_own = before, own
        return any(suspect.ended and self._is_young(suspect) for suspect in self._suspects.values())

    def observed(self, snapshot: Snapshot) -> None:
        """Learn from another statement's snapshot which suspects have ended."""
        self._take_in(snapshot, lambda suspect: False)

    def to_look_after(self) -> tuple[set[int], Starts] | None:
        """Suspects that ended and that no claim will cover, and from where to look for what they left."""
        ended = {xid: one for xid, one in self._suspects.items() if one.ended and not self._is_young(one)}
        if not ended:
            return None
        lanes = set(self._positions).intersection(*(suspect.starts for suspect in ended.values()))
        return set(ended), {lane: min(suspect.starts[lane] for suspect in ended.values()) for lane in lanes}

    def looked_after(self, suspects: set[int], found: Starts) -> bool:
        """
        Take in what such a look, or a blind one, has found: the first due job of each lane.

        Returns whether a cursor moved back.
        """
        for transaction in suspects:
            self._suspects.pop(transaction, None)
        behind = [lane for lane, at in found.items() if lane in self._positions and at < self._positions[lane]]
        for lane in behind:
            self._positions[lane] = found[lane]
        return bool(behind)

    def forget(self) -> None:
        """Start from the beginning again: after a reconnect the server may be another one."""
        self._positions.clear()
        self._suspects.clear()
        self._unknown_since, self._last_own = {}, 0

    def _moved_back(self, lane: int, starts: Starts) -> bool:
        """Whether a look moved a cursor back while the scan that began at *starts* was under way."""
        return lane in starts and (lane not in self._positions or self._positions[lane] < starts[lane])

    def _is_young(self, suspect: _Suspect) -> bool:
        """Whether claims look after it. Not when it may have left a job anywhere in a lane: that is too far back."""
        age = self._clock() - suspect.seen_at
        return age < self._young_seconds and self._positions.keys() <= suspect.starts.keys()

    def _take_in(self, snapshot: Snapshot, covered: Callable[[_Suspect], bool]) -> None:
        for transaction, suspect in list(self._suspects.items()):
            if snapshot.sees_end_of(transaction):
                if covered(suspect):
                    del self._suspects[transaction]
                else:
                    suspect.ended = True


def _covers(starts: Starts, suspected: Starts, lanes: list[int]) -> bool:
    """Whether a scan from *starts* looked at everything in *lanes* from *suspected* on."""
    return all(lane not in starts or (lane in suspected and starts[lane] <= suspected[lane]) for lane in lanes)
