"""What says where an app's jobs are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencepost.errors import InvalidSettings
from fencepost.settings import Secret
from fencepost.settings.pooler import Pooler
from fencepost.settings.reading import database_address

Dsn = str | Callable[[], str]
"""An address, or what tells it when connections are opened."""


def read_dsn(dsn: Dsn, name: str = "dsn") -> str:
    """
    The address that *dsn* is, or tells; *name* is what its giver calls it.

    Raises InvalidSettings for anything else: nobody's jobs must end up in another database without a word.
    """
    told: object = dsn() if callable(dsn) else dsn
    if not isinstance(told, str) or not told.strip():
        said = f"the function given as {name} returned" if callable(dsn) else f"{name} is"
        raise InvalidSettings(f"{said} {told!r}; it must be a PostgreSQL address such as postgresql://user@host/name")
    try:
        return database_address(told)
    except ValueError as error:
        raise InvalidSettings(f"{f'what {name} returned' if callable(dsn) else name} {error}") from None


def check_dsn(dsn: Dsn | None) -> Dsn | None:
    """Raise InvalidSettings for what can't be one; a function isn't asked yet."""
    if dsn is not None and not callable(dsn):
        read_dsn(dsn)
    return dsn


def own_settings(schema: str | None, pooler: str | None, listen_url: str | None) -> dict[str, Any]:
    """What an app was told itself of how its jobs are reached, by the names of settings. Raises InvalidSettings."""
    own: dict[str, Any] = {} if schema is None else {"schema": schema}
    if pooler is not None:
        try:
            own["database_pooler"] = Pooler(pooler)
        except ValueError:
            raise InvalidSettings(f"pooler must be one of {', '.join(Pooler)}, not {pooler!r}") from None
    if listen_url is not None:
        own["listen_url"] = Secret(read_dsn(listen_url, "listen_url"))
    return own
