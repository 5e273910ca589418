"""
What the driver raises, and what it means.

Either the database isn't available (`DatabaseUnavailable`, worth another try), or it
refuses that to our role (`PrivilegeMissing`), or the statement is wrong (left as it is; that's
a bug, or input nobody checked).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from fencepost.errors import (
    DatabaseUnavailable,
    FencepostError,
    InvalidJob,
    InvalidSettings,
    PrivilegeMissing,
    SchemaMismatch,
)


class Unreachable(ConnectionError):
    """Nobody answers at *place*, as host and port, for this *reason*."""

    def __init__(self, reason: str, place: str) -> None:
        super().__init__(f"{reason} ({place})")
        self.reason = reason
        self.place = place


UNAVAILABLE = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.LockNotAvailableError,
    asyncpg.TransactionRollbackError,
    asyncpg.InvalidTransactionStateError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.exceptions.TargetServerAttributeNotMatched,
    asyncpg.exceptions.InternalClientError,
    asyncpg.exceptions.PostgresSystemError,
)
"""Not now: another try may do."""

_MISTAKEN = (
    asyncpg.exceptions.ClientConfigurationError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InvalidParameterValueError,
)
"""Not ever, at the start: the address is wrong."""

UNPREPARED = (
    asyncpg.InvalidSchemaNameError,
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedFunctionError,
    asyncpg.UndefinedColumnError,
)
"""What a statement of ours asks for isn't there: the schema was never made, or is an older one."""

NO_WRITES = (
    "the server takes no writes, since it is a standby, or read-only by default; see what `fencepost doctor` says"
)
"""What it means that no host has what we ask for, which the driver says in its own words."""

LEFT_BEHIND = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
"""A prepared statement isn't on the connection that it was made on: somebody between us and the server swaps them."""

DataError = asyncpg.DataError
"""A value that PostgreSQL can't hold."""


def is_broken(error: BaseException) -> bool:
    """
    Whether the connection that ended in *error* must not be used again.

    After a cancellation, or when no answer came in time, because asking a silent server to stop would take as long as
    waiting for it; and when it leads to a server that was demoted, for the next one to find the one that takes writes.
    """
    return isinstance(
        error, asyncio.CancelledError | GeneratorExit | TimeoutError | asyncpg.ReadOnlySQLTransactionError
    )


@contextmanager
def translated() -> Iterator[None]:
    """Turn the driver's errors that mean "not now" into DatabaseUnavailable, and "not you" into PrivilegeMissing."""
    try:
        yield
    except asyncpg.InsufficientPrivilegeError as error:
        raise PrivilegeMissing(
            f"the role that fencepost connects as may not do this ({first_line(error)}); have the owner of the schema "
            "run `fencepost grant ROLE --to …`, with all that the role is for: producer, worker, reader "
            "(docs/how-to/roles.md)"
        ) from error
    except Unreachable as error:
        raise DatabaseUnavailable(f"the database is not available: {error.reason}", place=error.place) from error
    except asyncpg.exceptions.TargetServerAttributeNotMatched as error:
        raise DatabaseUnavailable(f"the database is not available: {NO_WRITES}") from error
    except UNAVAILABLE as error:
        raise DatabaseUnavailable(f"the database is not available: {first_line(error)}") from error
    except LEFT_BEHIND as error:
        raise DatabaseUnavailable(
            f"a pooler gave this statement to another connection ({first_line(error)}); set DATABASE_POOLER=transaction"
        ) from error
    except asyncpg.ProgramLimitExceededError as error:
        if _is_full(error):
            raise DatabaseUnavailable(
                "the server's queue of notifications is full, because some session that listens has been in a "
                "transaction for long (see pg_notification_queue_usage() and pg_stat_activity); nothing was done"
            ) from error
        # A jsonb array has a largest size, and numbers take more room in it than in the text that came.
        if "jsonb" not in str(error):
            raise
        raise InvalidJob(
            f"take more room together than PostgreSQL has ({first_line(error)}); store them in several calls",
            field="jobs",
        ) from error
    except asyncpg.CheckViolationError as error:
        if error.constraint_name:
            raise
        # A row on its way to the default partition, while the partition it belongs to was being attached.
        raise DatabaseUnavailable("the database's partitions changed under this statement; try again") from error


