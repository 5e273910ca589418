"""Connections whose event loop was closed under them: nobody can close them in good order any more."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any


def cut_off(loop: asyncio.AbstractEventLoop) -> None:
    """
    Close the sockets that fencepost has open in a loop that is closed, so that the server's sessions end.

    uvloop has closed its own. A loop that can't be asked for them (asyncio's on Windows) leaves them to the garbage
    collector.
    """
    transports: Any = getattr(loop, "_transports", {})
    for transport in list(transports.values()):
        if _is_ours(transport):
            # What an abort has its loop call next. The socket is closed whatever the driver, which can't reach its
            # loop either, makes of that.
            with suppress(RuntimeError):
                transport._call_connection_lost(None)


def _is_ours(transport: Any) -> bool:
    protocol = transport.get_protocol()
    # With TLS there is a protocol in between.
    protocol = getattr(protocol, "_app_protocol", protocol)
    settings = protocol.get_settings() if hasattr(protocol, "get_settings") else None
    # As the server says it, whoever asked for it: see store/sessions.py.
    return getattr(settings, "application_name", None) == "fencepost"
