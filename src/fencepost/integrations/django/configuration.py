"""What a project's settings say about its jobs."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.db import connections

from fencepost.errors import InvalidSettings

_PASSED_ON = ("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "passfile", "target_session_attrs")
"""What of a database's OPTIONS is about reaching it; the rest is about how Django uses it."""


def database_alias() -> str:
    """The database of the jobs, as DATABASES names it."""
    return str(getattr(settings, "FENCEPOST_DATABASE", "default"))


def schema() -> str:
    """The schema of fencepost's tables."""
    return str(getattr(settings, "FENCEPOST_SCHEMA", "fencepost"))


def app_name() -> str:
    """Where the project's app is, as `module:attribute`. Raises InvalidSettings when nothing says so."""
    name = getattr(settings, "FENCEPOST_APP", None)
    if not isinstance(name, str) or not name:
        raise InvalidSettings('FENCEPOST_APP isn\'t set; name your app in settings.py, such as "shop.jobs:app"')
    return name


def database_url(alias: str | None = None) -> str:
    """
    The address of a database of DATABASES, for connections that aren't Django's.

    While Django's test runner is at work it is that of the test database. Raises
    InvalidSettings for a database that isn't PostgreSQL.
    """
    alias = alias or database_alias()
    connection: Any = connections[alias]
    if connection.vendor != "postgresql":
        raise InvalidSettings(
            f"DATABASES[{alias!r}] is {connection.vendor}, and jobs live in PostgreSQL; "
            "name one that is in FENCEPOST_DATABASE"
        )
    return _address(connection.settings_dict)


def _address(database: dict[str, Any]) -> str:
    user, password, host = (str(database.get(name) or "") for name in ("USER", "PASSWORD", "HOST"))
    account = quote(user, safe="") + (":" + quote(password, safe="") if password else "") + "@" if user else ""
    query = {name: str(value) for name, value in database.get("OPTIONS", {}).items() if name in _PASSED_ON}
    if host.startswith("/"):
        # A folder of sockets isn't a host's name.
        query["host"], host = host, ""
        if database.get("PORT"):
            query["port"] = str(database["PORT"])
    elif ":" in host:
        host = f"[{host}]"
    if database.get("PORT") and "port" not in query:
        host = f"{host or 'localhost'}:{database['PORT']}"
    return f"postgresql://{account}{host}/{quote(str(database['NAME']), safe='')}" + (
        f"?{urlencode(query)}" if query else ""
    )
