"""
SQLAlchemy 2: jobs enqueued in each kind of its connections and sessions, and money that moves once.

    export DATABASE_URL=postgresql://localhost/shop
    python examples/sqlalchemy_shop.py

A job belongs to the transaction of the connection or session that it is enqueued within: it
commits with it, and a rollback, also one to a savepoint, takes it back.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal

from sqlalchemy import ForeignKey, create_engine, insert, select, update
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from fencepost import Context, Fencepost, Handle, Permanent, resource

URL = make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg")


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "accounts"

    owner: Mapped[str] = mapped_column(primary_key=True)
    balance: Mapped[Decimal]


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str] = mapped_column(ForeignKey(Account.owner))
    price: Mapped[Decimal]


@asynccontextmanager
async def lifespan() -> AsyncIterator[AsyncEngine]:
    """What a worker opens once, for all of its handlers."""
    engine = create_async_engine(URL)
    try:
        yield engine
    finally:
        await engine.dispose()


app = Fencepost(lifespan=lifespan)


@app.job
async def pay(context: Context, payer: str, payee: str, amount: Decimal, *, engine: AsyncEngine = resource()) -> str:
    """
    Move money, and end this job, in one transaction.

    Delivery is at least once: a worker may die after the commit, before it could say so. Here
    the commit is what says so, therefore the money moves once.
    """
    async with engine.begin() as connection:
        taken = await connection.execute(
            update(Account)
            .where(Account.owner == payer, Account.balance >= amount)
            .values(balance=Account.balance - amount)
        )
        if taken.rowcount != 1:
            raise Permanent(f"{payer} doesn't have {amount}")
        await connection.execute(update(Account).where(Account.owner == payee).values(balance=Account.balance + amount))
        receipt = f"{payer} paid {amount} to {payee}"
        await context.complete_in(connection, receipt)
    return receipt


@app.job
def ship(order_id: int) -> str:
    return f"order {order_id} is on its way"


def with_a_connection() -> Handle[str]:
    """Core."""
    engine = create_engine(URL)
    with engine.begin() as connection:
        connection.execute(insert(Account).values(owner="Ada", balance=100))
        connection.execute(insert(Account).values(owner="Shop", balance=0))
        payment = pay.within(connection).enqueue_sync("Ada", "Shop", Decimal("12.50"))
        # A part that fails takes its jobs with it; what is around it goes on.
        savepoint = connection.begin_nested()
        pay.within(connection).enqueue_sync("Ada", "Shop", Decimal("80.00"))
        savepoint.rollback()
    engine.dispose()
    return payment


def with_a_session() -> Handle[str]:
    """ORM."""
    engine = create_engine(URL)
    with Session(engine) as session, session.begin():
        order = Order(owner="Ada", price=Decimal("12.50"))
        session.add(order)
        session.flush()
        shipment = ship.within(session).enqueue_sync(order.id)
        try:
            with session.begin_nested():
                ship.within(session).enqueue_sync(order.id)
                raise ValueError("once is enough")
        except ValueError:
            pass
    engine.dispose()
    return shipment


async def with_an_async_connection(engine: AsyncEngine) -> Handle[str]:
    """Core, async."""
    async with engine.begin() as connection:
        await connection.execute(insert(Account).values(owner="Bob", balance=20))
        payment = await pay.within(connection).enqueue("Bob", "Shop", Decimal("5.25"))
        savepoint = await connection.begin_nested()
        await pay.within(connection).enqueue("Bob", "Shop", Decimal("14.00"))
        await savepoint.rollback()
    return payment


async def with_an_async_session(engine: AsyncEngine) -> Handle[str]:
    """ORM, async."""
    async with AsyncSession(engine) as session, session.begin():
        order = Order(owner="Bob", price=Decimal("5.25"))
        session.add(order)
        await session.flush()
        shipment = await ship.within(session).enqueue(order.id)
        try:
            async with session.begin_nested():
                await ship.within(session).enqueue(order.id)
                raise ValueError("once is enough")
        except ValueError:
            pass
    return shipment


async def main() -> None:
    engine = create_async_engine(URL)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.drop_all)
        await connection.run_sync(Base.metadata.create_all)
    async with app, app.worker():
        handles = [
            await asyncio.to_thread(with_a_connection),
            await asyncio.to_thread(with_a_session),
            await with_an_async_connection(engine),
            await with_an_async_session(engine),
        ]
        for handle in handles:
            print(await handle.result(timeout=30))
    async with engine.connect() as connection:
        for owner, balance in await connection.execute(select(Account.owner, Account.balance).order_by(Account.owner)):
            print(owner, balance)
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
