"""Runs the examples as their heads say: as programs, with a database of the test's own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

import asyncpg

from tests.service.support import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
START_SECONDS = 40.0
_INHERITED = ("PATH", "HOME", "LANG", "TMPDIR")
# What is left open shows itself here, whoever has left it.
_COMPLAINTS = re.compile(r"deleted while still open|unclosed (?!<socket)|never awaited|was destroyed but it is pending")


def environment(**more: str) -> dict[str, str]:
    """Nothing of ours but what any program has, and *more*."""
    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {
        **kept,
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "default::ResourceWarning,default::RuntimeWarning",
        **more,
    }


def run(*arguments: str, folder: Path = EXAMPLES, code: int = 0, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a Python program to its end, which must be with exit code *code* and without a complaint."""
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert not _COMPLAINTS.search(ended.stderr), ended.stderr
    return ended


async def refuse_at_commit(url: str, table: str, condition: str) -> None:
    """Let the commit of each transaction fail that has inserted such a row, after all of its statements succeeded."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            f"""
            create function refuse() returns trigger language plpgsql as
            $$ begin raise exception 'refused at the commit'; end $$;
            create constraint trigger refuse after insert on {table} deferrable initially deferred
            for each row when ({condition}) execute function refuse()
            """
        )
    finally:
        await connection.close()


async def count(url: str, table: str) -> int:
    """How many rows a table has."""
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval(f"select count(*) from {table}"))
    finally:
        await connection.close()


class Program:
    """A Python program that goes on until it is told to stop."""

    def __init__(self, *arguments: str, folder: Path = EXAMPLES, started: str, **more: Any) -> None:
        self._started = started
        self.said: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env=environment(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self.said.extend(iter(lines.readline, ""))

    def __enter__(self) -> Self:
        try:
            self.wait_for(self._started)
        except BaseException:
            self.process.kill()
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"it doesn't stop: {self.text}") from None
        finally:
            self._reader.join(5)
        if kind is None:
            assert not _COMPLAINTS.search(self.text), self.text

    @property
    def text(self) -> str:
        """All that it has said."""
        return "".join(list(self.said))

    def wait_for(self, pattern: str) -> None:
        """Until it says something that matches."""

        def said() -> bool:
            assert self.process.poll() is None or re.search(pattern, self.text), f"it ended: {self.text}"
            return re.search(pattern, self.text) is not None

        wait_until(said, START_SECONDS, f"{pattern!r} to be said")


def worker(app: str, **more: Any) -> Program:
    """`fencepost worker` for an example, in the folder of the examples."""
    return Program("-m", "fencepost", "worker", app, started="no API", **more)


def call(url: str, body: object = None, method: str | None = None) -> tuple[int, Any]:
    """Send a request with a JSON body; returns the status and the answer, read."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=40) as answer:
            return answer.status, _read(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _read(error.read())


def _read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode()


def wait_until_answering(url: str, program: Program) -> None:
    """Until somebody accepts requests there."""

    def answers() -> bool:
        assert program.process.poll() is None, program.text
        try:
            call(url)
        except OSError:
            time.sleep(0.05)
            return False
        return True

    wait_until(answers, START_SECONDS, f"{url} to answer")
