"""
The HTTP server, inside our own event loop.

uvicorn with two changes: signals are left to the process that runs it, and connections are
ours (`connection`).
"""

from __future__ import annotations

import contextlib
import errno
import math
import socket
from collections.abc import Iterator

import uvicorn

from fencepost.api.connection import Bounds, Config, Deadlines
from fencepost.api.http import ASGIApp
from fencepost.errors import InvalidSettings
from fencepost.settings import Settings

BACKLOG = 2048


class ApiServer(uvicorn.Server):
    """The server, run by awaiting `serve(sockets=[bind_socket(settings)])`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: the process that runs us decides what they mean."""
        yield

    def stop(self) -> None:
        """Take no more connections, finish the requests in flight, and return from `serve`."""
        self.should_exit = True


def make_server(app: ASGIApp, settings: Settings, *, bounds: Bounds | None = None) -> ApiServer:
    """Make the server for *app*."""
    bounds = bounds or Bounds()
    config = Config(
        app,
        http=Deadlines,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=bounds.keep_alive_seconds,
        timeout_graceful_shutdown=max(1, math.ceil(settings.shutdown_timeout_seconds)),
    )
    config.bounds = bounds
    return ApiServer(config)


def bind_socket(settings: Settings, *, setting: str = "HTTP_ADDR") -> socket.socket:
    """
    Listen where the settings say, so that failing to is known before anything else starts.

    Raises InvalidSettings, which names *setting*.
    """
    host, port = settings.host, settings.http_port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise InvalidSettings(f"{setting}: the host {host!r} has no address: {error}") from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        # Here rather than in the server: two processes can bind one port, but only one of them can listen.
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise InvalidSettings(_cannot_listen(setting, host, port, error)) from None
    return listening


def _cannot_listen(setting: str, host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"{setting}: port {port} on {host} is in use; stop the program that has it, or choose another port with "
            f"{setting}{' or PORT' if setting == 'HTTP_ADDR' else ''}"
        )
    if error.errno == errno.EACCES:
        return f"{setting}: port {port} on {host} needs rights that this process lacks; choose one above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"{setting}: {host} is not an address of this machine; use 127.0.0.1, or 0.0.0.0 for all of its addresses"
        )
    return f"{setting}: can't listen on port {port} on {host}: {error.strerror}"
