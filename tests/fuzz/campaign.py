"""
A campaign: requests by the tens of thousands, from a seed, and what must hold after each batch.

    numbers ──> connections that are kept: whole requests, some of them in one write ──> one answer each
            └─> connections of their own: what may be no request, or only a part of one ──> whatever comes

Then: the process lives, a good request works, each job is in one place, and the jobs there
are are those that were acknowledged.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg
import msgspec

from tests.fuzz.mutations import request
from tests.fuzz.requests import Known, Sent
from tests.fuzz.verdicts import faults_of, made_by, strict_json
from tests.fuzz.wire import Answer, Line, Malformed

KEPT_LINES = 12
OWN_LINES = 48
PIPELINED = 6
"""At most so many requests in one write."""
FINDINGS = 50
"""A campaign with so many ends: more say nothing new."""
AUDIT = (Path(__file__).parents[2] / "src/fencepost/store/sql/audit.sql").read_text()


class Finding(msgspec.Struct, frozen=True):
    """Something that must not be. `python -m tests.fuzz --seed SEED --only NUMBER` sends it again."""

    number: int
    mutation: str
    fault: str
    sent: str = ""
    answer: str = ""


class Process(msgspec.Struct, frozen=True):
    """What the service's process holds."""

    resident_megabytes: float
    threads: int
    open_files: int


class Report(msgspec.Struct, kw_only=True):
    """What came of a campaign."""

    seed: int
    requests: int = 0
    seconds: float = 0.0
    checked_batches: int = 0
    answers: int = 0
    unanswered: int = 0
    jobs_acknowledged: int = 0
    jobs_of_unheard_answers: int = 0
    by_status: dict[str, int] = {}
    by_route: dict[str, dict[str, int]] = {}
    by_mutation: dict[str, dict[str, int]] = {}
    before: Process | None = None
    half_way: Process | None = None
    after: Process | None = None
    findings: list[Finding] = []

    @property
    def rate(self) -> float:
        """Requests a second, checks included."""
        return self.requests / self.seconds if self.seconds else 0.0


