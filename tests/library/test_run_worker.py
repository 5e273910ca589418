"""`run_worker` in a program of its own: signals stop it, and no job pays for that."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fencepost import Fencepost, Settings
from fencepost.worker.stop_signals import stopping

from ..worker.support import wait_until, within

SCRIPT = """
import asyncio, os, signal, sys, threading, time
from fencepost import Fencepost

app = Fencepost(sys.argv[1])

@app.job
async def short() -> str:
    print("running", flush=True)
    await asyncio.sleep(0.3)
    return "done"

@app.job
async def long() -> None:
    print("running", flush=True)
    await asyncio.sleep(60)

@app.job
async def blocking() -> None:
    print("running", flush=True)
    time.sleep(60)

"""
PLAIN = "asyncio.run(app.run_worker(workers=2))\nprint('after', flush=True)\n"
TWO = """
async def main():
    await asyncio.gather(app.run_worker(), app.run_worker())
asyncio.run(main())
print('after', flush=True)
"""
UVLOOP = """
import uvloop
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(app.run_worker())
print('after', flush=True)
"""
OWN = """
def mine(number, frame):
    print("mine", number, flush=True)
signal.signal(signal.SIGTERM, mine)
asyncio.run(app.run_worker())
print('after', flush=True)
"""


@contextmanager
def program(script: str, database_url: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(SCRIPT) + script, database_url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), 20)).strip()


async def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = await asyncio.to_thread(process.communicate, timeout=20)
    return process.returncode, out, err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("script", [PLAIN, TWO, UVLOOP], ids=["plain", "two", "uvloop"])
async def test_a_signal_lets_running_jobs_finish(
    app: Fencepost, database_url: str, number: signal.Signals, script: str
) -> None:
    handle = await app.declare("short").enqueue({})
    with program(script, database_url) as process:
        assert await said(process) == "running"
        process.send_signal(number)
        assert await ended(process) == (0, "after\n", "")
    job = await handle.get()
    assert (job.status, job.attempts) == ("completed", 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_what_takes_too_long_is_released_without_costing_an_attempt(
    app: Fencepost, database_url: str, number: signal.Signals
) -> None:
    handle = await app.declare("long").enqueue({})
    with program(PLAIN, database_url, SHUTDOWN_TIMEOUT="200ms") as process:
        assert await said(process) == "running"
        process.send_signal(number)
        code, out, err = await ended(process)
    assert (code, out) == (0, "after\n")
    # It is told, in one line without a traceback.
    assert re.fullmatch(r"job finished: long \S+ released in attempt 1, to be tried again at once: .*\n", err)
    job = await handle.get()
    assert (job.status, job.attempts) == ("pending", 0)


@pytest.mark.parametrize("name", ["long", "blocking"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_it_at_once(
    app: Fencepost, database_url: str, number: signal.Signals, name: str
) -> None:
    """Also where a job blocks the loop, which then never hears of the first."""
    handle = await app.declare(name).enqueue({})
    script = PLAIN.replace("asyncio.run", TELL + "asyncio.run", 1)
    with program(script, database_url, SHUTDOWN_TIMEOUT="60s") as process:
        assert await said(process) == "running"
        process.send_signal(number)
        assert await said(process) == "heard"
        process.send_signal(number)
        code, out, err = await ended(process)
        assert (code, out, err) == (-number, "", "")
    assert (await handle.get()).status == "processing"


TELL = """
def tell():
    # Says when the first signal was taken: what it does is Python's default from then on.
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        time.sleep(0.01)
    while signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        time.sleep(0.01)
    print("heard", flush=True)
threading.Thread(target=tell, daemon=True).start()
"""


async def test_a_signal_that_the_program_handles_is_left_to_it(app: Fencepost, database_url: str) -> None:
    handle = await app.declare("short").enqueue({})
    with program(OWN, database_url) as process:
        assert await said(process) == "running"
        process.send_signal(signal.SIGTERM)
        assert await said(process) == f"mine {signal.SIGTERM.value}"
        process.send_signal(signal.SIGINT)
        assert await ended(process) == (0, "after\n", "")
    assert (await handle.get()).status == "completed"


async def test_signals_do_afterwards_what_they_did_before(database_url: str, settings: Settings) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    app = Fencepost(database_url, settings=settings)
    working = [asyncio.create_task(app.run_worker()) for _ in range(2)]
    await wait_until(lambda: len(app._producer.wakers) == 2, 10)
    assert all(signal.getsignal(number) is not handler for number, handler in before.items())
    working[0].cancel()
    await asyncio.wait(working[:1])
    os.kill(os.getpid(), signal.SIGTERM)
    await within(10, working[1])
    assert {number: signal.getsignal(number) for number in before} == before
    await app.close()


async def test_outside_of_the_main_thread_signals_are_left_alone() -> None:
    def elsewhere() -> bool:
        before = signal.getsignal(signal.SIGTERM)
        with stopping():
            return signal.getsignal(signal.SIGTERM) is before

    assert await asyncio.to_thread(asyncio.run, _called(elsewhere))


async def _called(function: object) -> bool:
    return bool(function())  # type: ignore[operator]
