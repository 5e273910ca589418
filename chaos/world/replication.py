"""
What makes a commit safe: it is on the standby before its client hears of it.

**No commit that a client was told of may be lost by the harness**, or its checks would
accuse the fleet. A commit survives `failover` when it was flushed on the standby before
its client heard of it. `synchronous_standby_names` asks for that, but there are gaps, and
each is closed here:

1. *The setting is reloaded, not yet in force.* Backends don't read it; they read a flag
   in shared memory that the checkpointer sets when it comes to reload. Between
   `pg_reload_conf` and then, commits are acknowledged without the standby. There is no
   view of that flag, so it is proven: the standby's receiver is stopped, a commit is
   tried, and only when its backend is seen waiting (`SyncRep`) is the flag known to be
   set. Should it come through instead, it is tried again. See `_is_awaited`.
2. *What was acknowledged before that.* Its WAL lies before the primary's flush position
   as read after the proof; the standby has to reach it. See `catch_up`.
3. *A backend that is killed while it waits.* Its transaction is committed on the primary,
   unacknowledged, but visible at once, so that somebody else may be told about it, a
   duplicate for example, before the standby has it. Therefore `failover` catches up once
   more immediately before it kills, and no `terminate` of ours comes in between
   (`Cluster.steady`). A restart or a crash has the same effect, and gap 1 is there again
   in some releases while a server starts; so each of them also asks for a new proof.
4. *A zombie.* A backend that outlives its postmaster could write on. It could not
   acknowledge a commit, since its sender is dead, but it is killed with all the others,
   and its end awaited, before the standby is promoted.
5. *No standby.* Between promotion and the end of the rebuild one server alone holds the
   data, and commits don't wait. Everything that could lose its data waits for the lock
   that `failover` holds until then. Killing its processes loses nothing: what is
   committed is in its WAL files.

What remains: a client that cancels its commit while that waits for the standby, and takes
the success with a warning that PostgreSQL then answers; gap 3's catching up covers it, so
that only a standby which never comes back would lose it. `statement_timeout` never does
that: it is over when the commit begins.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psycopg
from psycopg import sql

from chaos.world import processes
from chaos.world.server import Server

STREAM_SECONDS = 20.0
POLL_SECONDS = 0.005


class Replication:
    """From *primary* to *standby*, which both run."""

    def __init__(self, primary: Server, standby: Server) -> None:
        self._primary = primary
        self._standby = standby

    def make_asynchronous(self) -> None:
        """Have commits wait for nobody."""
        with self._primary.connect() as session:
            self._wait_for("", session)

    def make_synchronous(self) -> None:
        """
        Have every commit wait for the standby; return when that is proven.

        What was acknowledged before is on both then. Raises TimeoutError when the standby
        does not come along, as one that was left behind.
        """
        with self._primary.connect() as session:
            until(lambda: self._has(session, "streaming"), what="the standby streams")
            self._wait_for(self._standby.name, session)
            until(lambda: self._has(session, "sync"), what="the standby is synchronous")
            until(lambda: self._is_awaited(session), what="commits wait for the standby")
        self.catch_up()

    @staticmethod
    def _wait_for(name: str, session: psycopg.Connection) -> None:
        statement = sql.SQL("alter system set synchronous_standby_names = {}").format(sql.Literal(name))
        session.execute(statement)
        session.execute("select pg_reload_conf()")

    @staticmethod
    def _has(session: psycopg.Connection, state: str) -> bool:
        query = "select 1 from pg_stat_replication where state = 'streaming' and %s in (state, sync_state)"
        return session.execute(query, (state,)).fetchone() is not None

    def _is_awaited(self, session: psycopg.Connection) -> bool:
        """Whether a commit waits for the standby, as seen with one while the standby takes nothing."""
        receiver = self.receiver()
        with self._primary.connect() as prober:
            pid = prober.info.backend_pid
            attempt = threading.Thread(
                target=prober.execute, args=("select pg_logical_emit_message(true, 'chaos', 'probe')",), daemon=True
            )
            processes.pause(receiver)
            try:
                attempt.start()
                query = "select wait_event = 'SyncRep' from pg_stat_activity where pid = %s"
                while attempt.is_alive():
                    if session.execute(query, (pid,)).fetchone() == (True,):
                        return True
                    time.sleep(POLL_SECONDS)
                return False
            finally:
                processes.resume(receiver)
                attempt.join()

    def receiver(self) -> int:
        """The standby's process that takes what the primary sends; waits for one, and raises TimeoutError."""
        found: list[int] = []
        with self._standby.connect("postgres") as session:

            def receives() -> bool:
                row = session.execute("select pid from pg_stat_wal_receiver").fetchone()
                found.extend(row or ())
                return bool(found)

            until(receives, what="the standby receives")
        return found[0]

    def catch_up(self) -> None:
        """Wait until the standby has flushed what the primary had when this was called."""
        with self._primary.connect() as session:
            row = session.execute("select pg_current_wal_insert_lsn()").fetchone()
            assert row is not None
            query = "select 1 from pg_stat_replication where sync_state = 'sync' and flush_lsn >= %s::pg_lsn"

            def has_it() -> bool:
                # An asynchronous commit's WAL is flushed by the WAL writer in its own time; this has it flushed now.
                session.execute("select pg_logical_emit_message(true, 'chaos', 'flush')")
                return session.execute(query, row).fetchone() is not None

            until(has_it, what="the standby has everything")


def until(holds: Callable[[], bool], *, what: str, seconds: float = STREAM_SECONDS) -> None:
    """Return once it *holds*. Raises TimeoutError, which says *what* was waited for."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s in vain until {what}")
        time.sleep(POLL_SECONDS)
