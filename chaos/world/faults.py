"""What befalls sessions and statements while the servers stand: endings, locks, refusals, standstill."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Sequence
from typing import Self

import psycopg
from psycopg import sql

from chaos.world import processes
from chaos.world.server import WorldError
from chaos.world.servers import ROLE, Cluster

DATABASE = "fencepost"
STORED = ("jobs", "pending", "leases", "finished", "attempts")
"""The tables whose writes a full disk refuses."""
LOCK_SECONDS = 10.0

_FULL = """
create or replace function chaos.disk_full() returns trigger language plpgsql as $$
begin
    if random() < {share} then
        raise exception using
            errcode = '53100',
            message = 'could not extend file "base/5/16397": No space left on device',
            hint = 'Check free disk space.';
    end if;
    return null;
end $$
"""


class Hold:
    """Something held for a while: a lock, a snapshot, a stopped process. Ends by itself or by `release`."""

    def __init__(self, release: Callable[[], object], *, seconds: float) -> None:
        self._release = release
        self._once = threading.Lock()
        self._ended = threading.Event()
        self._timer = threading.Timer(seconds, self.release)
        self._timer.daemon = True
        self._timer.start()

    def release(self) -> None:
        """End it now. Safe to call twice."""
        self._timer.cancel()
        with self._once:
            if not self._ended.is_set():
                try:
                    self._release()
                finally:
                    self._ended.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for its end; say whether it came."""
        return self._ended.wait(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class Faults:
    """
    Faults of one cluster's database. Methods may be called from any thread.

    What goes on until it is turned off is part of the database and so stays through
    restarts and failovers. `heal` ends all of it.
    """

    def __init__(self, cluster: Cluster, *, schema: str = "fencepost", choices: random.Random | None = None) -> None:
        """Act on *cluster*; *choices* decides which sessions are hit."""
        self._cluster = cluster
        self._schema = schema
        self._choices = choices or random.Random()
        self._holds: list[Hold] = []
        self._lock = threading.Lock()

    # Sessions

    def terminate_backends(self, share: float = 1.0) -> int:
        """End that *share* of the fleet's sessions, with whatever they are doing; returns how many."""
        return self._strike("pg_terminate_backend", share)

    def cancel_backends(self, share: float = 1.0) -> int:
        """Cancel what that *share* of the fleet's busy sessions run, as `statement_timeout` does; returns how many."""
        return self._strike("pg_cancel_backend", share, state="active")

    def _strike(self, function: str, share: float, *, state: str | None = None) -> int:
        # Not while a failover is between its last look and the kill; see `servers`, gap 3.
        with self._cluster.steady(), self._cluster.admin() as session:
            struck = [pid for pid in self._sessions(session, state) if self._choices.random() < share]
            session.execute(
                sql.SQL("select {}(pid) from unnest(%s::int[]) pid").format(sql.Identifier(function)), (struck,)
            )
            return len(struck)

    @staticmethod
    def _sessions(session: psycopg.Connection, state: str | None, query_like: str | None = None) -> list[int]:
        rows = session.execute(
            "select pid from pg_stat_activity where backend_type = 'client backend' and usename = %s"
            " and (%s::text is null or state = %s) and (%s::text is null or query ilike %s) order by pid",
            (ROLE, state, state, query_like, query_like),
        ).fetchall()
        return [int(pid) for (pid,) in rows]

    def connection_limit(self, limit: int | None) -> None:
        """Refuse sessions beyond *limit* (SQLSTATE 53300) and end all that are open; None allows any number again."""
        with self._lock, self._cluster.admin() as session:
            count = sql.Literal(-1 if limit is None else limit)
            session.execute(sql.SQL("alter database {} connection limit {}").format(sql.Identifier(DATABASE), count))
        if limit is not None:
            self.terminate_backends()

    def read_only(self, *, on: bool) -> None:
        """Have every transaction be read-only (SQLSTATE 25006), as on a standby that was taken for the primary."""
        self._default(f"database {DATABASE}", "default_transaction_read_only", "on" if on else None)
        self.terminate_backends()

    def hostile_timeouts(self, *, on: bool) -> None:
        """Give the role defaults under which nothing works, for sessions that set none of their own."""
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            self._default(f"role {ROLE}", name, "5ms" if on else None)
        self.terminate_backends()

    def _default(self, whose: str, name: str, value: str | None) -> None:
        # PostgreSQL refuses two changes of one catalogue row at once: a fault that ends while `heal` ends it, say.
        with self._lock, self._cluster.admin() as session:
            change = f"reset {name}" if value is None else f"set {name} = '{value}'"
            session.execute(f"alter {whose} {change}".encode())

    # Space

    def install(self) -> None:
        """Prepare `disk_full`: once, after the fleet's schema is there."""
        with self._cluster.admin() as session:
            session.execute("create schema if not exists chaos")
            session.execute(f"grant usage on schema chaos to {ROLE}".encode())
            session.execute(_FULL.format(share=0).encode())
            for table in STORED:
                place = sql.Identifier(self._schema, table)
                session.execute(
                    sql.SQL(
                        "create or replace trigger chaos_disk_full before insert or update on {}"
                        " for each statement execute function chaos.disk_full()"
                    ).format(place)
                )

    def disk_full(self, *, on: bool, share: float = 1.0) -> None:
        """Refuse that *share* of the statements that would write to the stored tables, with SQLSTATE 53100."""
        with self._lock, self._cluster.admin() as session:
            if session.execute("select to_regproc('chaos.disk_full') is null").fetchone() == (True,):
                if on:
                    raise WorldError("install() has to be called first, once the schema is there")
                return
            session.execute(_FULL.format(share=float(share) if on else 0.0).encode())

    # Locks and snapshots

    def lock_table(self, table: str = "pending", *, mode: str = "access exclusive", seconds: float) -> Hold:
        """
        Lock *table* for *seconds*, from when the lock is there.

        Raises psycopg.errors.LockNotAvailable when it is not to be had in `LOCK_SECONDS`.
        """
        place = sql.Identifier(self._schema, table)
        return self._hold(sql.SQL("lock table {} in {} mode").format(place, sql.SQL(mode)), seconds)

    def lock_rows(self, table: str = "leases", *, limit: int = 100, seconds: float) -> Hold:
        """Lock up to *limit* rows of *table* for *seconds*."""
        place = sql.Identifier(self._schema, table)
        query = sql.SQL("select from {} limit {} for update skip locked").format(place, sql.Literal(limit))
        return self._hold(query, seconds)

    def hold_keys(self, keys: Sequence[str], *, seconds: float) -> Hold:
        """
        Hand in a job for each of these unique *keys* in a transaction, and roll it back after *seconds*.

        A key that a live job has stays that job's.
        """
        query = sql.SQL("select {}('play', unique_key => key) from unnest({}::text[]) key")
        return self._hold(query.format(sql.Identifier(self._schema, "enqueue"), sql.Literal(list(keys))), seconds)

    def pin_snapshot(self, *, seconds: float) -> Hold:
        """Keep a snapshot, with a transaction's number, so that nothing that dies meanwhile can be vacuumed."""
        return self._hold(sql.SQL("select pg_current_xact_id(), count(*) from pg_class"), seconds)

    def _hold(self, statement: sql.SQL | sql.Composed, seconds: float) -> Hold:
        session = self._cluster.admin()
        try:
            session.execute(f"set lock_timeout = '{LOCK_SECONDS:g}s'".encode())
            session.execute("begin isolation level repeatable read")
            session.execute(statement)
        except BaseException:
            session.close()
            raise
        return self._keep(Hold(session.close, seconds=seconds))

    # Standstill

    def stop_backend(self, *, seconds: float, query_like: str | None = None) -> Hold | None:
        """
        SIGSTOP one of the fleet's sessions for *seconds*, in the middle of a statement if one runs.

        With *query_like*, one whose latest statement matches that pattern. None when there is none.
        """
        with self._cluster.admin() as session:
            found = self._sessions(session, "active", query_like) or self._sessions(session, None, query_like)
        return self._stop(self._choices.choice(found), seconds) if found else None

    def stop_process(self, kind: str, *, seconds: float) -> Hold | None:
        """
        SIGSTOP one of the server's own processes for *seconds*: `checkpointer`, `walwriter`, `background writer`.

        None when there is none of that *kind* now.
        """
        with self._cluster.admin() as session:
            row = session.execute("select pid from pg_stat_activity where backend_type = %s", (kind,)).fetchone()
        return self._stop(int(row[0]), seconds) if row else None

    def _stop(self, pid: int, seconds: float) -> Hold:
        seen = processes.status(pid)
        processes.pause(pid, seconds=1.0)

        def go_on() -> None:
            now = processes.status(pid)
            if seen is not None and now is not None and now.started == seen.started:
                processes.resume(pid)

        return self._keep(Hold(go_on, seconds=seconds))

    def _keep(self, hold: Hold) -> Hold:
        with self._lock:
            self._holds = [one for one in self._holds if not one.wait(0)]
            self._holds.append(hold)
        return hold

    def heal(self) -> None:
        """End everything that still goes on."""
        with self._lock:
            holds, self._holds = self._holds, []
        for hold in holds:
            with contextlib.suppress(psycopg.Error):
                hold.release()
        self._cluster.resume_standby()
        self.disk_full(on=False)
        self.connection_limit(None)
        self.read_only(on=False)
        self.hostile_timeouts(on=False)
