"""What every process still has to do once the faults are over."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import msgspec

from chaos.evidence import Probe
from chaos.fleet import Fleet
from chaos.ledger import AttemptRecord, Intent, Start, SubmissionLedger
from chaos.scripts import SCRIPTS, Casting

MORE_THREADS = 24
"""A worker's pool for plain functions grows to its slots."""
MORE_DESCRIPTORS = 48
HELD_JOBS = 12
HELD_SECONDS = 8.0
HELD_KEY_REQUESTS = 24
"""To each API: more than it has connections."""
PASSING_SECONDS = 3.0
"""How long an API may take for what needs nothing of what is held: for a busy machine. A key is waited for longer."""
REFUSED = "refused"

_ENQUEUE = (
    "select fencepost.enqueue('play', $1::jsonb, queue => $2, max_attempts => 100,"
    " delay => $3::float8 * interval '1 second', idempotency_key => $4)"
)
_HOLD = """
select p.id from fencepost.pending p join fencepost.queues q on q.id = p.queue_id
 where q.name = 'held' order by p.run_at, p.id limit 2 for update of p
"""
_HELD_DONE = """
select count(*) from fencepost.finished f join fencepost.queues q on q.id = f.queue_id
 where q.name = 'held' and f.status = 'completed'
"""


class Prober:
    """Runs the probes. *connect* makes a superuser's connection."""

    def __init__(self, fleet: Fleet, ledger: SubmissionLedger, folder: Path, connect: Callable[[], Any]) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self._folder = folder
        self._connect = connect
        self._number = 0

    async def run(self, seconds: float) -> list[Probe]:
        """All of them; each gives up after *seconds*."""
        return [
            await self._apis_ready(seconds),
            await self._workers_work(seconds),
            await self._claims_pass_held_rows(seconds),
            await self._requests_pass_held_key(),
            self._nothing_grew(),
        ]

    async def _apis_ready(self, seconds: float) -> Probe:
        offenders = []
        async with httpx2.AsyncClient(timeout=5) as http:
            for member in self._fleet.apis:
                said = await _until_ready(http, f"http://127.0.0.1:{member.spec.port}/readyz", seconds)
                if said is not None:
                    offenders.append(f"{member.spec.name}: {said}")
        return Probe("apis_ready", "Every API says that it is ready.", len(self._fleet.apis), tuple(offenders))

    async def _workers_work(self, seconds: float) -> Probe:
        """Fresh jobs, until each process that runs jobs has had one."""
        connection = await self._connect()
        deadline = time.monotonic() + seconds
        try:
            while True:
                wanted = self._processes()
                idle = {pid: name for pid, name in wanted.items() if not self._has_run_probe(pid)}
                if (not idle and wanted) or time.monotonic() > deadline:
                    break
                await self._enqueue(connection, 8 * len(wanted), queue="default", delay=0)
                await asyncio.sleep(0.7)
        finally:
            await connection.close()
        offenders = tuple(f"{name} (process {pid})" for pid, name in idle.items())
        return Probe("workers_work", "Every worker process runs a fresh job.", len(wanted), offenders)

    def _processes(self) -> dict[int, str]:
        """The processes that run jobs now, and whose they are."""
        found: dict[int, str] = {}
        for member in self._fleet.workers:
            family = member.family()
            supervised = member.process_count > 0
            for pid in family[1:] if supervised else family:
                found[pid] = member.spec.name
            if len(family) <= member.process_count:
                found[-len(found) - 1] = f"{member.spec.name}: one that is missing"
        return found

    def _has_run_probe(self, pid: int) -> bool:
        decoder = msgspec.json.Decoder(AttemptRecord)
        for path in self._folder.glob(f"attempts-{pid}-*.log"):
            for line in path.read_bytes().splitlines():
                if b'"probe"' in line:
                    record = decoder.decode(line)
                    if isinstance(record, Start) and record.script == "probe":
                        return True
        return False

    async def _claims_pass_held_rows(self, seconds: float) -> Probe:
        """Lock the first rows of a queue, as a claim does whose process was stopped; the others must be run."""
        said = f"A stopped claim holds up no other: {HELD_JOBS - 2} jobs were run beside 2 locked rows."
        connection = await self._connect()
        holder = await self._connect()
        try:
            await self._enqueue(connection, HELD_JOBS, queue="held", delay=1.5)
            async with holder.transaction():
                held = len(await holder.fetch(_HOLD))
                deadline = time.monotonic() + HELD_SECONDS
                done = 0
                while done < HELD_JOBS - 2 and time.monotonic() < deadline:
                    await asyncio.sleep(0.1)
                    done = await connection.fetchval(_HELD_DONE)
        finally:
            await connection.close()
            await holder.close()
        offenders = () if held == 2 and done >= HELD_JOBS - 2 else (f"{held} rows locked, {done} jobs done",)
        return Probe("claims_pass_held_rows", said, HELD_JOBS, offenders)

    async def _requests_pass_held_key(self) -> Probe:
        """
        somebody            many requests           others
        takes a key
                            wait for it
                                                    are answered
        rolls back
                            get one job
        """
        apis = [f"http://127.0.0.1:{member.spec.port}" for member in self._fleet.apis]
        holder = await self._connect()
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(timeout=HELD_SECONDS, limits=limits) as http:
            try:
                await holder.execute("begin")
                await holder.execute("select fencepost.enqueue('play', unique_key => 'held')")
                waiting = [
                    # Due late enough for it to be there still when the last of them is answered.
                    asyncio.create_task(self._ask(http, api, unique="held", delay=PASSING_SECONDS))
                    for api in apis * HELD_KEY_REQUESTS
                ]
                # Long enough for each of them to have come to its own wait.
                await asyncio.sleep(1.0)
                offenders = [f"answered meanwhile: {task.result()}" for task in waiting if task.done()]
                for api in apis:
                    offenders += await self._passes(http, api)
            finally:
                await holder.close()
            answers = set(await asyncio.gather(*waiting))
        if len(answers) != 1 or any(answer.startswith(REFUSED) for answer in answers):
            offenders.append(f"{len(answers)} different answers, among them {sorted(answers)[-2:]}")
        said = f"Beside {HELD_KEY_REQUESTS} requests for a key that an open transaction holds, each API answers others."
        return Probe("requests_pass_held_key", said, len(waiting), tuple(offenders))

    async def _passes(self, http: httpx2.AsyncClient, api: str) -> list[str]:
        """What is wrong with how an API answers those who need nothing of what is held."""
        try:
            async with asyncio.timeout(PASSING_SECONDS):
                answer = await http.get(f"{api}/readyz")
                stored = await self._ask(http, api)
        except (TimeoutError, httpx2.HTTPError) as error:
            return [f"{api}: {type(error).__name__}"]
        offenders = [] if answer.status_code == 200 else [f"{api} isn't ready: {answer.text[:200]}"]
        return offenders + ([f"{api}: {stored}"] if stored.startswith(REFUSED) else [])

    async def _ask(self, http: httpx2.AsyncClient, api: str, *, unique: str | None = None, delay: float = 0.0) -> str:
        """Hand in a job over HTTP; returns its id, or how it was refused."""
        self._number += 1
        casting = Casting(key=f"probe-{self._number}", script=SCRIPTS["probe"], unique=unique, delay=delay)
        self._ledger.note(Intent(casting.key, "probe", "probe", time.time(), delay, unique))
        headers = {"Idempotency-Key": casting.key}
        try:
            answer = await http.post(f"{api}/jobs", json=casting.as_json(), headers=headers)
        except httpx2.HTTPError as error:
            return f"{REFUSED}: {type(error).__name__} from {api}"
        return str(answer.json()["id"]) if answer.is_success else f"{REFUSED}: {answer.status_code} {answer.text[:200]}"

    async def _enqueue(self, connection: asyncpg.Connection[Any], count: int, *, queue: str, delay: float) -> None:
        for _ in range(count):
            self._number += 1
            key = f"probe-{self._number}"
            self._ledger.note(Intent(key, "probe", "probe", time.time(), delay))
            payload = json.dumps({"script": "probe", "key": key})
            await connection.execute(_ENQUEUE, payload, queue, delay, key)

    def _nothing_grew(self) -> Probe:
        offenders, looked_at = [], 0
        for member in self._fleet.members.values():
            before, now = member.first_usage, member.usage()
            if before is None or now is None:
                continue
            looked_at += 1
            if now.threads > before.threads + MORE_THREADS or now.descriptors > before.descriptors + MORE_DESCRIPTORS:
                offenders.append(f"{member.spec.name}: {before} has become {now}")
        said = "No process holds many more threads or descriptors than soon after its start."
        return Probe("nothing_grew", said, looked_at, tuple(offenders))


async def _until_ready(http: httpx2.AsyncClient, address: str, seconds: float) -> str | None:
    """Ask until it is ready; returns what it said last if it never was."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            answer = await http.get(address)
            if answer.status_code == 200:
                return None
            said = f"{answer.status_code} {answer.text[:200]}"
        except httpx2.HTTPError as error:
            said = f"{type(error).__name__} {error}"
        if time.monotonic() > deadline:
            return said
        await asyncio.sleep(0.1)
