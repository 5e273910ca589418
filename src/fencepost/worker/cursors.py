"""
Where a dispatcher's scan of each lane begins.

Jobs of a lane are taken in the order of (run_at, id), and the index entries of those
taken stay behind as dead ones until vacuum comes, which a long transaction elsewhere
can hold off for hours. A scan that starts from the beginning reads them all again, at
every claim. So each dispatcher remembers how far it has come.

What may be behind the cursor, and how it is found
--------------------------------------------------
A claim sees the jobs that were committed when its snapshot was taken, takes them up to
a point, and the cursor moves there. A job behind that point that it did not see was put
there by a transaction still open at the snapshot. `run_at` is never before the clock at
the insert, made after the transaction got its id, so a transaction that began after the
snapshot can't put a job before it:

    producer                            dispatcher
    begins, stamps run_at = 12:00:01
                                        claims at 12:00:02; cursor there
    commits                             the job is behind the cursor

That transaction is in the snapshot's list of running ones. Each is kept as a suspect,
with the place where the scan began that met it first: nothing it may leave is before
that. Once a snapshot shows that it has ended, one look from there on finds whatever it
left, and it is a suspect no longer.

A job that was seen and not taken is another matter: somebody held it, another
dispatcher's claim most likely, which may yet roll back and leave the job where it was.
That transaction need not be in the list: it may have begun after the snapshot and
before the lock was tried. So the cursor never gets past such a job.

Short suspects (most: an enqueue's commit) are covered by starting the next claims a
little further back. Long ones would make every claim start far back, so they wait
until they have ended, and are then looked after beside the claims, once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec

from fencepost.store.workers import Claim, Position, Snapshot

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

    def starts(self) -> Starts:
        """Where the next claim is to begin."""
        starts = dict(self._positions)
        for suspect in self._suspects.values():
            if self._is_young(suspect):
                for lane in starts:
                    starts[lane] = min(starts[lane], suspect.starts[lane])
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
        return self.advanced(starts, came_to, claim.snapshot)

    def advanced(self, starts: Starts, came_to: Mapping[int, Position], snapshot: Snapshot) -> bool:
        """
        Take in that a scan from *starts* took all it could see up to *came_to*, lane by lane.

        Returns what `claimed` does.
        """
        for lane, position in came_to.items():
            if not self._moved_back(lane, starts):
                self._positions[lane] = position
        self._take_in(snapshot, lambda suspect: _covers(starts, suspect.starts, list(came_to)))
        for transaction in snapshot.running - self._suspects.keys():
            self._suspects[transaction] = _Suspect(starts, self._clock())
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
