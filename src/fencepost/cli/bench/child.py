"""
A worker in a process of its own: `python -m fencepost.cli.bench.child`.

Speaks lines of JSON. Reads what it is to be, says that it is ready, waits for a line,
runs until another comes, and meanwhile writes how many handlers have started; at the
end what it took. When its stdin closes it ends, so it never outlives the benchmark.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
import time

import msgspec

from fencepost.app import Fencepost
from fencepost.cli.worker_thread import new_event_loop
from fencepost.settings import Settings
from fencepost.telemetry.events import Events
from fencepost.worker.worker import Worker

REPORT_SECONDS = 0.01


class Config(msgspec.Struct, frozen=True):
    """What a child is to be."""

    dsn: str
    schema: str
    slots: int
    log_lines: bool = False


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
    totals: Totals | None = None


class Timed(msgspec.Struct, frozen=True):
    """The payload of a job that knows when it was handed in."""

    at: int


class Counter:
    """What the handlers note."""

    def __init__(self) -> None:
        self.started = 0
        self.first_at: int | None = None
        self.first_cpu = 0.0
        self.delays_ns: list[int] = []

    def begin(self, now: int) -> None:
        """One more handler has started."""
        if self.first_at is None:
            self.first_at, self.first_cpu = now, time.process_time()
        self.started += 1

    def cpu_seconds(self) -> float:
        """CPU time since the first handler started."""
        return 0.0 if self.first_at is None else time.process_time() - self.first_cpu


def main() -> None:
    """Run the child."""
    config = msgspec.json.decode(sys.stdin.readline(), type=Config)
    if config.log_lines:
        from fencepost.telemetry import logs

        logs.configure(Settings(log_format="json"), stream=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    else:
        logging.disable(logging.INFO)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run(config))


def jobs_of(counter: Counter) -> Fencepost:
    """The job types of the benchmarks: they count, and do nothing else."""
    app = Fencepost()

    @app.job("noop")
    async def noop(context: object, payload: object) -> None:
        counter.begin(time.monotonic_ns())

    @app.job("timed", payload=Timed)
    async def timed(context: object, payload: Timed) -> None:
        now = time.monotonic_ns()
        counter.begin(now)
        counter.delays_ns.append(now - payload.at)

    return app


async def _run(config: Config) -> None:
    counter = Counter()
    settings = Settings(schema=config.schema, workers=config.slots)
    worker = Worker(config.dsn, jobs_of(counter).types, settings, Events())
    commands = await _stdin()
    _say(Line())
    if not await commands.readline():
        return
    await worker.start()
    reporting = asyncio.create_task(_report(counter))
    await commands.readline()
    cpu_seconds = counter.cpu_seconds()
    reporting.cancel()
    await worker.drain(10)
    _say(Line(totals=Totals(cpu_seconds, _peak_memory_bytes(), counter.delays_ns)))


async def _report(counter: Counter) -> None:
    said = 0
    while True:
        if counter.started != said:
            said = counter.started
            _say(Line(said, time.monotonic_ns(), counter.first_at))
        await asyncio.sleep(REPORT_SECONDS)


async def _stdin() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def _peak_memory_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _say(line: Line) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
