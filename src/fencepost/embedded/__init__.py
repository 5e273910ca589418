"""
A private PostgreSQL server, for the first run without any set-up and for tests.

    binaries     find `postgres` and `initdb`
    privileges   decide under which ids the server runs; PostgreSQL refuses root
    folders      where data and sockets go
    launch       start programs that end with their owner (`shim` is its far side)
    cluster      make the data folder; judge what an earlier server left in it
    lock         one owner for each data folder
    server       `EmbeddedPostgres`, which puts them together

What a data directory holds:

    fencepost.lock   locked by the owner for as long as it lives; says who that is
    server.log       PostgreSQL's messages
    postgres/        PostgreSQL's own data folder
    postgres.new-*   one that was being made when the machine or the owner stopped

The socket lies elsewhere, in a folder of its own under /tmp that only the owner
can enter, because the system allows about a hundred bytes for its path. There is
no TCP port.
"""

from __future__ import annotations

from fencepost.embedded.binaries import Binaries, find_all_binaries, find_binaries
from fencepost.embedded.folders import default_data_dir
from fencepost.embedded.server import EmbeddedPostgres

__all__ = ["Binaries", "EmbeddedPostgres", "default_data_dir", "find_all_binaries", "find_binaries"]
