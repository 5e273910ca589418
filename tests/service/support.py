"""Runs `fencepost serve` as its users do: as a process, over HTTP, with signals."""

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
from collections.abc import Callable
from typing import Any, Self

import msgspec

from tests.patience import limit

START_SECONDS = 30.0


class Answer(msgspec.Struct):
    """An HTTP answer."""

    status: int
    body: Any
    headers: dict[str, str]


class Service:
    """A running `fencepost serve` on a free port of loopback."""

    command = "serve"

    def __init__(self, *arguments: str, **environment: str) -> None:
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fencepost", self.command, *arguments],
            env={**inherited, "HTTP_ADDR": "127.0.0.1:0", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        self.logged: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.logged), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self.said), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        self.url = ""

    def __enter__(self) -> Self:
        self.wait_until_listening()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _read(self, stream: Any, lines: list[str]) -> None:
        with stream:
            lines.extend(iter(stream.readline, ""))

    def wait_until_listening(self) -> None:
        """Until it has said where it listens."""

        def found() -> bool:
            for line in list(self.said):
                match = re.search(r"API on \S+ \(([\d.]+:\d+)\)", line)
                if match:
                    self.url = f"http://{match[1]}"
            if self.process.poll() is not None and not self.url:
                raise AssertionError(f"serve ended with {self.process.returncode}: {self.said}")
            return bool(self.url)

        wait_until(found, START_SECONDS, "serve to listen")

    def kill(self) -> None:
        """kill -9, if it still runs."""
        self.process.kill()
        self.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait(self, seconds: float = 30) -> int:
        """Until it has ended; returns its exit code."""
        code = self.process.wait(seconds)
        for reader in self._readers:
            reader.join(5)
        return code

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines with this event."""
        # A process that was killed may have been in the middle of its last one.
        parsed = [json.loads(line) for line in list(self.logged) if line.endswith("\n")]
        return [line for line in parsed if line["event"] == name]

    def call(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """Send a request with a JSON body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json", **headers}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=15) as answer:
                return _answer(answer.status, answer.read(), answer.headers)
        except urllib.error.HTTPError as error:
            with error:
                return _answer(error.code, error.read(), error.headers)

    def post(self, body: object, **headers: str) -> dict[str, Any]:
        """Submit a job; returns its record."""
        answer = self.call("POST", "/jobs", body, **headers)
        assert answer.status in (200, 201), answer
        record: dict[str, Any] = answer.body
        return record

    def job(self, job_id: str) -> dict[str, Any]:
        """Read a job."""
        record: dict[str, Any] = self.call("GET", f"/jobs/{job_id}").body
        return record

    def wait_for(self, job_id: str, *statuses: str, seconds: float = 20) -> dict[str, Any]:
        """Until the job has one of these statuses; returns its record."""
        wait_until(lambda: self.job(job_id)["status"] in statuses, seconds, f"{job_id} to be {statuses}")
        return self.job(job_id)

    def wait_until_running(self, job_id: str, seconds: float = 20) -> None:
        """Until its handler runs here: the database calls it `processing` before the worker has it."""
        wait_until(
            lambda: any(line["job_id"] == job_id for line in self.events("job started")), seconds, f"{job_id} to run"
        )


def wait_until(predicate: Callable[[], bool], seconds: float, what: str) -> None:
    """Until *predicate* holds; fails after *seconds*, and some patience."""
    deadline = time.monotonic() + limit(seconds)
    while not predicate():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.02)


def _answer(status: int, body: bytes, headers: Any) -> Answer:
    try:
        parsed = json.loads(body)
    except ValueError:
        parsed = body.decode()
    return Answer(status, parsed, {name.lower(): value for name, value in headers.items()})
