"""
Child processes that answer questions: one line of JSON each way.

A child reads what it is to be from its first line, says that it is ready, and then
answers line by line. When its stdin closes it ends, so it never outlives the benchmark.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from fencepost.errors import FencepostError

ANSWER_SECONDS = 60.0
"""Longest wait for an answer, and for the end."""
_LINE_LIMIT = 256 << 20
"""A child's answer may hold a number a job."""

_T = TypeVar("_T")


class Process:
    """A child from the benchmark's side."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, question: object, kind: type[_T], *, seconds: float = ANSWER_SECONDS) -> _T:
        """Send a line and read the answer. Raises FencepostError when none comes in time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(question) + b"\n")
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), seconds)
        except TimeoutError:
            raise FencepostError(f"a process of the benchmark did not answer within {seconds:.0f} s") from None
        if not line:
            raise FencepostError("a process of the benchmark ended before its time; its output says why")
        return msgspec.json.decode(line, type=kind)


async def spawn(module: str) -> asyncio.subprocess.Process:
    """Start `python -m` *module*, to be spoken to over its stdin and stdout."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LINE_LIMIT,
        # A Ctrl-C is for the command, which ends its children itself.
        start_new_session=True,
    )


@asynccontextmanager
async def process(module: str) -> AsyncIterator[Process]:
    """Start `python -m` *module*; let it end afterwards, and kill it if it doesn't."""
    started = await spawn(module)
    try:
        yield Process(started)
        assert started.stdin is not None
        started.stdin.close()
        await asyncio.wait([asyncio.ensure_future(started.wait())], timeout=ANSWER_SECONDS)
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def answering(kind: type[_T], answer: Callable[[_T], Awaitable[object]]) -> None:
    """On the child's side: answer each line of stdin, until it closes."""
    asked = await stdin()
    while line := await asked.readline():
        say(await answer(msgspec.json.decode(line, type=kind)))


async def stdin() -> asyncio.StreamReader:
    """On the child's side: what it is told, line by line."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def say(message: object) -> None:
    """On the child's side: one line of JSON."""
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()
