"""
What must hold after a campaign, whatever has happened in it.

Each check takes the evidence and names the jobs that offend it. They know nothing of
faults: a fault that lets one of them be broken has found something.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec

from chaos.evidence import Evidence
from chaos.facts import Facts
from chaos.ledger import Start

NAMED = 20
"""So many offenders are named; all are counted."""
CLOCK_SECONDS = 0.05
"""How far two readings of one machine's clocks may differ."""
MAY_FAIL = frozenset({"effect", "child", "child_dies"})
"""Scripts whose attempts may fail without having said so: their connection is cut, their process dies."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a check found."""

    name: str
    said: str
    """What has to hold, in words."""
    looked_at: int
    offences: int
    offenders: tuple[str, ...]
    """The first of them."""

    @property
    def ok(self) -> bool:
        """Whether it holds."""
        return self.offences == 0


Offences = tuple[int, Iterator[str]]
"""How many were looked at, and those that offend."""


def nothing_lost(facts: Facts) -> Offences:
    """Every acknowledged job, and every job that ever ran, is there."""
    known = {ack.job: f"acknowledged as {ack.key}" for ack in facts.acks}
    known |= {start.job: f"ran as token {start.token}" for start in facts.starts if start.job not in known}
    return len(known), (f"{job}: {why}, not there" for job, why in known.items() if job not in facts.jobs)


def one_place(facts: Facts) -> Offences:
    """Every job is in exactly one of pending, leases and finished, and each row there has its job."""

    def offenders() -> Iterator[str]:
        for job in facts.evidence.jobs:
            if job.places != 1:
                yield f"{job.id}: in {job.places} places"
        for orphan in facts.evidence.orphans:
            yield f"{orphan}: no job"

    return len(facts.jobs), offenders()


def all_ended(facts: Facts) -> Offences:
    """Nothing is left pending or leased."""
    return len(facts.jobs), (
        f"{job.id} ({job.script}): {job.status}, {job.attempts} attempts"
        for job in facts.evidence.jobs
        if job.status in ("pending", "processing")
    )


def as_scripted(facts: Facts) -> Offences:
    """Every job ended as its script says, a dead letter after exactly its attempts."""

    def offenders() -> Iterator[str]:
        for job in facts.evidence.jobs:
            script = facts.script(job)
            if script is None or job.status in ("pending", "processing", None):
                continue
            if job.status not in script.ends:
                yield f"{job.id} ({script.name}): {job.status}, not {' or '.join(script.ends)}"
            elif script.uses_all and job.attempts != script.max_attempts:
                yield f"{job.id} ({script.name}): {job.attempts} attempts, not {script.max_attempts}"

    return len(facts.jobs), offenders()


def attempts_bounded(facts: Facts) -> Offences:
    """No job had more attempts than max_attempts, given back ones apart."""

    def offenders() -> Iterator[str]:
        for job in facts.evidence.jobs:
            spent = sum(row.outcome != "released" for row in facts.rows[job.id].values())
            spent += job.status == "completed"
            if max(spent, job.attempts or 0) > job.max_attempts:
                yield f"{job.id} ({job.script}): {spent} attempts of {job.max_attempts}"

    return len(facts.jobs), offenders()


def tokens_once(facts: Facts) -> Offences:
    """No lease token was given to two attempts, and none beyond the last that the job knows."""

    def offenders() -> Iterator[str]:
        seen: dict[tuple[str, int], Start] = {}
        for start in facts.starts:
            first = seen.setdefault((start.job, start.token), start)
            if first is not start:
                yield f"{start.job}: token {start.token} in processes {first.pid} and {start.pid}"
            job = facts.jobs.get(start.job)
            if job is not None and start.token > (job.token or 0):
                yield f"{start.job}: ran as token {start.token}, the job knows {job.token}"

    return len(facts.starts), offenders()


