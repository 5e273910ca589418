"""
Decide under which ids PostgreSQL runs.

For ordinary users that is the user. PostgreSQL refuses to run as root, so for root
there are three ways, tried in this order with a program that does nothing:

1. an account made for databases (`fencepost`, `postgres`), if it can reach the
   programs and the data directory as they are;
2. a user namespace, in which root looks like somebody else. It works inside root's
   own closed home and needs no account, but many containers forbid it;
3. the account `nobody`, for containers that have nothing else.

Whoever owns existing data decides instead. No permission of any folder that exists
already is ever changed: what can't be reached is a reason to go on to the next way.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fencepost.errors import EmbeddedError

DATABASE_ACCOUNTS = ("fencepost", "postgres")
LAST_RESORT = "nobody"


@dataclass(frozen=True, slots=True)
class Identity:
    """One way to run PostgreSQL, and who owns its files then."""

    way: str
    """What `shim` is told."""
    title: str
    uid: int
    gid: int

    def own(self, path: Path) -> None:
        """Give *path*, which we just made, to the ids that the server has."""
        if os.geteuid() == 0 and self.uid != 0:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


Probe = Callable[[Identity], str | None]
"""Tries an identity; None when it works, else the reason why not."""


def choose_identity(*, data: Path, folder: Path, probe: Probe) -> Identity:
    """
    Return the first identity that *probe* accepts.

    *data* is PostgreSQL's data folder, which may not exist yet, inside *folder*.

    Raises EmbeddedError when none is left; the message says why each was refused.
    """
    refused: list[str] = []
    owner = data.stat().st_uid if data.exists() else None
    for identity in _ways_for_root(owner, folder) if os.geteuid() == 0 else _ways_for_user(owner, data):
        reason = probe(identity)
        if reason is None:
            return identity
        refused.append(f"{identity.title}: {reason}")
    raise EmbeddedError(_all_refused(refused))


def _ways_for_user(owner: int | None, data: Path) -> Iterator[Identity]:
    uid, gid = os.geteuid(), os.getegid()
    if owner not in (None, uid):
        raise EmbeddedError(
            f"{data} belongs to {_name(owner)}. Start fencepost as that user, or set DATA_DIR to a folder of yours."
        )
    itself = Identity("itself", "as the current user", uid, gid)
    if _account(uid) is None:  # `docker run --user 1234`; initdb wants a name for every uid
        yield from _namespaces(uid, gid)
    yield itself


def _ways_for_root(owner: int | None, folder: Path) -> Iterator[Identity]:
    if owner:
        yield Identity(
            f"account:{owner}:{_group(owner)}", f"as {_name(owner)}, who owns the data", owner, _group(owner)
        )
        return
    if owner is None:
        keeper = _account(folder.stat().st_uid)
        if keeper is not None and keeper.pw_uid != 0:
            yield _as_account(keeper)
        yield from map(_as_account, _accounts(*DATABASE_ACCOUNTS))
    yield from _namespaces(0, 0)
    if owner is None:
        yield from map(_as_account, _accounts(LAST_RESORT))


def _namespaces(uid: int, gid: int) -> Iterator[Identity]:
    inside = [entry for entry in pwd.getpwall() if entry.pw_uid != 0]
    for entry in [*_accounts(*DATABASE_ACCOUNTS, LAST_RESORT), *inside][:1]:
        yield Identity(f"namespace:{entry.pw_uid}:{entry.pw_gid}", "in a user namespace", uid, gid)


def _as_account(entry: pwd.struct_passwd) -> Identity:
    way = f"account:{entry.pw_uid}:{entry.pw_gid}"
    return Identity(way, f"as the account {entry.pw_name}", entry.pw_uid, entry.pw_gid)


def _accounts(*names: str) -> list[pwd.struct_passwd]:
    return [entry for entry in pwd.getpwall() if entry.pw_name in names and entry.pw_uid != 0]


def _account(uid: int) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return None


def _group(uid: int) -> int:
    entry = _account(uid)
    return entry.pw_gid if entry else uid


def _name(uid: int | None) -> str:
    entry = None if uid is None else _account(uid)
    return entry.pw_name if entry else f"the user with id {uid}"


def _all_refused(refused: list[str]) -> str:
    reasons = "".join(f"\n  {line}" for line in refused) or "\n  there is no other account"
    elsewhere = "set DATABASE_URL to a PostgreSQL server that you run"
    if os.geteuid() != 0:
        return f"PostgreSQL's programs don't run here:{reasons}\nPut that right, or {elsewhere}."
    return (
        f"PostgreSQL refuses to run as root, and nothing else worked:{reasons}\n"
        "Start fencepost as an ordinary user; or set DATA_DIR to a folder that an account named `fencepost` "
        f"or `nobody` can enter, such as /var/lib/fencepost; or {elsewhere}."
    )
