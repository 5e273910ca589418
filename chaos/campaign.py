"""One campaign from its start to its verdict."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import httpx2

import fencepost
from chaos import evidence, probes
from chaos.broken import broken_source
from chaos.checks import check_all
from chaos.evidence import Evidence, Probe
from chaos.fleet import ROOT, Fleet, Member, MemberSpec, environments
from chaos.ground import Ground
from chaos.injector import Injector
from chaos.ledger import End, Start, SubmissionLedger, sync_all
from chaos.measures import measure
from chaos.observer import Observer
from chaos.options import Options, fault_seconds, fleet_specs, pooling, rates
from chaos.plan import Schedule, draw_schedule, write_schedule
from chaos.report import Report
from chaos.submitters import Submitters

LEASE_SECONDS = 2.0
RECOVERY_SECONDS = 0.5
START_SECONDS = 40.0
DRAIN_SECONDS = 60.0
"""After which what is left will never end. A healthy fleet takes a few seconds."""
PROBE_SECONDS = 40.0
STOP_SECONDS = 30.0

_TABLES = """
create schema if not exists chaos;
create table chaos.effects (job uuid not null, token bigint not null);
create table chaos.orders (key text primary key);
grant usage on schema chaos to public;
grant all on all tables in schema chaos to public;
"""


Tell = Callable[[str], None]


class Campaign:
    """
    A fleet, a ground, and everything that is done to them, in *folder*.

    *tell* is called now and then with how it stands.
    """

    def __init__(self, options: Options, folder: Path, ground: Ground, tell: Tell) -> None:
        self._options = options
        self._folder = folder
        self._ground = ground
        self._tell = tell
        self._began = time.monotonic()
        self._ledger_folder = folder / "ledger"
        self._ledger_folder.mkdir()
        self._ledger = SubmissionLedger(self._ledger_folder)
        self._source = broken_source(options.broken, folder) if options.broken else None
        self._observer = Observer(lambda: ground.admin_dsn)
        self._phase = "starting"

    async def run(self) -> Report:
        """All of it."""
        await asyncio.to_thread(self._ground.start)
        fleet = Fleet([self._member(spec) for spec in fleet_specs(pooled=pooling(self._ground))])
        telling = asyncio.create_task(self._keep_telling(fleet))
        try:
            return await self._on(fleet)
        finally:
            telling.cancel()
            fleet.kill()
            self._observer.close()
            self._ledger.close()
            await asyncio.to_thread(self._ground.close)

    async def _on(self, fleet: Fleet) -> Report:
        await asyncio.to_thread(self._migrate)
        fleet.start()
        await self._until_ready(fleet)
        schedule = self._schedule(fleet)
        write_schedule(schedule, self._folder / "schedule.json")
        self._submitters = submitters = self._make_submitters(fleet)
        self._injector = injector = Injector(
            fleet, self._ground, ledger_folder=self._ledger_folder, hand_in=submitters.hand_in
        )
        observing = asyncio.create_task(self._observer.run())
        self._phase = "faults"
        handing_in = submitters.run(schedule.seconds, self._options.rate, lambda: self._observer.live)
        await asyncio.gather(handing_in, injector.run(schedule))
        self._phase = "draining"
        await injector.heal()
        found = [await self._finish(submitters), await self._drain()]
        self._phase = "probing"
        prober = probes.Prober(fleet, self._ledger, self._ledger_folder, self._connect)
        found += await prober.run(PROBE_SECONDS)
        await self._drain()
        observing.cancel()
        self._phase = "stopping"
        late = await fleet.stop(STOP_SECONDS)
        found += [*self._of_processes(fleet, late), self._observer.probe(), _answers(submitters)]
        return await self._verdict(fleet, schedule, found)

    def _member(self, spec: MemberSpec) -> Member:
        database = self._ground.address(spec.name, pooled=spec.pooled)
        base = {
            "DATABASE_URL": database,
            "LEASE_DURATION": f"{LEASE_SECONDS:g}s",
            "LEASE_EXTENSION": "true",
            "RECOVERY_INTERVAL": f"{RECOVERY_SECONDS:g}s",
            "POLL_INTERVAL": "200ms",
            "SHUTDOWN_TIMEOUT": "1s",
            "LOG_LEVEL": "warning",
            "LOG_FORMAT": "json",
            "CHAOS_LEDGER": str(self._ledger_folder),
            "CHAOS_LEASE": f"{LEASE_SECONDS:g}",
        }
        if spec.pooled:
            base["DATABASE_POOLER"] = "transaction"
        environment = dict(environments(base, source=self._source))
        for name, value in self._ground.environment(spec.name).items():
            # Whatever else has to be loaded comes first.
            environment[name] = f"{value}{os.pathsep}{environment[name]}" if name == "PYTHONPATH" else value
        return Member(spec, environment=environment, folder=self._folder)

    def _migrate(self) -> None:
        environment = dict(environments({"DATABASE_URL": self._ground.address("runner")}, source=self._source))
        subprocess.run(
            [sys.executable, "-m", "fencepost", "migrate"],
            cwd=ROOT,
            env=environment,
            check=True,
            capture_output=True,
        )
        asyncio.run(self._execute(_TABLES))
        self._ground.migrated()

    async def _execute(self, sql: str) -> None:
        connection = await self._connect()
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    async def _connect(self) -> asyncpg.Connection[Any]:
        return await asyncpg.connect(self._ground.admin_dsn, timeout=5, command_timeout=120)

    async def _until_ready(self, fleet: Fleet) -> None:
        deadline = time.monotonic() + START_SECONDS
        async with httpx2.AsyncClient(timeout=2) as http:
            for member in fleet.apis:
                while True:
                    with contextlib.suppress(httpx2.HTTPError):
                        if (await http.get(f"http://127.0.0.1:{member.spec.port}/readyz")).status_code == 200:
                            break
                    if time.monotonic() > deadline:
                        raise RuntimeError(f"{member.spec.name} did not start: {member.log_end()}")
                    await asyncio.sleep(0.05)

    def _schedule(self, fleet: Fleet) -> Schedule:
        if self._options.schedule is not None:
            return self._options.schedule
        kinds = self._ground.kinds if pooling(self._ground) else self._ground.kinds - {"kill_pooler"}
        return draw_schedule(
            self._options.seed,
            fault_seconds(self._options.minutes),
            rates(self._options, kinds),
            workers=tuple(member.spec.name for member in fleet.workers),
            apis=tuple(member.spec.name for member in fleet.apis),
        )

    def _make_submitters(self, fleet: Fleet) -> Submitters:
        draw = random.Random(f"{self._options.seed} jobs")
        apis = [f"http://127.0.0.1:{member.spec.port}" for member in fleet.apis]
        databases = [self._ground.address("submitter")]
        return Submitters(self._ledger, draw, apis=apis, databases=databases)

    async def _finish(self, submitters: Submitters) -> Probe:
        """Have every request answered that was sent."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await submitters.finish()
        left = submitters.under_way
        await submitters.close()
        offenders = tuple(f"{left} requests" for _ in range(bool(left)))
        said = f"{DRAIN_SECONDS:g} seconds after the last fault every request has been answered."
        return Probe("submitters_answered", said, submitters.total, offenders)

    async def _drain(self) -> Probe:
        """Wait until every job has ended."""
        began = time.monotonic()
        while True:
            answered = await self._observer.look()
            if answered and not self._observer.live:
                break
            if time.monotonic() - began > DRAIN_SECONDS:
                break
            await asyncio.sleep(0.2)
        offenders = tuple(f"{self._observer.live} jobs" for _ in range(bool(self._observer.live)))
        said = f"{DRAIN_SECONDS:g} seconds after that nothing is left to do."
        return Probe("drained", said, self._observer.finished, offenders)

    def _of_processes(self, fleet: Fleet, late: list[str]) -> list[Probe]:
        count = fleet.ends.total() + len(fleet.members)
        return [
            Probe("ends_explained", "No process ended but by a fault or a script.", count, tuple(fleet.unexpected)),
            Probe("stopped_in_time", f"Every process ends within {STOP_SECONDS:g} s.", len(fleet.members), tuple(late)),
        ]

    async def _verdict(self, fleet: Fleet, schedule: Schedule, found: list[Probe]) -> Report:
        sync_all(self._ledger_folder)
        connection = await self._connect()
        try:
            version = str(await connection.fetchval("show server_version"))
            gathered = await evidence.gather(
                self._ledger_folder,
                connection,
                lease_seconds=LEASE_SECONDS,
                wall_offset=time.time() - time.monotonic(),
                audits=self._observer.audits,
                unbalanced=self._observer.unbalanced,
                probes=found,
            )
        finally:
            await connection.close()
        return self._report(fleet, schedule, gathered, version)

    def _report(self, fleet: Fleet, schedule: Schedule, gathered: Evidence, version: str) -> Report:
        injector, submitters = self._injector, self._submitters
        return Report(
            fencepost=fencepost.__version__,
            python=platform.python_version(),
            postgresql=version,
            seed=schedule.seed,
            preset=self._options.preset,
            broken=self._options.broken,
            replay=self._options.replay,
            seconds=round(time.monotonic() - self._began, 1),
            lease_seconds=LEASE_SECONDS,
            recovery_seconds=RECOVERY_SECONDS,
            schedule=schedule,
            faults=dict(injector.counts),
            not_carried_out={one.fault.kind: one.error for one in injector.injected if one.error is not None},
            killed_workers=injector.killed,
            ends=dict(fleet.ends),
            given_up=fleet.given_up,
            acknowledged=submitters.total,
            jobs_by_script=dict(submitters.acknowledged),
            doors=dict(submitters.doors),
            repeats=submitters.repeats,
            statuses=dict(Counter(str(job.status) for job in gathered.jobs)),
            attempts=sum(1 for record in gathered.attempts if isinstance(record, Start)),
            too_late=len(
                {(end.job, end.token) for end in gathered.attempts if isinstance(end, End) and end.how == "ok"}
                & {(row.id, row.token) for row in gathered.attempt_rows if row.outcome == "lost"}
            ),
            measures=measure(gathered, injector.injected, recovery_seconds=RECOVERY_SECONDS),
            checks=check_all(gathered),
        )

    async def _keep_telling(self, fleet: Fleet) -> None:
        while True:
            await asyncio.sleep(0.25)
            counts = [self._phase]
            if self._phase != "starting":
                counts.append(f"{self._submitters.total:,} jobs, {self._observer.live:,} not ended")
                counts.append(f"{self._injector.counts.total():,} faults, {self._injector.killed:,} workers killed")
            self._tell("; ".join(counts))


def _answers(submitters: Submitters) -> Probe:
    said = "No request was refused for good."
    return Probe("nothing_refused", said, submitters.total, tuple(submitters.refusals))