def tokens_accounted(facts: Facts) -> Offences:
    """Each token of a job is told of: it succeeded, snoozed, or is in the history; and the attempts add up."""

    def offenders() -> Iterator[str]:
        for job in facts.evidence.jobs:
            if job.status in ("pending", "processing", None):
                continue
            rows, given_back = facts.rows[job.id], 0
            for token in range(1, (job.token or 0) + 1):
                if token in rows:
                    given_back += rows[token].outcome == "released"
                elif token == job.token and job.status == "completed":
                    pass
                elif "snooze" in facts.hows(job.id, token):
                    given_back += 1
                else:
                    yield f"{job.id} ({job.script}): nothing tells of token {token}"
            if (job.token or 0) - given_back != job.attempts and job.script is not None:
                yield f"{job.id} ({job.script}): {job.token} tokens, {given_back} given back, {job.attempts} attempts"

    return len(facts.jobs), offenders()


def leases_apart(facts: Facts) -> Offences:
    """No job had two leases at once, and none was taken back before it ran out."""

    def offenders() -> Iterator[str]:
        for job in facts.evidence.jobs:
            spans = [(row.token, row.started_at, row.ended_at) for row in facts.rows[job.id].values()]
            if job.status == "completed" and job.started_at is not None:
                spans.append((job.token or 0, job.started_at, job.finished_at or job.started_at))
            spans.sort()
            for (token, _, ended), (other, started, _) in pairwise(spans):
                if started < ended:
                    yield f"{job.id}: token {other} began {ended - started:.3f} s before {token} had ended"
        for row in facts.evidence.attempt_rows:
            if row.outcome == "lost" and row.ended_at - row.started_at < facts.evidence.lease_seconds - CLOCK_SECONDS:
                yield f"{row.id}: token {row.token} was lost after {row.ended_at - row.started_at:.3f} s"

    return len(facts.evidence.attempt_rows), offenders()


def no_stale_write(facts: Facts) -> Offences:
    """What a job ended with is what the attempt that held its last token did, and not before that had done it."""

    def offenders() -> Iterator[str]:
        for job in facts.evidence.jobs:
            if job.status != "completed" or job.script is None or job.token is None:
                continue
            if job.result_token != job.token:
                yield f"{job.id} ({job.script}): token {job.token}, the result of {job.result_token}"
                continue
            ends = [end for end in facts.ends[job.id, job.token] if end.how == "ok"]
            if not ends:
                yield f"{job.id} ({job.script}): completed by token {job.token}, which never said it had succeeded"
            elif (job.finished_at or 0) < ends[0].monotonic + facts.evidence.wall_offset - CLOCK_SECONDS:
                yield f"{job.id} ({job.script}): token {job.token} was completed before it had succeeded"

    return sum(job.status == "completed" for job in facts.evidence.jobs), offenders()


def history_true(facts: Facts) -> Offences:
    """A failure in the history is one that this attempt's script had it make."""

    def offenders() -> Iterator[str]:
        wanted = {"failed": "fail", "permanent": "permanent"}
        for row in facts.evidence.attempt_rows:
            job = facts.jobs.get(row.id)
            if job is None or job.script is None or job.script in MAY_FAIL or row.outcome not in wanted:
                continue
            if wanted[row.outcome] not in facts.hows(row.id, row.token):
                yield f"{row.id} ({job.script}): token {row.token} {row.outcome}: {row.error_type} {row.error}"

    return len(facts.evidence.attempt_rows), offenders()


def keys_once(facts: Facts) -> Offences:
    """A key made one job at most, each answer for it named that one, and no job is of an unknown key."""

    def offenders() -> Iterator[str]:
        for key, jobs in facts.by_key.items():
            if len(jobs) > 1:
                yield f"{key}: {len(jobs)} jobs"
            if key not in facts.intents:
                yield f"{key}: never handed in"
        for ack in facts.acks:
            # One that met another job with its unique key has made none.
            made = {job.id for job in facts.by_key[ack.key]}
            if made and ack.job not in made and facts.intents[ack.key].unique is None:
                yield f"{ack.key}: acknowledged as {ack.job}, made {', '.join(made)}"

    return len(facts.by_key), offenders()


