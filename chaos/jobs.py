"""
The jobs of the fleet: each does what its payload's script says, and writes down that it did.

A start is written before anything else happens, an end before the attempt ends in that
way. So what the database says of an attempt can be held against what its process did.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

import asyncpg

from chaos.ledger import AttemptLedger, End, Start
from fencepost import Constant, Context, Fencepost, Permanent, Snooze

EXIT_CODE = 77
"""What a process ends with that a job has ended."""
LEASE_SECONDS = float(os.environ.get("CHAOS_LEASE", "2"))
LARGE_CHARACTERS = 30_000

app = Fencepost()
_ledger = AttemptLedger(Path(os.environ.get("CHAOS_LEDGER", ".")))


def _start(context: Context, script: str) -> None:
    _ledger.write(
        Start(
            job=str(context.id),
            token=context.token,
            attempt=context.attempt,
            script=script,
            pid=os.getpid(),
            at=time.time(),
            monotonic=time.monotonic(),
            parent=os.getppid(),
        )
    )


def _end(context: Context, how: str) -> None:
    _ledger.write(End(str(context.id), context.token, how, os.getpid(), time.time(), time.monotonic()))


def _done(context: Context, key: str, **more: object) -> dict[str, object]:
    """The result: it names its attempt, so that nobody else's can pass for it."""
    _end(context, "ok")
    return {"token": context.token, "attempt": context.attempt, "pid": os.getpid(), "key": key, **more}


def _goes_wrong(context: Context, script: str, times: int) -> None:
    """What all kinds of function share: the failures, and the deaths."""
    if script == "poison" or (script == "retry" and context.attempt <= times):
        _end(context, "fail")
        raise ConnectionError("as the script says")
    if script == "permanent":
        _end(context, "permanent")
        raise Permanent("as the script says")
    if script == "snooze" and context.token <= times:
        _end(context, "snooze")
        raise Snooze(0.2)
    if script in _DEATHS and (script == "crash_always" or context.attempt <= times):
        _end(context, "die")
        _DEATHS[script]()


def _segfault() -> None:
    # A null pointer is read. No core file of it.
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


_DEATHS: dict[str, Any] = {
    "exit": lambda: os._exit(EXIT_CODE),
    "crash_always": lambda: os._exit(EXIT_CODE),
    "segfault": _segfault,
    "kill_self": _kill_self,
    "child_dies": _kill_self,
}


@app.job(backoff=Constant(0.2, jitter=0.5))
async def play(context: Context, script: str, key: str, times: int = 0) -> dict[str, object] | None:
    """A coroutine's part."""
    _start(context, script)
    _goes_wrong(context, script, times)
    try:
        return await _play(context, script, key)
    except asyncio.CancelledError:
        _end(context, "interrupted")
        raise


async def _play(context: Context, script: str, key: str) -> dict[str, object] | None:
    if script == "slow":
        await asyncio.sleep(LEASE_SECONDS * 1.5)
    elif script == "probe":
        await asyncio.sleep(0.3)
    elif script == "linger":
        # The first attempt ends while its worker may be cut off; the next one is still at it when that worker is back.
        await asyncio.sleep(LEASE_SECONDS * (0.5 if context.token == 1 else 3.0))
    elif script == "block":
        time.sleep(LEASE_SECONDS * 1.3)  # noqa: ASYNC251 - it is to block the loop, for longer than a lease
    elif script in ("timeout", "cancel"):
        await asyncio.sleep(3)
    elif script == "stubborn":
        try:
            await asyncio.sleep(3)
        except asyncio.CancelledError:
            await asyncio.sleep(1.0)
            _end(context, "interrupted")
            return None
    elif script == "effect":
        return await _effect(context, key)
    elif script == "large":
        return _done(context, key, blob="x" * LARGE_CHARACTERS)
    return _done(context, key)


@app.job(backoff=Constant(0.2, jitter=0.5))
def play_plain(context: Context, script: str, key: str, times: int = 0) -> dict[str, object]:
    """A plain function's part, in a thread."""
    _start(context, script)
    _goes_wrong(context, script, times)
    time.sleep(LEASE_SECONDS * 1.3 if script == "block_thread" else 0.005)
    return _done(context, key)


@app.job(process=True, backoff=Constant(0.2, jitter=0.5))
def play_in_child(context: Context, script: str, key: str, times: int = 0) -> dict[str, object]:
    """A child process's part."""
    _start(context, script)
    _goes_wrong(context, script, times)
    return _done(context, key, sum=sum(range(20_000)))


async def _effect(context: Context, key: str) -> dict[str, object]:
    """Write a row and complete in one transaction. Nothing in the table keeps a second row out."""
    connection = await asyncpg.connect(os.environ["DATABASE_URL"], timeout=5, statement_cache_size=0)
    try:
        async with asyncio.timeout(10), connection.transaction():
            await connection.execute(
                "insert into chaos.effects (job, token) values ($1, $2)", context.id, context.token
            )
            result = _done(context, key)
            await context.complete_in(connection, result)
        return result
    finally:
        connection.terminate()
