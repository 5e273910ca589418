"""A PostgreSQL address as Django's settings have it."""

from __future__ import annotations

import psycopg

_NAMES = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}


def of_url(url: str) -> dict[str, str]:
    """Where *url* leads, as the members of an entry of DATABASES; what it doesn't say is empty."""
    said = psycopg.conninfo.conninfo_to_dict(url)
    return {name: str(said.get(word) or "") for word, name in _NAMES.items()}
