"""The evidence, sorted so that a check finds what it looks for."""

from __future__ import annotations

from collections import defaultdict

from chaos.evidence import AttemptRow, Evidence, JobRow
from chaos.ledger import Ack, CancelAck, End, Intent, RolledBack, Start
from chaos.scripts import SCRIPTS, Script


class Facts:
    """The evidence, sorted for the checks."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.jobs: dict[str, JobRow] = {job.id: job for job in evidence.jobs}
        self.by_key: dict[str, list[JobRow]] = defaultdict(list)
        for job in evidence.jobs:
            if job.key is not None:
                self.by_key[job.key].append(job)
        self.intents = {record.key: record for record in evidence.submissions if isinstance(record, Intent)}
        self.acks = [record for record in evidence.submissions if isinstance(record, Ack)]
        self.cancels = [record for record in evidence.submissions if isinstance(record, CancelAck)]
        self.rolled_back = {record.key for record in evidence.submissions if isinstance(record, RolledBack)}
        self.starts = [record for record in evidence.attempts if isinstance(record, Start)]
        self.ends: dict[tuple[str, int], list[End]] = defaultdict(list)
        for record in evidence.attempts:
            if isinstance(record, End):
                self.ends[record.job, record.token].append(record)
        self.rows: dict[str, dict[int, AttemptRow]] = defaultdict(dict)
        for row in evidence.attempt_rows:
            self.rows[row.id][row.token] = row

    def script(self, job: JobRow) -> Script | None:
        """The script of a job."""
        return SCRIPTS.get(job.script or "")

    def hows(self, job: str, token: int) -> set[str]:
        """How an attempt said it would end."""
        return {end.how for end in self.ends.get((job, token), [])}
