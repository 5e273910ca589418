"""What the tests of the private server share."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from fencepost.embedded import EmbeddedPostgres
from fencepost.embedded.cluster import PidFile, runs_on

QUICK = {"fsync": "off", "max_connections": "10", "shared_buffers": "8MB"}

OWNER = """
import json, os, signal, sys, threading
from pathlib import Path
from fencepost.embedded import EmbeddedPostgres, server as server_module

arguments = json.loads(sys.argv[1])
server = EmbeddedPostgres(
    Path(arguments["data_dir"]), binaries=Path(arguments["binaries"]), options=arguments["options"]
)
if arguments["lingers"]:  # as on systems without a death signal
    shimmed = server_module.shimmed
    server_module.shimmed = lambda *a, **k: shimmed(*a, **{**k, "death_signal": signal.SIGCONT})
if arguments["unfinished"]:
    Path.rename = lambda *_: threading.Event().wait()
print("starting", flush=True)
server.start()
forked = 0
if arguments["forks"]:
    forked = os.fork()
    if forked == 0:
        server.stop()
        while True:
            signal.pause()
print(json.dumps({"pid": server.pid, "dsn": server.dsn, "forked": forked}), flush=True)
sys.stdin.readline()
"""


@dataclass
class Owner:
    """Another process that owns a server; it stays until it is killed or told to go."""

    process: subprocess.Popen[str]

    @classmethod
    def spawn(
        cls,
        server: EmbeddedPostgres,
        binaries: Path,
        *,
        forks: bool = False,
        lingers: bool = False,
        unfinished: bool = False,
    ) -> Owner:
        arguments = {
            "data_dir": str(server.data_dir),
            "binaries": str(binaries),
            "options": QUICK,
            "forks": forks,
            "lingers": lingers,
            "unfinished": unfinished,
        }
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", OWNER, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        owner = cls(process)
        assert owner.read_line() == "starting\n"
        return owner

    def read_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def wait_until_started(self) -> dict[str, str | int]:
        answer: dict[str, str | int] = json.loads(self.read_line())
        return answer

    def leave(self) -> int:
        """Tell the owner to end as programs do, without stopping its server."""
        self.process.communicate("\n", timeout=30)
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)


def query(server: EmbeddedPostgres | str, sql: str) -> object:
    """Run *sql* on a connection of its own and return the first value."""
    dsn = server if isinstance(server, str) else server.dsn

    async def fetch() -> object:
        connection = await asyncpg.connect(dsn, timeout=10)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(fetch())


def remember(server: EmbeddedPostgres | str) -> str:
    """Commit something, for `remembers`."""
    query(server, "create table if not exists kept (note uuid default gen_random_uuid())")
    return str(query(server, "insert into kept default values returning note"))


def remembers(server: EmbeddedPostgres | str, note: str) -> bool:
    return query(server, f"select count(*) from kept where note = '{note}'") == 1


def eventually(condition: Callable[[], bool], *, seconds: float = 20.0) -> bool:
    """Say whether *condition* comes true within *seconds*."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def serves(pid: int, server: EmbeddedPostgres) -> bool:
    """Say whether *pid* is a server on the data of *server*, whoever started it."""
    return runs_on(pid, server.data_dir / "postgres")


def is_served(data_dir: Path) -> bool:
    seen = PidFile.read(data_dir / "postgres")
    return seen is not None and runs_on(seen.pid, data_dir / "postgres")


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    os.chmod(path, 0o755)
