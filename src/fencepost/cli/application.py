"""What is to be run and where: the settings, the job types, and a database that answers."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
from contextlib import suppress
from typing import Any

from fencepost.app import Fencepost
from fencepost.errors import DatabaseUnavailable, InvalidSettings
from fencepost.handlers import shipped
from fencepost.settings import Settings, from_environment
from fencepost.store.database import Database

log = logging.getLogger("fencepost.serve")

DATABASE_PATIENCE_SECONDS = 30.0
"""How long a start waits for a database that isn't there yet."""


def settings_of(flags: dict[str, Any]) -> Settings:
    """The settings of the environment, with the command's flags on top. Raises InvalidSettings."""
    environment = dict(os.environ)
    address = flags.pop("http_addr", None)
    if address is not None:
        environment["HTTP_ADDR"] = address
    return from_environment(environment, **flags)


def application(name: str | None, settings: Settings) -> Fencepost:
    """The job types to run: those that ship, and those of the caller's own app. Raises InvalidSettings."""
    app = Fencepost()
    for type_name, handler, payload in shipped(allow_private=settings.webhook_allow_private):
        app.register(type_name, handler, payload)
    if name is not None:
        for job_type in _import_app(name).types.values():
            if job_type.name in app.types:
                raise InvalidSettings(f"{name} registers {job_type.name!r}, which is the name of a type that ships")
            app.types[job_type.name] = job_type
    return app


def _import_app(name: str) -> Fencepost:
    module_name, _, attribute = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module_name), attribute or "app")
    except (ImportError, AttributeError) as error:
        raise InvalidSettings(f"{name} can't be imported ({error}); name it as module:attribute") from error
    if not isinstance(found, Fencepost):
        raise InvalidSettings(f"{name} is a {type(found).__name__}, not a Fencepost")
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
            log.warning("waiting for the database", extra={"reason": str(error)})
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 1)
