"""How a command ends: in time; and when it can't do what was asked, with one sentence and an exit code to rely on."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any, NoReturn

import click

from fencepost.errors import FencepostError

INTERRUPTED, UNREAD = 130, 141
"""Exit codes after Ctrl-C, and after a pipe was closed: as a shell has them for SIGINT and SIGPIPE (128 + number)."""

_SERVER_MODULES = {
    "uvicorn",
    "httptools",
    "uvloop",
    "structlog",
    "prometheus_client",
    "httpx2",
    "httpcore2",
}


LEFT_SECONDS = 5.0
"""What is left at the end, threads of handlers' libraries say, has so long to end by itself."""


def leave(code: int) -> NoReturn:
    """End the process with *code*, in a few seconds at the latest."""
    end_within(LEFT_SECONDS, code)
    sys.exit(code)


def end_within(seconds: float, code: int) -> None:
    """
    End the process after so long, whatever still runs, unless it has ended by then.

    A handler that blocks its loop, or a thread of some library that the interpreter waits for, would keep it for ever.
    """

    def end() -> None:
        time.sleep(seconds)
        os._exit(code)

    threading.Thread(target=end, name="fencepost-end", daemon=True).start()


class Commands(click.Group):
    """Commands that end every expected error with one sentence and its exit code, never with a trace."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FencepostError as error:
            click.echo(f"fencepost: {error.for_operator()}", err=True)
            ctx.exit(error.exit_code)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in _SERVER_MODULES:
                raise
            click.echo(
                f"fencepost: this command needs {error.name}, which isn't installed; "
                "run pip install 'fencepost[server]'",
                err=True,
            )
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("\nfencepost: interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            # Whoever read has enough (`| head`). What is still buffered would fail once more at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(UNREAD)
