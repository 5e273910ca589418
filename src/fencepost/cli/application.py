"""What is to be run and where: the settings, the job types, and a database that answers."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from contextlib import suppress
from typing import Any

import msgspec

from fencepost.app import Fencepost
from fencepost.errors import DatabaseUnavailable, InvalidSettings
from fencepost.handlers import shipped
from fencepost.logger import get_logger
from fencepost.settings import Settings, from_environment
from fencepost.store.database import Database

log = get_logger("fencepost.serve")

DATABASE_PATIENCE_SECONDS = 30.0
"""How long a start waits for a database that isn't there yet."""


def settings_of(flags: dict[str, Any]) -> Settings:
    """The settings of the environment, with the command's flags on top. Raises InvalidSettings."""
    environment = dict(os.environ)
    for flag, variable in (("http_addr", "HTTP_ADDR"), ("probe_addr", "PROBE_ADDR"), ("queues", "QUEUES")):
        # Read like the variable, so that both refuse the same in the same words.
        text = flags.pop(flag, None)
        if text is not None:
            environment[variable] = text
    return from_environment(environment, **flags)


def application(name: str | None, settings: Settings) -> Fencepost:
    """
    What to run: the job types that ship, and the caller's own app with all it brings. Raises InvalidSettings.

    Where that app wasn't told settings of its own it gets *settings*, so that what its handlers enqueue is
    here too, whatever the command's flags said.
    """
    app = Fencepost(settings=settings)
    for type_name, handler, payload in shipped(allow_private=settings.webhook_allow_private):
        app.register(type_name, handler, payload)
    if name is not None:
        found = _import_app(name)
        found.default_to(settings)
        app.adopt(found)
    return app


def settings_with(app: Fencepost, settings: Settings) -> Settings:
    """The command's settings, with the database, the schema and so on that the caller's app was made with."""
    return msgspec.structs.replace(settings, **app.own_address())


def _import_app(name: str) -> Fencepost:
    module_name, _, attribute = name.partition(":")
    if not module_name or module_name.startswith("."):
        raise InvalidSettings(f"{name!r} names no module; name it as module:attribute")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module_name), attribute or "app")
    except (ImportError, AttributeError) as error:
        raise InvalidSettings(
            f"{name} can't be imported ({error}); name it as module:attribute, from the folder it is in"
        ) from error
    except SystemExit as error:
        # With its 0 this would end as if all had gone well, and whoever restarts what fails would not.
        raise InvalidSettings(f"{name} can't be imported: the module ends the program (exit {error})") from error
    if not isinstance(found, Fencepost):
        raise InvalidSettings(f"{name} is no Fencepost but of type {type(found).__name__}")
    return found


async def connect(database: Database, stop: asyncio.Event) -> None:
    """Wait for a database that is just coming up; give up with its own words after a while, or at *stop*."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DATABASE_PATIENCE_SECONDS
    while True:
        try:
            return await database.open()
        except DatabaseUnavailable as error:
            if loop.time() > deadline or stop.is_set():
                raise
            log.warning("waiting for the database", extra={"reason": error.for_operator()})
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 1)
