"""PgBouncer between the fleet and the proxy."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Self

from chaos.world import processes
from chaos.world.server import WorldError
from fencepost.embedded.launch import environment
from fencepost.embedded.privileges import Identity

PLACES = "/usr/sbin:/usr/local/sbin"
"""Where packages put it, besides PATH."""
START_SECONDS = 10.0

_CONFIGURATION = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = {mode}
default_pool_size = {pool_size}
max_client_conn = 1000
ignore_startup_parameters = extra_float_digits
server_login_retry = 1
server_connect_timeout = 5
query_wait_timeout = 30
log_connections = 0
log_disconnections = 0
stats_period = 600
"""


def find_pgbouncer() -> Path | None:
    """The program on this machine; None when it isn't installed, and nothing of the pooler can be covered."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path=PLACES)
    return Path(found) if found else None


class Pooler:
    """
    A PgBouncer on a port of 127.0.0.1 that keeps its number when it is started again.

    Methods may be called from any thread; one that starts or ends it waits for another.
    """

    def __init__(self, folder: Path, host: str, port: int, *, mode: str = "transaction", pool_size: int = 20) -> None:
        """Lead to *host* and *port*. *folder* is made, and removed by `stop`."""
        self._folder = folder.resolve()
        self._target = (host, port)
        self._mode = mode
        self._pool_size = pool_size
        self._process: processes.Process | None = None
        self._lock = threading.RLock()
        with socket.create_server(("127.0.0.1", 0)) as finder:
            self.port: int = finder.getsockname()[1]

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.is_running else None

    def dsn(self, *, user: str = "app", database: str = "fencepost") -> str:
        """The address of the database through the pooler."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def start(self) -> float:
        """Start it and return when it takes connections, with the seconds that took. Raises WorldError."""
        begun = time.monotonic()
        with self._lock:
            if self.pid is None:
                self._start(begun + START_SECONDS)
        return time.monotonic() - begun

    def _start(self, deadline: float) -> None:
        program = find_pgbouncer()
        if program is None:
            raise WorldError("PgBouncer is not installed here")
        identity = _identity()
        configuration = self._configure(identity)
        command = [str(program), "-q", str(configuration)]
        log = self._folder / "pgbouncer.log"
        self._process = processes.Process(command, folder=self._folder, env=environment(), log=log, identity=identity)
        while not self._listens():
            if not self._process.is_running or time.monotonic() > deadline:
                raise WorldError(f"PgBouncer did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.005)

    def _configure(self, identity: Identity) -> Path:
        if not self._folder.exists():
            self._folder.mkdir(parents=True)
            self._folder.chmod(0o711)
        users = self._folder / "users.txt"
        users.write_text('"app" ""\n"fencepost" ""\n')
        host, port = self._target
        configuration = self._folder / "pgbouncer.ini"
        configuration.write_text(
            _CONFIGURATION.format(
                host=host, port=port, listen_port=self.port, users=users, mode=self._mode, pool_size=self._pool_size
            )
        )
        for path in (users, configuration):
            path.chmod(0o600)
            identity.own(path)
        return configuration

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL: every session through it ends without a word."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process = None

    def restart(self, *, down: float = 0.0) -> float:
        """Kill it and start it again *down* seconds later; the seconds until it takes connections."""
        begun = time.monotonic()
        with self._lock:
            self.kill()
            time.sleep(down)
            self.start()
        return time.monotonic() - begun

    def pause(self) -> None:
        """SIGSTOP: everything hangs. `resume` ends it."""
        if self._process is not None:
            self._process.pause()

    def resume(self) -> None:
        """Let it go on."""
        if self._process is not None and self._process.is_running:
            self._process.resume()

    def stop(self) -> None:
        """End it and remove its folder. Safe to call twice."""
        with self._lock:
            if self._process is not None:
                self._process.resume()
                self._process.signal(signal.SIGINT)
                if not self._process.wait(2.0):
                    self._process.kill()
                self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def _identity() -> Identity:
    """PgBouncer refuses to run as root, too, and needs nothing of the database's account: `nobody` does."""
    if os.geteuid() != 0:
        return Identity("itself", "as the current user", os.geteuid(), os.getegid())
    nobody = pwd.getpwnam("nobody")
    return Identity(f"account:{nobody.pw_uid}:{nobody.pw_gid}", "as nobody", nobody.pw_uid, nobody.pw_gid)