@contextmanager
def reaching() -> Iterator[None]:
    """At the start: turn what is wrong with the address, which no waiting changes, into InvalidSettings."""
    try:
        yield
    except _MISTAKEN as error:
        raise InvalidSettings(f"DATABASE_URL: {first_line(error)}") from error
    except asyncpg.UndefinedObjectError as error:
        # The driver passes on what it doesn't know, as a setting of the session.
        raise InvalidSettings(
            f"DATABASE_URL: {first_line(error)}; leave it out, since not all that libpq takes after the ? is known "
            "here: it may be host, port, sslmode and its kin, target_session_attrs and settings of PostgreSQL's"
        ) from error


@contextmanager
def prepared(schema: str) -> Iterator[None]:
    """Turn the driver's errors that mean "there is no such thing" into SchemaMismatch."""
    try:
        yield
    except UNPREPARED as error:
        raise SchemaMismatch(
            f"the database's schema {schema!r} isn't there, or isn't up to date ({first_line(error)}); run "
            "`fencepost migrate`, or open the app first, with `async with app` or `await app.open()`"
        ) from error


def first_line(error: BaseException) -> str:
    """What an error says, without the details that follow."""
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def for_operator(error: BaseException) -> str:
    """What an error says to whoever runs fencepost, in one line. Not for HTTP's callers: it may name hosts."""
    if not isinstance(error, FencepostError):
        return first_line(error)
    return error.for_operator().partition("\n")[0] or type(error).__name__


def _is_full(error: BaseException) -> bool:
    # The code is that of many limits; the word is in the message in every language.
    return isinstance(error, asyncpg.ProgramLimitExceededError) and "NOTIFY" in str(error)


def no_room_for_hints(error: BaseException) -> bool:
    """Whether *error* stands for a commit that was refused only because it would have notified somebody."""
    return error.__cause__ is not None and _is_full(error.__cause__)


def is_of_the_value(error: BaseException) -> bool:
    """
    Whether *error*, of a statement that writes values of somebody's, may be due to one of them.

    Otherwise the statement can't run now, whatever it is given: a right that was taken away, a schema in the middle of
    a change, a fault of the server.
    """
    if not isinstance(error, Exception) or isinstance(error, SchemaMismatch | DatabaseUnavailable):
        return False
    return not isinstance(error, asyncpg.PostgresError) or str(error.sqlstate)[:2] in _OF_THE_VALUE


def is_outage(error: BaseException) -> bool:
    """
    Whether *error* would have met any other statement as well, and may have come after the commit.

    A missing right is none: it may be a trigger that lacks it, on one kind of row.
    """
    return isinstance(error, DatabaseUnavailable) and not isinstance(error, PrivilegeMissing)


def is_the_servers(error: BaseException) -> bool:
    """Whether it is what the server said, so that where in our code it was met tells nobody anything."""
    return isinstance(error, asyncpg.PostgresError | SchemaMismatch | DatabaseUnavailable)


_OF_THE_VALUE = frozenset(("22", "23", "54", "P0"))
"""Classes of errors: data, integrity, limits of the program, and what a trigger of somebody's raises."""


def deadlocked(error: BaseException) -> bool:
    """Whether *error* stands for a deadlock, which PostgreSQL ended by undoing this transaction."""
    return isinstance(error.__cause__, asyncpg.DeadlockDetectedError)


def waited_too_long(error: BaseException) -> bool:
    """Whether *error* stands for a lock that wasn't to be had in time."""
    return isinstance(error.__cause__, asyncpg.LockNotAvailableError)
