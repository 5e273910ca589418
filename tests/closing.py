"""Servers of asyncio's, ended by whoever looks for sockets that were left."""

from __future__ import annotations

import asyncio


async def close_server(server: asyncio.Server) -> None:
    """
    Let no more in, and then close the server: who was let in just now has been handed over by then.

    One that asyncio has accepted and not yet attached when its server is closed is dropped without being closed.
    """
    asyncio.get_running_loop().remove_reader(server.sockets[0].fileno())
    for _ in range(3):
        await asyncio.sleep(0)
    server.close()
