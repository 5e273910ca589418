"""
A PgBouncer of a test's own, in front of a server.

It refuses to run as root, so as root it runs as another account. It lets everybody in and asks
the server as the role of the client, so it is for servers that trust loopback: those of tests.
"""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from chaos.world.pooler import find_pgbouncer
from tests.ports import free_port

START_SECONDS = 20.0
MISSING = (
    "PgBouncer isn't installed, and these tests go through one; install it, "
    "with `apt-get install --no-install-recommends pgbouncer` say"
)


class Missing(Exception):
    """There is no PgBouncer on this machine; the message says how to get one."""


def program() -> str:
    """Where PgBouncer is. Raises Missing."""
    found = find_pgbouncer()
    if found is None:
        raise Missing(MISSING)
    return str(found)


def is_installed() -> bool:
    """Whether there is one."""
    return find_pgbouncer() is not None


class PgBouncer:
    """One process, and the addresses through it. For one server and every database of it."""

    def __init__(self, server_url: str, mode: str, *, pool_size: int = 4, folder: Path, **options: str) -> None:
        """*mode* is `pool_mode`; *options* are more lines of its configuration."""
        self.server_url = server_url
        self._server = urlsplit(server_url)
        self._folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._config = folder / "pgbouncer.ini"
        self._log = folder / "pgbouncer.log"
        lines = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": mode,
            "default_pool_size": str(pool_size),
            "max_client_conn": "500",
            "server_login_retry": "1",
            "server_fast_close": "1",
            "query_wait_timeout": "60",
            "ignore_startup_parameters": "extra_float_digits",
            "verbose": "0",
            **options,
        }
        text = f"[databases]\n* = {self._target()}\n\n[pgbouncer]\n"
        self._config.write_text(text + "".join(f"{name} = {value}\n" for name, value in lines.items()))

    def _account(self) -> str:
        """Whom it runs as in root's place: the owner of the server's socket, which nobody else may reach."""
        host = dict(parse_qsl(self._server.query)).get("host", "")
        owner = Path(host).stat().st_uid if host.startswith("/") else 0
        return pwd.getpwuid(owner).pw_name if owner else "nobody"

    def _target(self) -> str:
        query = dict(parse_qsl(self._server.query))
        host = query.get("host") or self._server.hostname or "127.0.0.1"
        port = query.get("port") or str(self._server.port or 5432)
        parts = [f"host={host}", f"port={port}"]
        if self._server.username:
            parts.append(f"user={unquote(self._server.username)}")
        if self._server.password:
            parts.append(f"password={unquote(self._server.password)}")
        return " ".join(parts)

    def url(self, url: str) -> str:
        """The database of *url*, an address of the server itself, through this."""
        there = urlsplit(url)
        account = f"{there.username}@" if there.username else ""
        query = [(name, value) for name, value in parse_qsl(there.query) if name not in ("host", "port")]
        return urlunsplit(there._replace(netloc=f"{account}127.0.0.1:{self.port}", query=urlencode(query)))

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [program(), str(self._config)]
        if os.geteuid() == 0:
            command[1:1] = ["-u", self._account()]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"PgBouncer doesn't start: {self.log()[-2000:]}") from None
                time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT waits for transactions, SIGKILL for nothing. Safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal: SIGSTOP, and it is silent until SIGCONT."""
        assert self._process is not None, "it isn't running"
        self._process.send_signal(number)

    def log(self) -> str:
        """What it has said."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""


@contextmanager
def running(server_url: str, mode: str, *, pool_size: int = 4, **options: str) -> Iterator[PgBouncer]:
    """A PgBouncer for as long as this lasts. Raises Missing."""
    program()
    with tempfile.TemporaryDirectory(prefix="fencepost-pooler-") as name:
        folder = Path(name)
        # As root it runs under another account, which has to read its configuration.
        folder.chmod(0o755)
        bouncer = PgBouncer(server_url, mode, pool_size=pool_size, folder=folder, **options)
        bouncer.start()
        try:
            yield bouncer
        finally:
            bouncer.stop(signal.SIGKILL)
