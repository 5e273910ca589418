"""How a benchmark's parts, each maybe in a process of its own, reach the database: as the environment says."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit, urlunsplit

from fencepost.settings import Secret, Settings, from_environment


def with_database(url: str, path: str) -> str:
    """The same server, another database; *path* is its name after a slash."""
    return urlunsplit(urlsplit(url)._replace(path=path))


def settings_of(dsn: str, schema: str, **more: Any) -> Settings:
    """
    The usual settings for *schema* at *dsn*, with *more*, and what the environment says of a pooler.

    DATABASE_LISTEN_URL is taken for the way to *dsn*'s database, if that was made for the benchmark.
    """
    given = from_environment()
    if given.database_url is None:
        # It runs on an embedded server, which nothing stands in front of.
        return Settings(schema=schema, **more)
    listen_url = given.listen_url
    if listen_url is not None and dsn != given.database_url.reveal():
        listen_url = Secret(with_database(listen_url.reveal(), urlsplit(dsn).path))
    return Settings(schema=schema, database_pooler=given.database_pooler, listen_url=listen_url, **more)
