"""
A program that uses all of the library, for type checkers: mypy with the rest of the tests, ty in test_typing.py.

It is imported by a test too, so that it isn't only well typed but can also be declared. The assertions on types are
what an editor shows.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, assert_type
from uuid import UUID

import asyncpg
import msgspec
import psycopg
import pydantic
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from fencepost import (
    Cancel,
    Constant,
    Context,
    Draft,
    Event,
    Exponential,
    Fencepost,
    Handle,
    JobFailed,
    Linear,
    Payload,
    Permanent,
    ResultTimeout,
    Retry,
    Snooze,
    Status,
    Unique,
    UniqueBy,
    resource,
)


class Size(enum.StrEnum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Address:
    street: str
    city: str


class Order(msgspec.Struct):
    id: UUID
    total: Decimal
    at: datetime


class Customer(pydantic.BaseModel):
    name: str
    since: datetime
    address: Address


class Pool:
    async def fetch(self) -> int:
        return 1


@asynccontextmanager
async def open_resources() -> AsyncGenerator[dict[str, Any], None]:
    yield {"pool": Pool()}


app = Fencepost("postgresql://nowhere/none", lifespan=open_resources)


@app.job
async def greet(name: str, *, shout: bool = False) -> str:
    return name.upper() if shout else name


@app.job(
    name="send_welcome",
    queue="mail",
    priority=5,
    max_attempts=8,
    timeout=30,
    backoff=Linear(10),
    retry_on=(ConnectionError, TimeoutError),
    permanent_on=(KeyError,),
    unique=UniqueBy("user_id", until="finished"),
    expires=timedelta(hours=1),
)
async def send_welcome(context: Context, user_id: int, *, pool: Pool = resource()) -> None:
    if context.is_last:
        raise Permanent("no more")
    if context.attempt == 1:
        raise Retry("later", after=10)
    if await pool.fetch():
        raise Snooze(60)
    context.progress(0.5, "half way")
    context.logger.info("half way")
    raise Cancel


@app.job(process=True, timeout=10, backoff=Exponential(1, 60))
def render(document: UUID, size: Size = Size.SMALL) -> int:
    return len(str(document)) + len(size)


@app.job(backoff=Constant(5))
def bill(context: Context, order: Payload[Order]) -> Address:
    return Address(str(order.total), context.queue)


@app.job
async def book(context: Context, number: int) -> int:
    connection = await asyncpg.connect("postgresql://nowhere/none")
    async with connection.transaction():
        await context.complete_in(connection, number)
    assert not context.cancelled
    context.extend(context.remaining_seconds)
    return number


@app.job(backoff=lambda attempt: attempt * 2.0)
def remember(customer: Customer, tags: list[str]) -> dict[str, int]:
    return {customer.name: len(tags)}


resize = app.declare("resize", payload=Order, queue="video")


@app.around_enqueue
def stamp(drafts: list[Draft]) -> Iterator[None]:
    for draft in drafts:
        draft.metadata["by"] = "web"
    yield


@app.around_attempt
async def measure(context: Context) -> AsyncIterator[None]:
    yield


@app.on_event
def hear(event: Event) -> None:
    assert event


async def enqueue(connection: asyncpg.Connection[Any], session: AsyncSession) -> None:
    handle = await greet.enqueue("Ada", shout=True)
    assert_type(handle, Handle[str])
    assert_type(await handle.result(timeout=5), str)
    assert_type(await handle.status(), Status)
    assert_type(await send_welcome.enqueue(7), Handle[None])
    assert_type(await render.enqueue(handle.id, size=Size.LARGE), Handle[int])
    order = Order(handle.id, Decimal(1), datetime.now(UTC))
    assert_type(await bill.enqueue(order), Handle[Address])
    assert_type(await resize.enqueue(order), Handle[Any])
    later = greet.options(
        delay=timedelta(minutes=1),
        priority=3,
        queue="slow",
        max_attempts=2,
        timeout=10,
        expires=datetime.now(UTC) + timedelta(days=1),
        idempotency_key="welcome-ada",
        unique=Unique(key="ada"),
        tags=["a", "b"],
        metadata={"tenant": 1},
    )
    assert_type(await later.enqueue("Ada"), Handle[str])
    assert_type(await greet.within(connection).enqueue("Ada"), Handle[str])
    assert_type(await greet.within(session).options(run_at=datetime.now(UTC)).enqueue("Ada"), Handle[str])
    handles = await greet.enqueue_many([greet.call("Ada"), greet.call("Bob", shout=True)])
    assert_type(handles, list[Handle[str]])
    await app.enqueue_many([greet.call("Ada"), send_welcome.options(delay=5).call(7)], within=connection)
    try:
        await handle.result(timeout=0.1)
    except JobFailed as error:
        assert_type(error.status, str)
    except ResultTimeout:
        await handle.cancel()
    async for job in app.jobs(status="pending", tag="a"):
        assert job.id
    assert_type(await greet("Ada"), str)
    assert_type(render(handle.id), int)


def enqueue_sync(connection: psycopg.Connection[Any], session: Session) -> None:
    assert_type(greet.enqueue_sync("Ada"), Handle[str])
    assert_type(greet.within(session).enqueue_sync("Ada"), Handle[str])
    handle = render.within(connection).enqueue_sync(UUID(int=0))
    assert_type(app.wait(handle.result(timeout=5)), int)


async def work() -> None:
    async with app, app.worker(workers=10) as worker:
        assert worker.running == 0
