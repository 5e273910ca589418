"""The private server: found, set up, started, watched and stopped."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from fencepost.embedded.binaries import Binaries, find_binaries
from fencepost.embedded.cluster import (
    NAME,
    PidFile,
    end_leftover,
    initialise,
    read_major,
    remove_remains,
    tail,
)
from fencepost.embedded.folders import SOCKET_PORT, make_data_dir, make_socket_folder, open_private
from fencepost.embedded.launch import Child, environment, run, shimmed
from fencepost.embedded.lock import DataLock
from fencepost.embedded.privileges import Identity, choose_identity
from fencepost.errors import EmbeddedError

START_TIMEOUT_SECONDS = 30.0
"""How long a starting server may be silent. Recovery after a crash reports its progress."""
LOG_LIMIT_BYTES = 10 * 1024 * 1024

DEFAULT_OPTIONS = {
    "max_connections": "100",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "log_checkpoints": "off",
    "lc_messages": "C",
    "cluster_name": "fencepost",
    "logging_collector": "off",
}
RESERVED_OPTIONS = frozenset(
    {
        *("data_directory", "hba_file", "listen_addresses", "port"),
        *("unix_socket_directories", "unix_socket_group", "unix_socket_permissions"),
    }
)
_STOP = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))


class EmbeddedPostgres:
    """
    A private PostgreSQL server that lives as long as its owner.

    One process owns a data directory at a time. However that process ends, the server
    ends with it, and the next start has all that was committed. On systems other than
    Linux a killed owner's server stays until the next start ends it.

    A server that died by itself shows as `is_running` being false; `start` then starts
    it again. Nobody is told by themselves.

    The methods block, for half a second at a first start, and may be called from any
    thread. A forked child has no part in the server: there, `stop` does nothing.
    """

    def __init__(
        self, data_dir: Path, *, binaries: Path | None = None, options: Mapping[str, str] | None = None
    ) -> None:
        """
        Describe the server; nothing is touched before `start`.

        *options* are PostgreSQL's settings. Those that keep the server private can't be
        among them.
        """
        refused = sorted(RESERVED_OPTIONS.intersection(options or {}))
        if refused:
            raise EmbeddedError(f"A private server decides about {', '.join(refused)} itself. Leave it out.")
        self._data_dir = Path(data_dir).expanduser().absolute().resolve()
        self._data = self._data_dir / "postgres"
        self._log = self._data_dir / "server.log"
        self._folder_of_binaries = binaries
        self._options = {**DEFAULT_OPTIONS, **(options or {})}
        self._binaries: Binaries | None = None
        self._socket_folder: Path | None = None
        self._lock = DataLock(self._data_dir / "fencepost.lock")
        self._child: Child | None = None
        self._guard = threading.RLock()
        self._owner = 0

    @property
    def data_dir(self) -> Path:
        return self._data_dir

    @property
    def log_file(self) -> Path:
        """Where PostgreSQL's messages go. Set aside as `server.log.1` when large."""
        return self._log

    @property
    def dsn(self) -> str:
        """
        The address for asyncpg and libpq. The same at every start of the same folder.

        Raises EmbeddedError before the first start.
        """
        if self._socket_folder is None:
            raise EmbeddedError("The private PostgreSQL has no address yet: call start() first.")
        return f"postgresql://{NAME}@/{NAME}?host={quote(str(self._socket_folder))}&port={SOCKET_PORT}"

    @property
    def version(self) -> str:
        """PostgreSQL's version, such as `18.6`: the one that runs, or would."""
        return self._find_binaries().version

    @property
    def pid(self) -> int | None:
        child = self._child
        return child.pid if child is not None and child.is_running else None

    @property
    def is_running(self) -> bool:
        return self.pid is not None

    def start(self) -> None:
        """
        Start the server, and set it up if this is the first time; return when it answers.

        Does nothing while it runs. After a failure nothing is left running or locked.

        Raises EmbeddedError, whose message says what to do next.
        """
        with self._guard:
            if self.is_running and self._owner == os.getpid():
                return
            try:
                self._start()
            except OSError as error:
                self.stop()
                raise EmbeddedError(
                    f"The private PostgreSQL can't use {self._data_dir}: {error}. "
                    "Set DATA_DIR to a folder that this user may write to, "
                    "or DATABASE_URL to a PostgreSQL server that you run."
                ) from error
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """
        Stop the server in good order and let go of the data directory.

        Open transactions are rolled back. Safe to call twice, and when nothing runs.
        """
        if self._owner != os.getpid():
            return
        with self._guard:
            if self._child is not None:
                self._child.end(*_STOP)
                self._child = None
            if self._socket_folder is not None:
                with contextlib.suppress(OSError):
                    self._socket_folder.rmdir()
            self._lock.release()
            atexit.unregister(self.stop)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> None:
        self._owner = os.getpid()
        self._child = None
        make_data_dir(self._data_dir)
        if not self._lock.is_held:
            self._lock.acquire()
        atexit.register(self.stop)
        binaries = self._find_binaries()
        identity = choose_identity(data=self._data, folder=self._data_dir, probe=self._probe)
        remove_remains(self._data)
        if read_major(self._data) is None:
            durable = self._options.get("fsync", "on").lower() in ("on", "true", "yes", "1")
            initialise(self._data, binaries=binaries, identity=identity, durable=durable)
        stale_pid = end_leftover(self._data)
        self._socket_folder = make_socket_folder(self._data_dir, identity)
        self._launch(identity, stale_pid)
        self._lock.publish(self.dsn)

    def _find_binaries(self) -> Binaries:
        if self._binaries is None:
            self._binaries = find_binaries(self._folder_of_binaries, major=read_major(self._data))
        return self._binaries

    def _probe(self, identity: Identity) -> str | None:
        # initdb rather than postgres: it needs the libraries that travel beside the programs.
        command: list[str | Path] = [self._find_binaries().initdb, "--version"]
        succeeded, output = run(command, identity=identity, folder=self._data_dir)
        return None if succeeded else tail(output).strip()

    def _launch(self, identity: Identity, stale_pid: int | None) -> None:
        """
        Run the server until it is ready.

        Processes of a server that was killed may hold its memory for a moment; PostgreSQL
        refuses to start until they are gone, and we try again.
        """
        command = shimmed(self._server_command(), identity=identity, folder=self._data_dir, death_signal=signal.SIGINT)
        # PostgreSQL takes a pid file that names this process for its starter's, and so for
        # stale, but still checks that none of the old server's processes is left.
        env = environment({"PG_GRANDPARENT_PID": str(stale_pid)} if stale_pid else None)
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while True:
            log = self._open_log()
            try:
                begin = os.fstat(log).st_size
                self._child = Child(command, env=env, output=log)
                if self._wait_until_ready(self._child, log):
                    return
                printed = os.pread(log, 64 * 1024, begin).decode(errors="replace")
            finally:
                os.close(log)
            if "still in use" not in printed or time.monotonic() > deadline:
                raise EmbeddedError(f"The private PostgreSQL did not start:\n{tail(printed)}\nSee {self._log}.")
            time.sleep(0.1)

    def _server_command(self) -> list[str]:
        assert self._socket_folder is not None
        settings = {
            **self._options,
            "listen_addresses": "",
            "port": str(SOCKET_PORT),
            "unix_socket_directories": str(self._socket_folder),
            "unix_socket_permissions": "0700",
        }
        command = [str(self._find_binaries().postgres), "-D", str(self._data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        return command

    def _open_log(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            if self._log.stat().st_size > LOG_LIMIT_BYTES:
                self._log.replace(self._log.with_name(self._log.name + ".1"))
        return open_private(self._log, os.O_RDWR | os.O_APPEND)

    def _wait_until_ready(self, child: Child, log: int) -> bool:
        """Wait for the server to accept connections; False if it ended instead."""
        heard, size = time.monotonic(), -1
        while not child.wait(0.01):
            seen = PidFile.read(self._data)
            if seen is not None and seen.pid == child.pid and seen.status == "ready":
                return True
            if size != (size := os.fstat(log).st_size):
                heard = time.monotonic()
            if time.monotonic() - heard > START_TIMEOUT_SECONDS:
                raise EmbeddedError(
                    f"The private PostgreSQL was not ready after {START_TIMEOUT_SECONDS:g} seconds. "
                    f"Its messages are in {self._log}. If the machine is only slow, start again."
                )
        return False
