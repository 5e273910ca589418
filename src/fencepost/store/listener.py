"""
Hear the hints of other processes.

One connection that listens and does nothing else, so it is never inside a
transaction. It is asked for a sign of life now and then, because a connection that a
firewall forgot looks open and brings nothing; when it is replaced, the callback for a
new connection runs, so that whatever was missed meanwhile is looked for at once.

Hints may be lost. Everything they announce is also found by polling.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from fencepost.domain.backoff import pause_after
from fencepost.errors import DatabaseUnavailable, InvalidSettings
from fencepost.logger import get_logger
from fencepost.store.database import Database
from fencepost.store.failures import translated
from fencepost.telemetry.pulses import Pulse, unwatched

log = get_logger("fencepost.listener")

PROBE_SECONDS = 15.0
_ANSWER_SECONDS = 3.0
_LONGEST_PAUSE_SECONDS = 5.0


class Listener:
    """Listens on a schema's channel, and reconnects for as long as `run` runs."""

    def __init__(
        self,
        database: Database,
        *,
        heard: Callable[[str], None],
        connected: Callable[[], None],
        probe_seconds: float = PROBE_SECONDS,
        pulse: Pulse | None = None,
    ) -> None:
        self._database = database
        self._heard = heard
        self._connected = connected
        self._probe_seconds = probe_seconds
        self._pulse = pulse or unwatched("listener")
        self.is_connected = False
        self._told = ""
        """Why it doesn't listen, as it was last logged."""

    async def run(self) -> None:
        """Listen until cancelled. Survives every database error; does nothing where nothing could be heard."""
        if not self._database.can_listen:
            log.info(
                "not listening for hints, since a pooler in transaction mode passes none on; polling finds everything, "
                "and DATABASE_LISTEN_URL, the address of PostgreSQL itself, brings them back"
            )
            self._pulse.rest()
            await asyncio.Event().wait()
        failures = 0
        while True:
            began = time.monotonic()
            try:
                await self._listen()
            except (DatabaseUnavailable, InvalidSettings) as error:
                self._pulse.failed(error)
                reason = error.for_operator()
                if reason != self._told:
                    # Once an outage, however many tries it takes.
                    self._told = reason
                    log.warning("not listening for hints; polling goes on", extra={"reason": self._told})
            except Exception as error:
                self._pulse.failed(error)
                log.exception("fault while listening for hints; polling goes on")
            # A connection that is lost as soon as it is made is no reason to be quick with the next one.
            lasted = self.is_connected and time.monotonic() - began >= _LONGEST_PAUSE_SECONDS
            failures = 0 if lasted else failures + 1
            self.is_connected = False
            await asyncio.sleep(pause_after(failures, first_seconds=0.1, longest_seconds=_LONGEST_PAUSE_SECONDS))

    async def _listen(self) -> None:
        lost = asyncio.Event()
        with translated():
            connection: Any = await self._database.connect_to_listen()
            try:
                connection.add_termination_listener(lambda _: lost.set())
                await connection.add_listener(self._database.channel, self._take)
                self.is_connected = True
                self._told = ""
                self._connected()
                self._pulse.turned()
                while not lost.is_set():
                    try:
                        await asyncio.wait_for(lost.wait(), self._probe_seconds)
                    except TimeoutError:
                        await connection.execute("select 1", timeout=_ANSWER_SECONDS)
                        self._pulse.turned()
            finally:
                connection.terminate()

    def _take(self, connection: Any, pid: int, channel: str, payload: object) -> None:
        try:
            self._heard(str(payload))
        except (ValueError, LookupError):
            # Anybody may send on the channel; what can't be read is only a hint that means nothing to us.
            log.warning("a hint could not be read", extra={"hint": str(payload)[:100]})