def process_of(pid: int) -> Process | None:
    """What a process holds now; None without /proc."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return None
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return Process(
        resident_megabytes=int(fields["VmRSS"].split()[0]) / 1024,
        threads=int(fields["Threads"]),
        open_files=len(list(Path(f"/proc/{pid}/fd").iterdir())),
    )


class Campaign:
    """Sends requests, and keeps the books."""

    def __init__(self, *, seed: int, url: str, pid: int, database_url: str, known: Known) -> None:
        parts = urlsplit(url)
        self._at = (str(parts.hostname), int(parts.port or 0))
        self._pid = pid
        self._database_url = database_url
        self._known = known
        self._documented: dict[str, set[int]] = {}
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._acknowledged: set[UUID] = set()
        self._unheard: set[str] = set()
        """Requests whose answer nobody read: they may have made jobs."""
        self._nameless = 0
        """How many of them have no id of ours."""
        self.report = Report(seed=seed)

    async def run(self, numbers: range, *, batch: int) -> Report:
        """Send these, check after each *batch*."""
        started = time.monotonic()
        async with _database(self._database_url) as database:
            await self._learn(database)
            self.report.before = process_of(self._pid)
            for start in numbers[::batch]:
                part = range(start, min(start + batch, numbers.stop))
                await self._batch(part)
                await self._check(database, part.stop)
                if self.report.half_way is None and part.stop >= (numbers.start + numbers.stop) // 2:
                    self.report.half_way = process_of(self._pid)
                if len(self.report.findings) >= FINDINGS:
                    break
        self.report.seconds = time.monotonic() - started
        self.report.after = process_of(self._pid)
        self._sum_up()
        return self.report

    async def _learn(self, database: asyncpg.Connection) -> None:
        """What the document says, and which jobs are there already."""
        document = strict_json((await self._ask("GET /openapi.json")).body)
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                self._documented[f"{method.upper()} {path}"] = {int(status) for status in operation["responses"]}
        self._acknowledged.update(row["id"] for row in await database.fetch("select id from fencepost.jobs"))

    async def _batch(self, numbers: range) -> None:
        waiting = (request(self.report.seed, number, self._known) for number in numbers)
        self.report.requests += len(numbers)
        own = asyncio.Semaphore(OWN_LINES)
        async with asyncio.TaskGroup() as tasks:

            async def alone(sent: Sent) -> None:
                async with own:
                    await self._unframed(sent)

            async def keep() -> None:
                dice = random.Random(f"{self.report.seed}:{numbers.start}")
                together: list[Sent] = []
                line: Line | None = None
                for sent in waiting:
                    if not sent.framed:
                        tasks.create_task(alone(sent))
                        continue
                    together.append(sent)
                    if sent.alone or len(together) >= dice.randint(1, PIPELINED):
                        line = await self._framed(together, line)
                        together = []
                if together:
                    line = await self._framed(together, line)
                if line is not None:
                    await line.close()

            for _ in range(KEPT_LINES):
                tasks.create_task(keep())

    async def _framed(self, together: list[Sent], line: Line | None) -> Line | None:
        """Send whole requests in one write; exactly one answer to each must come, in order."""
        if line is None:
            line = await Line.to(*self._at)
        pauses = max(sent.pauses for sent in together)
        await line.send(b"".join(sent.written() for sent in together), pauses=pauses)
        for place, sent in enumerate(together):
            try:
                answer = await line.answer(head=sent.method == "HEAD")
            except (Malformed, TimeoutError, EOFError, ConnectionError) as error:
                self._unheard.update(other.request_id for other in together[place:])
                self._find(sent, f"no answer to request {place + 1} of {len(together)}: {error!r}")
                line.abort()
                return None
            self._take(sent, answer)
            if b"x-request-id" not in sent.mutation.encode() and "request id" not in sent.mutation:
                self._same_id(sent, answer)
            if answer.closes:
                # Their sender may send them again without a doubt: nothing behind a close may have been done.
                rest = together[place + 1 :]
                self._counts.update((other.route, other.mutation, "behind a close") for other in rest)
                await line.close()
                return None
        return line

    def _same_id(self, sent: Sent, answer: Answer) -> None:
        # What isn't read as a request at all has an id that is made for its refusal.
        code = answer.headers.get("x-error-code")
        if answer.headers.get("x-request-id") != sent.request_id and code not in ("bad_request", "headers_too_large"):
            self._find(sent, f"the answer is to {answer.headers.get('x-request-id')}", answer)

    async def _unframed(self, sent: Sent) -> None:
        """Send what may be anything on a connection of its own; what comes back must be well-formed."""
        if sent.complete:
            self._unheard.add(sent.request_id)
            self._nameless += b"X-Request-ID: %b\r\n" % sent.request_id.encode() not in sent.written()
        line = await Line.to(*self._at)
        try:
            await line.send(sent.written())
            if sent.rude:
                line.abort()
                self._counts[sent.route, sent.mutation, "gone"] += 1
                return
            answers = await line.answers(head=sent.method == "HEAD")
        except Malformed as error:
            self._find(sent, str(error))
        else:
            if not answers:
                self._counts[sent.route, sent.mutation, "silence"] += 1
            for answer in answers:
                self._take(sent, answer)
        finally:
            await line.close()

    def _take(self, sent: Sent, answer: Answer) -> None:
        self.report.answers += 1
        self._counts[sent.route, sent.mutation, str(answer.status)] += 1
        for fault in faults_of(answer, sent, self._documented):
            self._find(sent, fault, answer)
        self._acknowledged |= made_by(answer, sent)

    def _find(self, sent: Sent, fault: str, answer: Answer | None = None) -> None:
        said = "" if answer is None else f"{answer.status} {answer.headers} {answer.body[:500]!r}"
        self.report.findings.append(Finding(sent.number, sent.mutation, fault, repr(sent.written()[:2000]), said))

    async def _check(self, database: asyncpg.Connection, number: int) -> None:
        """What must hold after a batch."""

        def find(fault: str) -> None:
            self.report.findings.append(Finding(number, "after the batch", fault))

        self.report.checked_batches += 1
        if process_of(self._pid) is None:
            find("the process is gone")
        made = await self._ask("POST /jobs", b'{"type":"send_email","queue":"good"}')
        if made.status != 201:
            find(f"a good request was answered {made.status} {made.body[:500]!r}")
            return
        job_id = UUID(strict_json(made.body)["id"])
        self._acknowledged.add(job_id)
        if (await self._ask(f"GET /jobs/{job_id}")).status != 200:
            find("the job that a good request made can't be read")
        counts = dict((await database.fetch(AUDIT))[0])
        if counts["jobs"] != counts["pending"] + counts["leases"] + counts["finished"]:
            find(f"not every job is in exactly one place: {counts}")
        there = {
            row["id"]: row["request_id"] for row in await database.fetch("select id, request_id from fencepost.jobs")
        }
        lost = self._acknowledged - there.keys()
        if lost:
            find(f"{len(lost)} acknowledged jobs are not there: {sorted(lost)[:5]}")
        extra = {job: there[job] for job in there.keys() - self._acknowledged}
        self.report.jobs_of_unheard_answers = len(extra)
        unasked = {job: name for job, name in extra.items() if name not in self._unheard}
        # Every job of a request has the id of one: what has none came from elsewhere.
        ours = sum(name is None or name.startswith("fuzz-") for name in unasked.values())
        if ours or len(unasked) > self._nameless:
            named = sorted(unasked.items(), key=lambda item: not str(item[1]).startswith("fuzz-"))
            find(f"{len(unasked)} jobs are there that nobody was told of: {named[:5]}")

    async def _ask(self, line: str, body: bytes | None = None) -> Answer:
        """A good request."""
        method, target = line.split()
        sent = Sent(
            number=0,
            route=line,
            method=method,
            target=target.encode(),
            headers=[(b"Host", b"127.0.0.1"), (b"Authorization", b"Bearer fuzz-token")],
            body=body,
        )
        connection = await Line.to(*self._at)
        try:
            await connection.send(sent.written())
            return await connection.answer()
        finally:
            await connection.close()

    def _sum_up(self) -> None:
        report = self.report
        report.jobs_acknowledged = len(self._acknowledged)
        for (route, mutation, status), count in sorted(self._counts.items()):
            for name in set(mutation.split("+")):
                _add(report.by_mutation.setdefault(name, {}), status, count)
            _add(report.by_route.setdefault(route, {}), status, count)
            _add(report.by_status, status, count)
        report.unanswered = sum(count for status, count in report.by_status.items() if not status.isdigit())


def _add(counts: dict[str, int], name: str, count: int) -> None:
    counts[name] = counts.get(name, 0) + count


class _database:
    """A connection, to be used with `async with`."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> asyncpg.Connection:
        self._connection = await asyncpg.connect(self._url)
        return self._connection

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()
