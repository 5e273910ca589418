"""One PostgreSQL server of the fleet: started, stopped, and killed in every way there is."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import psycopg

from chaos.world import processes
from chaos.world.shared_memory import remove_segment
from fencepost.embedded import Binaries
from fencepost.embedded.cluster import NAME as SUPERUSER
from fencepost.embedded.cluster import PidFile, initialise, tail
from fencepost.embedded.folders import SOCKET_PORT, make_socket_folder
from fencepost.embedded.launch import Child, environment, run, shimmed
from fencepost.embedded.privileges import Identity

START_SECONDS = 60.0
ORPHANS_SECONDS = 20.0
"""How long backends may outlive their postmaster before an operator would kill them."""

OPTIONS: Mapping[str, str] = {
    "max_connections": "200",
    "shared_buffers": "64MB",
    "wal_level": "replica",
    "hot_standby": "on",
    "wal_keep_size": "128MB",
    "max_wal_size": "256MB",
    "wal_retrieve_retry_interval": "100ms",
    "checkpoint_timeout": "60s",
    # Its files lie in the data folder and go with it; the usual ones would stay in /dev/shm after a kill.
    "dynamic_shared_memory_type": "mmap",
    "logging_collector": "off",
    "log_line_prefix": "%m [%p] ",
    "log_checkpoints": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
}


class WorldError(Exception):
    """The world itself doesn't work, as opposed to what is tested in it."""


