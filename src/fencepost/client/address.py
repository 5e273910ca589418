"""Where the jobs are: what the app was told, else DATABASE_URL, else the embedded PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fencepost.client.dsn import Dsn, read_dsn
from fencepost.client.forking import forget_in_children
from fencepost.errors import EmbeddedError
from fencepost.logger import get_logger
from fencepost.settings import Settings

log = get_logger("fencepost.client")


class Address:
    """The address of an app's database, found when it is first needed."""

    def __init__(
        self,
        dsn: Dsn | None,
        settings: Callable[[], Settings],
        *,
        started: Callable[[], None] = lambda: None,
    ) -> None:
        """*started* is called when the embedded PostgreSQL was started here."""
        self._given = dsn
        self._settings = settings
        self._started = started
        self.is_embedded = False
        """Whether it is the embedded PostgreSQL, which nobody else brings up to date."""
        self.forget()
        forget_in_children(self)

    def forget(self) -> None:
        """Know of no server: a forked child finds its parent's as any other process does."""
        self._lock = threading.Lock()
        self._found: str | None = None
        self._server: Any = None

    async def find(self) -> str:
        """The address. Starts the embedded PostgreSQL if that is what is to be used and nobody runs it."""
        known = self._known()
        if known is not None:
            return known
        import asyncio

        return await asyncio.to_thread(self._find_embedded)

    def find_sync(self) -> str:
        """The same for sync callers. Blocks."""
        known = self._known()
        return known if known is not None else self._find_embedded()

    def _known(self) -> str | None:
        if self._given is not None:
            return read_dsn(self._given)
        url = self._settings().database_url
        if url is not None:
            return url.reveal()
        server = self._server
        return self._found if server is None or server.is_running else None

    def _find_embedded(self) -> str:
        from fencepost.embedded import EmbeddedPostgres, default_data_dir
        from fencepost.embedded.running import find_running

        with self._lock:
            if (known := self._known()) is not None:
                return known
            data_dir = self._settings().data_dir or default_data_dir()
            self.is_embedded = True
            for last in (False, True):
                try:
                    self._found, owner = find_running(data_dir)
                    log.info("using the embedded PostgreSQL of another process", extra={"pid": owner})
                    break
                except EmbeddedError:
                    server = self._server or EmbeddedPostgres(data_dir)
                try:
                    server.start()
                except EmbeddedError:
                    # Somebody else may have been faster.
                    if last:
                        raise
                    continue
                self._server, self._found = server, server.dsn
                self._started()
                log.info(
                    "started the embedded PostgreSQL, since there is neither a dsn nor DATABASE_URL",
                    extra={"data_dir": str(data_dir)},
                )
                break
            assert self._found is not None
            return self._found

    def release(self) -> None:
        """Stop the embedded PostgreSQL, if this process started it here. Blocks."""
        with self._lock:
            server, self._server = self._server, None
            if server is not None:
                self._found = None
                server.stop()
