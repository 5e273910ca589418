"""
A worker in a process of its own: `python -m fencepost.cli.bench.child`.

Speaks lines of JSON. Reads what it is to be, says that it is ready, waits for a line,
runs until another comes, and meanwhile writes how many handlers have started, when more
have: a worker that has nothing to do is left alone. At the end it writes what it took.
When its stdin closes it ends, so it never outlives the benchmark.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
import time
from array import array

import msgspec

from fencepost.app import Fencepost
from fencepost.cli.bench.processes import say, stdin
from fencepost.cli.bench.reaching import settings_of
from fencepost.cli.worker_thread import new_event_loop
from fencepost.domain.context import Context
from fencepost.settings import Settings
from fencepost.telemetry.events import Events
from fencepost.worker.worker import Worker

FAILING_BYTES = 100_000
"""What a failing handler has in its frame."""


class Config(msgspec.Struct, frozen=True):
    """What a child is to be."""

    dsn: str
    schema: str
    slots: int
    log_lines: bool = False
    report_seconds: float = 0.01
    """How long after a start it is reported, along with those that came meanwhile."""
    counts_tasks: bool = False
    """Whether it also says how many tasks there are, which takes longer the more there are."""


class Totals(msgspec.Struct, frozen=True):
    """What a child took, from its first handler on."""

    cpu_seconds: float
    peak_memory_bytes: int
    delays_ns: list[int]
    """Of each job that knows when it was handed in, until its handler's first line."""


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a child says: that it is ready (no time), how far it is, or at last its totals."""

    started: int = 0
    at: int | None = None
    first_at: int | None = None
    tasks: int = 0
    totals: Totals | None = None


class Timed(msgspec.Struct, frozen=True):
    """The payload of a job that knows when it was handed in."""

    at: int


class Counter:
    """What the handlers note."""

    def __init__(self, report_seconds: float, *, counts_tasks: bool = False) -> None:
        self._report_seconds = report_seconds
        self._counts_tasks = counts_tasks
        self._reporting: asyncio.TimerHandle | None = None
        self.started = 0
        self.first_at: int | None = None
        self.first_cpu = 0.0
        # Half a gigabyte would be objects, were it a list, after ten minutes of a busy queue.
        self.delays_ns = array("q")

    def begin(self, now: int) -> None:
        """One more handler has started."""
        if self.first_at is None:
            self.first_at, self.first_cpu = now, time.process_time()
        self.started += 1
        if self._reporting is None:
            self._reporting = asyncio.get_running_loop().call_later(self._report_seconds, self._report)

    def cpu_seconds(self) -> float:
        """CPU time since the first handler started."""
        return 0.0 if self.first_at is None else time.process_time() - self.first_cpu

    def stop(self) -> None:
        """Report no more."""
        if self._reporting is not None:
            self._reporting.cancel()

    def _report(self) -> None:
        self._reporting = None
        tasks = len(asyncio.all_tasks()) if self._counts_tasks else 0
        say(Line(self.started, time.monotonic_ns(), self.first_at, tasks))


def main() -> None:
    """Run the child."""
    config = msgspec.json.decode(sys.stdin.readline(), type=Config)
    if config.log_lines or config.counts_tasks:
        from fencepost.telemetry import logs

        # What fails is logged with its traceback: a part of what a failure costs.
        settings = Settings(log_format="json", log_level="info" if config.log_lines else "warning")
        logs.configure(settings, stream=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the end
    else:
        logging.disable(logging.INFO)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run(config))


def jobs_of(counter: Counter) -> Fencepost:
    """The job types of the benchmarks: they count, and do nothing else; one fails at first."""
    app = Fencepost()

    async def noop(context: object, payload: object) -> None:
        counter.begin(time.monotonic_ns())

    async def timed(context: object, payload: Timed) -> None:
        now = time.monotonic_ns()
        counter.begin(now)
        counter.delays_ns.append(now - payload.at)

    async def fails(context: Context, payload: object) -> None:
        counter.begin(time.monotonic_ns())
        if context.attempt == 1:
            _fail(bytearray(FAILING_BYTES))

    app.register("noop", noop)
    app.register("fails", fails)
    app.register("timed", timed, payload=Timed)
    return app


def _fail(held: bytearray) -> None:
    """Raise, as real code does: some calls deep, with something large in a frame."""
    nothing: dict[int, int] = {}
    try:
        nothing[len(held)]
    except KeyError as error:
        raise RuntimeError(f"no entry of {len(held):,} bytes") from error


async def _run(config: Config) -> None:
    counter = Counter(config.report_seconds, counts_tasks=config.counts_tasks)
    settings = settings_of(config.dsn, config.schema, workers=config.slots)
    worker = Worker(config.dsn, jobs_of(counter).types, settings, Events())
    commands = await stdin()
    say(Line())
    if not await commands.readline():
        return
    await worker.start()
    await commands.readline()
    cpu_seconds = counter.cpu_seconds()
    counter.stop()
    await worker.drain(10)
    say(Line(totals=Totals(cpu_seconds, _peak_memory_bytes(), counter.delays_ns.tolist())))


def _peak_memory_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main()