class Server:
    """
    A PostgreSQL on the folder `<folder>/<name>`, reached through a Unix socket of its own.

    Not safe for threads; `Cluster` is.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        binaries: Binaries,
        identity: Identity,
        options: Mapping[str, str],
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Describe it; *variables* are added to its environment."""
        self.name = name
        self.data = folder / name
        self.log_file = folder / f"{name}.log"
        self._folder = folder
        self._binaries = binaries
        self._identity = identity
        self._variables = dict(variables or {})
        self._options = {**OPTIONS, **options}
        self._durable = self._options.pop("fsync", "on") == "on"
        self._trash: list[threading.Thread] = []
        self.socket_folder = make_socket_folder(self.data, identity)
        self._child: Child | None = None

    @property
    def socket(self) -> Path:
        """The file to connect to. It has the same name for as long as this object lives."""
        return self.socket_folder / f".s.PGSQL.{SOCKET_PORT}"

    @property
    def pid(self) -> int | None:
        """The postmaster's."""
        return self._child.pid if self._child is not None and self._child.is_running else None

    @property
    def is_running(self) -> bool:
        return self.pid is not None

    def dsn(self, *, user: str = SUPERUSER, database: str = SUPERUSER, **parameters: str) -> str:
        """The address for asyncpg and libpq."""
        extra = "".join(f"&{name}={quote(value)}" for name, value in parameters.items())
        return f"postgresql://{user}@/{database}?host={quote(str(self.socket_folder))}&port={SOCKET_PORT}{extra}"

    def connect(self, database: str = SUPERUSER) -> psycopg.Connection:
        """A session of the superuser that commits each statement and waits 30 s for one at most."""
        session = psycopg.connect(self.dsn(database=database, connect_timeout="10"), autocommit=True)
        session.execute("set statement_timeout = '30s'")
        session.execute("set lock_timeout = '10s'")
        session.execute("set default_transaction_read_only = off")
        return session

    def create(self) -> None:
        """Make the data folder with its superuser and its database."""
        initialise(self.data, binaries=self._binaries, identity=self._identity, durable=False)
        self._write("postgresql.auto.conf", f"fsync = {'on' if self._durable else 'off'}\n")

    def copy(self, source: Server) -> None:
        """
        Make the data folder a standby of *source*, which runs. What was in it is gone.

        `pg_rewind` would keep what is the same on both, and was measured to take three times
        as long, for 20 MB and for 100: it reads a killed server's WAL twice and copies half of it.
        """
        self.discard()
        fresh = Path(tempfile.mkdtemp(prefix=f"{self.name}.new-", dir=self._folder))
        self._identity.own(fresh)
        command: list[str | Path] = [
            self._binaries.folder / "pg_basebackup",
            "-D",
            fresh,
            "-d",
            source.dsn(database="postgres"),
        ]
        command += ["-X", "stream", "-c", "fast", "--no-sync", "--no-manifest"]
        succeeded, output = run(command, identity=self._identity, folder=self._folder)
        if not succeeded:
            shutil.rmtree(fresh, ignore_errors=True)
            raise WorldError(f"{source.name} could not be copied:\n{tail(output)}")
        fresh.rename(self.data)
        self._follow(source)

    def _follow(self, source: Server) -> None:
        place = f"host={source.socket_folder} port={SOCKET_PORT} user={SUPERUSER} application_name={self.name}"
        # All there is in this file: nobody waits for a standby of ours when it is promoted, there being none yet.
        self._settings = f"primary_conninfo = '{place}'\nsynchronous_standby_names = ''\n"
        # Or its start would flush every file of the copy, which takes longer than all the rest.
        self._write("postgresql.auto.conf", self._settings + "fsync = off\n")
        self._write("standby.signal", "")

    def be_durable(self) -> None:
        """Have a standby that has started flush what it writes, if that is wanted."""
        if self._durable:
            self._write("postgresql.auto.conf", self._settings + "fsync = on\n")
            with self.connect("postgres") as session:
                session.execute("select pg_reload_conf()")

    def _write(self, name: str, text: str) -> None:
        path = self.data / name
        path.write_text(text)
        path.chmod(0o600)
        self._identity.own(path)

    def start(self, *, seconds: float = START_SECONDS) -> float:
        """
        Start it; return when it answers, with the seconds that took.

        After a kill PostgreSQL refuses to start while a process of the old server holds
        its memory; it is asked again until they are gone. After `ORPHANS_SECONDS` those
        that are left are killed. Raises WorldError when it does not start.
        """
        begun = time.monotonic()
        if self.is_running:
            return 0.0
        while True:
            begin = self.log_file.stat().st_size if self.log_file.exists() else 0
            if self._launch(deadline=begun + seconds):
                return time.monotonic() - begun
            with self.log_file.open("rb") as log:
                log.seek(begin)
                printed = log.read().decode(errors="replace")
            waited = time.monotonic() - begun
            if "still in use" not in printed or waited > seconds:
                raise WorldError(f"server {self.name} did not start:\n{tail(printed)}\nSee {self.log_file}.")
            if waited > ORPHANS_SECONDS:
                self.kill_orphans()
            time.sleep(0.05)

    def _launch(self, *, deadline: float) -> bool:
        stale = PidFile.read(self.data)
        # The number in the file may be another process's by now; PostgreSQL then takes it for its starter's.
        env = environment({**self._variables, **({"PG_GRANDPARENT_PID": str(stale.pid)} if stale else {})})
        command = shimmed(self._command(), identity=self._identity, folder=self._folder, death_signal=signal.SIGQUIT)
        log = os.open(self.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            self._child = Child(command, env=env, output=log)
        finally:
            os.close(log)
        while not self._child.wait(0.005):
            seen = PidFile.read(self.data)
            if seen is not None and seen.pid == self._child.pid and seen.status == "ready":
                return True
            if time.monotonic() > deadline:
                self._child.end((signal.SIGQUIT, 2.0), (signal.SIGKILL, 5.0))
                raise WorldError(f"server {self.name} does not become ready; see {self.log_file}")
        return False

    def _command(self) -> list[str]:
        settings = {
            **self._options,
            "cluster_name": self.name,
            "listen_addresses": "",
            "port": str(SOCKET_PORT),
            "unix_socket_directories": str(self.socket_folder),
            "unix_socket_permissions": "0700",
        }
        command = [str(self._binaries.postgres), "-D", str(self.data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        return command

    def processes(self) -> list[int]:
        """Every living process that works on the data folder: the postmaster, its children, and orphans."""
        return processes.working_in(self.data)

    def stop(self, *, immediate: bool = False) -> float:
        """Stop it in good order, or *immediate*ly, as after a failure of the machine; the seconds that took."""
        begun = time.monotonic()
        for pid in self.processes():
            processes.resume(pid)
        if self._child is not None:
            first = [] if immediate else [(signal.SIGINT, 20.0)]
            self._child.end(*first, (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))
            self._child = None
        return time.monotonic() - begun

    def kill_postmaster(self) -> None:
        """SIGKILL the postmaster alone. Its backends notice by themselves, when they next wait for something."""
        if self._child is not None:
            self._child.end((signal.SIGKILL, 10.0))
            self._child = None

    def kill_all(self) -> None:
        """
        SIGKILL the postmaster and every process of its; none is left on return.

        The postmaster is stopped first, so that the list of its children is complete: a
        backend that stayed could still write to the data folder.
        """
        pid = self.pid
        if pid is not None:
            processes.pause(pid)
        while found := self.processes():
            for one in found:
                processes.send(one, signal.SIGKILL)
            left = processes.wait_gone(found, seconds=10.0)
            if left:
                raise WorldError(f"processes of server {self.name} survive SIGKILL: {left}")
        self.kill_postmaster()

    def kill_orphans(self) -> None:
        """SIGKILL what still works on the data folder of a server whose postmaster is gone."""
        for pid in self.processes():
            processes.send(pid, signal.SIGKILL)

    def discard(self) -> None:
        """Take the data folder away, and what the killed server had outside it."""
        self.kill_all()
        remove_segment(self.data)
        if not self.data.exists():
            return
        old = Path(tempfile.mkdtemp(prefix=f"{self.name}.old-", dir=self._folder))
        self.data.rename(old / "data")
        # A thousand files take a second on a busy disk, and nobody needs to wait for that.
        remover = threading.Thread(target=shutil.rmtree, args=(old,), kwargs={"ignore_errors": True}, daemon=True)
        remover.start()
        self._trash.append(remover)

    def close(self) -> None:
        """Stop it at once and remove everything it had."""
        self.stop(immediate=True)
        self.discard()
        for remover in self._trash:
            remover.join()
        self._trash.clear()
        shutil.rmtree(self.socket_folder, ignore_errors=True)
