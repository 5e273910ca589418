"""How the store goes to a server: as the driver does, but where nobody answers, the error knows where that is."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import asyncpg

from fencepost.store.failures import Unreachable, first_line


async def connect(dsn: str, **options: Any) -> Any:
    """
    A connection to *dsn*, with the driver's *options*.

    Raises the driver's errors, and Unreachable instead of the system's.
    """
    try:
        return await asyncpg.connect(dsn, **options)
    except OSError as error:
        raise Unreachable(_reason(error), place_of(dsn)) from error


def place_of(dsn: str) -> str:
    """Where *dsn* leads, as far as anybody may read it: hosts and ports, without a name or password."""
    address = urlsplit(dsn)
    asked = dict(parse_qsl(address.query))
    hosts = address.netloc.rpartition("@")[2] or asked.get("host") or os.environ.get("PGHOST", "localhost")
    return f"{hosts}, port {asked['port']}" if "port" in asked else hosts


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if error.errno is not None and error.errno > 0:
        # The event loops word it differently.
        return os.strerror(error.errno)
    return error.strerror or first_line(error)
