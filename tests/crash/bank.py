"""
An application that dies while it moves money: at any place between an effect and the end of its job.

A handler writes its effect and ends its job in one transaction, over one of the eight
kinds of connection. On the way one of the `FAULTS` may strike, at a place drawn at random.
Each that does is written to the file of CRASHES first, so that the test can count them,
whatever happens then.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg
import django
import psycopg
import sqlalchemy
from django.conf import settings as django_settings
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from fencepost import Constant, Context, Fencepost
from tests import django_database

FAULTS = ("raise", "disconnect", "stop", "hang", "exit", "kill")
PLACES = ("before the effect", "after the effect", "after completion", "after the commit")
SHARE = float(os.environ.get("FAULT_SHARE", "0.3"))
PAY = "insert into effects (job, kind, cents) values (cast(:job as uuid), :kind, :cents)"

app = Fencepost()
_configuring = threading.Lock()

Opened = tuple[Any, Callable[..., Any]]
"""A connection in a transaction, and a function that writes to it."""


def _url() -> str:
    return os.environ["DATABASE_URL"]


def _alchemy_url() -> str:
    return _url().replace("postgresql://", "postgresql+psycopg://", 1)


def _percent(sql: str) -> str:
    return sql.replace(":job", "%(job)s").replace(":kind", "%(kind)s").replace(":cents", "%(cents)s")


@asynccontextmanager
async def with_asyncpg() -> AsyncIterator[Opened]:
    connection = await asyncpg.connect(_url())
    try:
        async with connection.transaction():
            sql = PAY.replace(":job", "$1").replace(":kind", "$2").replace(":cents", "$3")
            yield connection, lambda values: connection.execute(sql, *values.values())
    finally:
        connection.terminate()


@asynccontextmanager
async def with_psycopg_async() -> AsyncIterator[Opened]:
    connection = await psycopg.AsyncConnection.connect(_url())
    try:
        async with connection.transaction():
            yield connection, lambda values: connection.execute(_percent(PAY), values)
    finally:
        await connection.close()


@asynccontextmanager
async def with_alchemy_async_connection() -> AsyncIterator[Opened]:
    async with create_async_engine(_alchemy_url(), poolclass=NullPool).begin() as connection:
        yield connection, lambda values: connection.execute(sqlalchemy.text(PAY), values)


@asynccontextmanager
async def with_alchemy_async_session() -> AsyncIterator[Opened]:
    engine = create_async_engine(_alchemy_url(), poolclass=NullPool)
    async with AsyncSession(engine) as session, session.begin():
        yield session, lambda values: session.execute(sqlalchemy.text(PAY), values)


@contextmanager
def with_psycopg() -> Iterator[Opened]:
    connection = psycopg.connect(_url())
    try:
        with connection.transaction():
            yield connection, lambda values: connection.execute(_percent(PAY), values)
    finally:
        connection.close()


@contextmanager
def with_alchemy_connection() -> Iterator[Opened]:
    with sqlalchemy.create_engine(_alchemy_url(), poolclass=NullPool).begin() as connection:
        yield connection, lambda values: connection.execute(sqlalchemy.text(PAY), values)


@contextmanager
def with_alchemy_session() -> Iterator[Opened]:
    with Session(sqlalchemy.create_engine(_alchemy_url(), poolclass=NullPool)) as session, session.begin():
        yield session, lambda values: session.execute(sqlalchemy.text(PAY), values)


def _configure_django() -> None:
    with _configuring:
        if not django_settings.configured:
            database = {"ENGINE": "django.db.backends.postgresql", **django_database.of_url(_url())}
            django_settings.configure(DATABASES={"default": database})
            django.setup()


@contextmanager
def with_django() -> Iterator[Opened]:
    _configure_django()
    from django.db import connection, transaction

    def write(values: dict[str, Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute(_percent(PAY), values)

    try:
        with transaction.atomic():
            yield connection, write
    finally:
        connection.close()


ASYNC: dict[str, Callable[[], Any]] = {
    "asyncpg": with_asyncpg,
    "psycopg async": with_psycopg_async,
    "SQLAlchemy AsyncConnection": with_alchemy_async_connection,
    "SQLAlchemy AsyncSession": with_alchemy_async_session,
}
PLAIN: dict[str, Callable[[], Any]] = {
    "psycopg": with_psycopg,
    "SQLAlchemy Connection": with_alchemy_connection,
    "SQLAlchemy Session": with_alchemy_session,
    "Django": with_django,
}


@app.job(max_attempts=100, timeout=2, backoff=Constant(0.02))
async def pay(context: Context, kind: str, cents: int) -> int:
    """Pay once, however often it is tried."""
    fault, place = _draw(context)
    async with ASYNC[kind]() as (connection, write):
        await _strike(fault, place == PLACES[0], kind)
        await write({"job": str(context.id), "kind": kind, "cents": cents})
        await _strike(fault, place == PLACES[1], kind)
        await context.complete_in(connection, cents)
        await _strike(fault, place == PLACES[2], kind)
    await _strike(fault, place == PLACES[3], kind)
    return cents


@app.job(max_attempts=100, timeout=2, backoff=Constant(0.02))
def pay_in_thread(context: Context, kind: str, cents: int) -> int:
    """The same, over a connection that blocks."""
    fault, place = _draw(context)
    with PLAIN[kind]() as (connection, write):
        _strike_here(fault, place == PLACES[0], kind)
        write({"job": str(context.id), "kind": kind, "cents": cents})
        _strike_here(fault, place == PLACES[1], kind)
        context.complete_in_sync(connection, cents)
        _strike_here(fault, place == PLACES[2], kind)
    _strike_here(fault, place == PLACES[3], kind)
    return cents


def _draw(context: Context) -> tuple[str | None, str]:
    """Which fault is to strike, and where. The kind goes by the job, so that none is left out by chance."""
    fault = FAULTS[context.id.int % len(FAULTS)] if random.random() < SHARE else None
    return fault, random.choice(PLACES)


async def _strike(fault: str | None, here: bool, kind: str) -> None:
    if fault is None or not here:
        return
    if fault == "hang":
        _note(fault, kind)
        await asyncio.sleep(30)
    if fault == "stop":
        _note(fault, kind)
        raise asyncio.CancelledError
    _strike_here(fault, here, kind)


def _strike_here(fault: str | None, here: bool, kind: str) -> None:
    if fault is None or not here:
        return
    _note(fault, kind)
    if fault == "raise":
        raise ConnectionError("the bank is closed")
    if fault == "stop":
        raise SystemExit(3)
    if fault == "hang":
        time.sleep(3)
    if fault == "disconnect":
        # Of all transactions that have written an effect, this one's too, if it has.
        with psycopg.connect(_url(), autocommit=True) as other:
            other.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where state = 'idle in transaction'"
                " and datname = current_database() order by random() limit 2"
            )
    if fault == "exit":
        os._exit(7)
    if fault == "kill":
        os.kill(os.getpid(), 9)


def _note(fault: str, kind: str) -> None:
    with open(os.environ["CRASHES"], "ab", buffering=0) as crashes:
        crashes.write(f"{fault}, {kind}\n".encode())
