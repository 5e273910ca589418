"""Look at the database under test while it is being harmed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import asyncpg

from chaos.evidence import Probe
from chaos.submitters import WORTH_ANOTHER_TRY

EVERY_SECONDS = 1.0
CLAIM_WAIT_SECONDS = 1.0
"""A claim takes milliseconds and never waits for another's row; so long is no coincidence."""

_BALANCE = """
select (select count(*) from fencepost.jobs) as jobs,
       (select count(*) from fencepost.pending) as pending,
       (select count(*) from fencepost.leases) as leases,
       (select count(*) from fencepost.finished) as finished,
       array(select j.unique_key
               from fencepost.jobs j
              where j.unique_key is not null
                and (exists (select from fencepost.pending p where p.id = j.id)
                     or exists (select from fencepost.leases l where l.id = j.id))
              group by j.type, j.unique_key having count(*) > 1) as doubled
"""
_WAITING_CLAIMS = """
select pid, extract(epoch from clock_timestamp() - query_start) as seconds, wait_event
  from pg_stat_activity
 where application_name like 'fencepost%' and wait_event_type = 'Lock' and wait_event in ('transactionid', 'tuple')
   and query like 'with lane as materialized%'
   and clock_timestamp() - query_start > make_interval(secs => $1)
"""


class Observer:
    """Takes a snapshot now and then. Whenever the database can't be reached it tries again."""

    def __init__(self, dsn: Callable[[], str]) -> None:
        self._dsn = dsn
        self.audits = 0
        self.unbalanced: list[str] = []
        self.waits: list[str] = []
        self.live = 0
        """Jobs that hadn't ended in the latest snapshot."""
        self.finished = 0
        self._connection: asyncpg.Connection[Any] | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            began = time.monotonic()
            await self.look()
            # It takes longer the more jobs there are, and is to take no more than a tenth of the time.
            await asyncio.sleep(max(EVERY_SECONDS, 9 * (time.monotonic() - began)))

    async def look(self) -> bool:
        """Take one snapshot; False when the database didn't answer."""
        try:
            async with asyncio.timeout(10):
                connection = await self.connection()
                self._note(await connection.fetchrow(_BALANCE))
                for row in await connection.fetch(_WAITING_CLAIMS, CLAIM_WAIT_SECONDS):
                    self.waits.append(f"backend {row['pid']}: {row['seconds']:.1f} s for a {row['wait_event']}")
        except WORTH_ANOTHER_TRY:
            self.close()
            return False
        return True

    async def connection(self) -> asyncpg.Connection[Any]:
        """A superuser's connection to the present primary."""
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(self._dsn(), timeout=3, command_timeout=60)
        return self._connection

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    def probe(self) -> Probe:
        """What was seen of claims that wait."""
        said = "No claim waited for a row that another had locked."
        return Probe("claims_do_not_wait", said, self.audits, tuple(self.waits))

    def _note(self, row: Any) -> None:
        self.audits += 1
        self.live, self.finished = row["pending"] + row["leases"], row["finished"]
        if row["jobs"] != self.live + row["finished"]:
            counts = {name: row[name] for name in ("jobs", "pending", "leases", "finished")}
            self.unbalanced.append(f"at {time.time():.3f}: {counts}")
        self.unbalanced += [f"at {time.time():.3f}: two live jobs have {key!r}" for key in row["doubled"]]
