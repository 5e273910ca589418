"""
What the driver raises, and what it means.

Either the database isn't available (`DatabaseUnavailable`, worth another try), or the
statement is wrong (left as it is; that's a bug, or input nobody checked).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from fencepost.errors import DatabaseUnavailable, SchemaMismatch

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

MISTAKEN = (
    asyncpg.exceptions.ClientConfigurationError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)
"""Not ever, at the start: the address is wrong."""

UNPREPARED = (
    asyncpg.InvalidSchemaNameError,
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedFunctionError,
    asyncpg.UndefinedColumnError,
)
"""What a statement of ours asks for isn't there: the schema was never made, or is an older one."""

LEFT_BEHIND = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
"""A prepared statement isn't on the connection that it was made on: somebody between us and the server swaps them."""

DataError = asyncpg.DataError
"""A value that PostgreSQL can't hold."""


def is_broken(error: BaseException) -> bool:
    """
    Whether the connection that ended in *error* must not be used again.

    After a cancellation, because asking a silent server to stop would take as long as waiting for it; and when it
    leads to a server that was demoted, for the next one to find the one that takes writes.
    """
    return isinstance(error, asyncio.CancelledError | asyncpg.ReadOnlySQLTransactionError)


@contextmanager
def translated() -> Iterator[None]:
    """Turn the driver's errors that mean "not now" into DatabaseUnavailable."""
    try:
        yield
    except UNAVAILABLE as error:
        raise DatabaseUnavailable(f"the database is not available: {first_line(error)}") from error
    except LEFT_BEHIND as error:
        raise DatabaseUnavailable(
            f"a pooler gave this statement to another connection ({first_line(error)}); set DATABASE_POOLER=transaction"
        ) from error
    except asyncpg.CheckViolationError as error:
        if error.constraint_name:
            raise
        # A row on its way to the default partition, while the partition it belongs to was being attached.
        raise DatabaseUnavailable("the database's partitions changed under this statement; try again") from error


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


def deadlocked(error: BaseException) -> bool:
    """Whether *error* stands for a deadlock, which PostgreSQL ended by undoing this transaction."""
    return isinstance(error.__cause__, asyncpg.DeadlockDetectedError)


def waited_too_long(error: BaseException) -> bool:
    """Whether *error* stands for a lock that wasn't to be had in time."""
    return isinstance(error.__cause__, asyncpg.LockNotAvailableError)
