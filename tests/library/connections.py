"""The kinds of connections that programs have: a transaction and a savepoint in each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg
import psycopg
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_async

from fencepost import Handle, Job
from tests import django_database


class Undo(Exception):
    """Rolls a transaction or a savepoint back."""


# The asynchronous ones.


@asynccontextmanager
async def of_asyncpg(dsn: str) -> AsyncGenerator[Any, None]:
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def of_asyncpg_pool(dsn: str) -> AsyncGenerator[Any, None]:
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield connection


@asynccontextmanager
async def of_psycopg_async(dsn: str) -> AsyncGenerator[Any, None]:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        yield connection


def async_engine(dsn: str) -> sqlalchemy_async.AsyncEngine:
    return sqlalchemy_async.create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(dsn))


@asynccontextmanager
async def of_sqlalchemy_async(dsn: str) -> AsyncGenerator[Any, None]:
    engine = async_engine(dsn)
    try:
        async with engine.begin() as connection:
            yield connection
    finally:
        await engine.dispose()


@asynccontextmanager
async def of_sqlalchemy_async_session(dsn: str) -> AsyncGenerator[Any, None]:
    engine = async_engine(dsn)
    try:
        async with sqlalchemy_async.AsyncSession(engine) as session, session.begin():
            yield session
    finally:
        await engine.dispose()


@asynccontextmanager
async def of_sqlalchemy_async_scoped(dsn: str) -> AsyncGenerator[Any, None]:
    engine = async_engine(dsn)
    maker = sqlalchemy_async.async_sessionmaker(engine)
    session = sqlalchemy_async.async_scoped_session(maker, asyncio.current_task)
    try:
        async with session.begin():
            yield session
    finally:
        await session.remove()
        await engine.dispose()


# The synchronous ones.


@contextmanager
def of_psycopg(dsn: str) -> Generator[Any, None, None]:
    with psycopg.connect(dsn) as connection:
        yield connection


def engine_of(dsn: str) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))


@contextmanager
def of_sqlalchemy(dsn: str) -> Generator[Any, None, None]:
    engine = engine_of(dsn)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


@contextmanager
def of_sqlalchemy_session(dsn: str) -> Generator[Any, None, None]:
    engine = engine_of(dsn)
    try:
        with orm.Session(engine) as session, session.begin():
            yield session
    finally:
        engine.dispose()


@contextmanager
def of_sqlalchemy_scoped(dsn: str) -> Generator[Any, None, None]:
    engine = engine_of(dsn)
    session = orm.scoped_session(orm.sessionmaker(engine))
    try:
        with session.begin():
            yield session
    finally:
        session.remove()
        engine.dispose()


DJANGO_ALIAS = "fencepost_test"


@contextmanager
def of_django(dsn: str) -> Generator[Any, None, None]:
    with django_connection(dsn) as connection:
        from django.db import transaction

        with transaction.atomic(using=DJANGO_ALIAS):
            yield connection


@contextmanager
def of_django_proxy(dsn: str) -> Generator[Any, None, None]:
    """`django.db.connection` isn't a connection itself but stands for one."""
    with of_django(dsn):
        from django.db import connections
        from django.utils.connection import ConnectionProxy

        yield ConnectionProxy(connections, DJANGO_ALIAS)


@contextmanager
def django_connection(dsn: str) -> Generator[Any, None, None]:
    import django
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure()
    django.setup()
    from django.db.backends.postgresql.base import DatabaseWrapper

    connections[DJANGO_ALIAS] = connection = DatabaseWrapper(
        {
            **django_database.of_url(dsn),
            "OPTIONS": {},
            "TIME_ZONE": None,
            "CONN_MAX_AGE": 0,
            "CONN_HEALTH_CHECKS": False,
            "AUTOCOMMIT": True,
            "ATOMIC_REQUESTS": False,
        },
        DJANGO_ALIAS,
    )
    try:
        yield connection
    finally:
        connection.close()
        del connections[DJANGO_ALIAS]


ASYNC: dict[str, Callable[[str], Any]] = {
    "asyncpg": of_asyncpg,
    "asyncpg pool": of_asyncpg_pool,
    "psycopg async": of_psycopg_async,
    "sqlalchemy async": of_sqlalchemy_async,
    "sqlalchemy async session": of_sqlalchemy_async_session,
    "sqlalchemy async scoped session": of_sqlalchemy_async_scoped,
}
SYNC: dict[str, Callable[[str], Any]] = {
    "psycopg": of_psycopg,
    "sqlalchemy": of_sqlalchemy,
    "sqlalchemy session": of_sqlalchemy_session,
    "sqlalchemy scoped session": of_sqlalchemy_scoped,
    "django": of_django,
    "django proxy": of_django_proxy,
}
KINDS = [*ASYNC, *SYNC]


def savepoint(connection: Any) -> Any:
    """A savepoint as the library of *connection* spells it."""
    if type(connection).__module__.startswith("sqlalchemy"):
        return connection.begin_nested()
    if type(connection).__module__.startswith("django"):
        from django.db import transaction

        return transaction.atomic(using=DJANGO_ALIAS)
    return connection.transaction()


Step = Callable[[Any], Awaitable[Any]]


async def in_transaction(
    kind: str,
    dsn: str,
    job: Job[[str], str],
    words: str,
    *,
    undo: str = "",
    meanwhile: Callable[[], None] = lambda: None,
) -> list[Handle[str]]:
    """
    Enqueue a job for each of *words* in one transaction; one whose word begins with `undone` in a savepoint.

    The savepoint is rolled back; with *undo* the transaction is too. *meanwhile* is called before the commit.
    """
    if kind in ASYNC:
        return await _in_async(ASYNC[kind](dsn), job, words, undo=undo, meanwhile=meanwhile)
    return await asyncio.to_thread(_in_sync, SYNC[kind](dsn), job, words, undo=undo, meanwhile=meanwhile)


async def _in_async(
    transaction: Any, job: Job[[str], str], words: str, *, undo: str, meanwhile: Callable[[], None]
) -> list[Handle[str]]:
    handles: list[Handle[str]] = []
    try:
        async with transaction as connection:
            for word in words.split():
                if not word.startswith("undone"):
                    handles.append(await job.within(connection).enqueue(word))
                    continue
                try:
                    async with savepoint(connection):
                        handles.append(await job.within(connection).enqueue(word))
                        raise Undo
                except Undo:
                    pass
            meanwhile()
            if undo:
                raise Undo
    except Undo:
        pass
    return handles


def _in_sync(
    transaction: Any, job: Job[[str], str], words: str, *, undo: str, meanwhile: Callable[[], None]
) -> list[Handle[str]]:
    handles: list[Handle[str]] = []
    try:
        with transaction as connection:
            for word in words.split():
                if not word.startswith("undone"):
                    handles.append(job.within(connection).enqueue_sync(word))
                    continue
                try:
                    with savepoint(connection):
                        handles.append(job.within(connection).enqueue_sync(word))
                        raise Undo
                except Undo:
                    pass
            meanwhile()
            if undo:
                raise Undo
    except Undo:
        pass
    return handles