def effects_once(facts: Facts) -> Offences:
    """Whatever was written along with a completion is there once, by the attempt that completed; else not at all."""

    def offenders() -> Iterator[str]:
        written: dict[str, list[int]] = defaultdict(list)
        for job_id, token in facts.evidence.effects:
            written[job_id].append(token)
        for job in facts.evidence.jobs:
            if job.script == "effect":
                wanted = [job.token] if job.status == "completed" else []
                if written.pop(job.id, []) != wanted:
                    yield f"{job.id}: {job.status} by token {job.token}, not one effect of it"
        yield from (f"{job_id}: an effect without a job" for job_id in written)

    return len(facts.evidence.effects), offenders()


def transactions_whole(facts: Facts) -> Offences:
    """A job is there exactly if what was written in its transaction is; nothing of one that was rolled back is."""

    def offenders() -> Iterator[str]:
        orders = Counter(facts.evidence.orders)
        for key, intent in facts.intents.items():
            if intent.door == "library" and intent.unique is None and bool(orders[key]) != bool(facts.by_key.get(key)):
                yield f"{key}: {orders[key]} orders, {len(facts.by_key.get(key, []))} jobs"
            if intent.door == "rollback" and (orders[key] or facts.by_key.get(key)):
                yield f"{key}: rolled back, and there"

    return len(facts.evidence.orders) + len(facts.rolled_back), offenders()


def not_before_due(facts: Facts) -> Offences:
    """No job started before its time."""
    first: dict[str, float] = {}
    for start in facts.starts:
        first[start.job] = min(start.monotonic, first.get(start.job, start.monotonic))
    scheduled = [
        (job, facts.intents[job.key].delay)
        for job in facts.evidence.jobs
        if job.key in facts.intents and facts.intents[job.key].delay
    ]
    offset = facts.evidence.wall_offset
    return len(scheduled), (
        f"{job.id}: started {job.created_at + delay - first[job.id] - offset:.3f} s early"
        for job, delay in scheduled
        if job.id in first and first[job.id] + offset < job.created_at + delay - CLOCK_SECONDS
    )


def cancels_kept(facts: Facts) -> Offences:
    """A job that was cancelled while it waited ended so; one that was asked to stop was never claimed again."""

    def offenders() -> Iterator[str]:
        for cancel in facts.cancels:
            job = facts.jobs.get(cancel.job)
            if job is None:
                continue
            if cancel.status == "cancelled" and job.status != "cancelled":
                yield f"{job.id}: answered as cancelled, {job.status}"
            claimed = [row.started_at for row in facts.rows[job.id].values()] + [job.started_at or 0.0]
            if max(claimed) > cancel.at + CLOCK_SECONDS:
                yield f"{job.id}: claimed {max(claimed) - cancel.at:.3f} s after it was cancelled"

    return len(facts.cancels), offenders()


def snapshots_balanced(facts: Facts) -> Offences:
    """In every snapshot on the way jobs = pending + leases + finished, and no unique key had two live jobs."""
    return facts.evidence.audits, iter(facts.evidence.unbalanced)


CHECKS: dict[str, Callable[[Facts], Offences]] = {
    check.__name__: check
    for check in (
        nothing_lost,
        one_place,
        all_ended,
        as_scripted,
        attempts_bounded,
        tokens_once,
        tokens_accounted,
        leases_apart,
        no_stale_write,
        history_true,
        keys_once,
        effects_once,
        transactions_whole,
        not_before_due,
        cancels_kept,
        snapshots_balanced,
    )
}


def check_all(evidence: Evidence) -> list[Result]:
    """Every check, and what was probed at the end."""
    facts = Facts(evidence)
    results = []
    for name, check in CHECKS.items():
        looked_at, offenders = check(facts)
        results.append(_result(name, (check.__doc__ or "").strip(), looked_at, tuple(offenders)))
    results += [_result(probe.name, probe.said, probe.looked_at, probe.offenders) for probe in evidence.probes]
    return results


def _result(name: str, said: str, looked_at: int, offenders: tuple[str, ...]) -> Result:
    return Result(name=name, said=said, looked_at=looked_at, offences=len(offenders), offenders=offenders[:NAMED])
