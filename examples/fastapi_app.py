"""
FastAPI: an order and the job for its receipt are stored in one transaction.

    export DATABASE_URL=postgresql://localhost/shop
    uvicorn --app-dir examples fastapi_app:api

    curl -s localhost:8000/orders -H 'Content-Type: application/json' -d '{"email": "ada@example.org", "cents": 1200}'
    curl -s 'localhost:8000/jobs/ID-OF-THE-JOB?wait=5'

The worker runs inside the web process, in its event loop. To have it beside, in processes of
its own, start the web server with WORKER=beside, and

    cd examples && fencepost worker fastapi_app:jobs
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from fencepost import Context, Fencepost, FencepostError, Permanent, ResultTimeout, resource

Sessions = async_sessionmaker[AsyncSession]


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    cents: Mapped[int]


@asynccontextmanager
async def open_database() -> AsyncIterator[Sessions]:
    """What the endpoints and the handlers need, each of them opened once."""
    engine = create_async_engine(make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+asyncpg"))
    try:
        yield async_sessionmaker(engine, expire_on_commit=False)
    finally:
        await engine.dispose()


jobs = Fencepost(lifespan=open_database)


@jobs.job(queue="mail", max_attempts=8, timeout=30)
async def send_receipt(context: Context, order_id: int, *, sessions: Sessions = resource()) -> str:
    async with sessions() as session:
        order = await session.get(Order, order_id)
    if order is None:
        raise Permanent(f"there is no order {order_id}")
    context.logger.info("sending a receipt", extra={"order_id": order_id})
    return f"receipt over {order.cents / 100:.2f} sent to {order.email}"


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        api.state.sessions = await stack.enter_async_context(open_database())
        async with api.state.sessions.begin() as session:
            await (await session.connection()).run_sync(Base.metadata.create_all)
        await stack.enter_async_context(jobs)
        if os.environ.get("WORKER", "inside") == "inside":
            await stack.enter_async_context(jobs.worker())
        yield


api = FastAPI(lifespan=lifespan)


@api.exception_handler(FencepostError)
async def refused(_: Request, error: FencepostError) -> JSONResponse:
    """Every error of fencepost knows its status: 404, 409, 503 while the database is away, …"""
    return JSONResponse({"error": str(error), "code": error.code}, status_code=error.http_status)


async def open_session(request: Request) -> AsyncIterator[AsyncSession]:
    async with request.app.state.sessions() as session:
        yield session


class NewOrder(BaseModel):
    email: str
    cents: int = Field(gt=0)


@api.post("/orders", status_code=202)
async def place_order(new: NewOrder, session: Annotated[AsyncSession, Depends(open_session)]) -> dict[str, Any]:
    async with session.begin():
        order = Order(email=new.email, cents=new.cents)
        session.add(order)
        await session.flush()  # gives the order its id
        receipt = await send_receipt.within(session).enqueue(order.id)
    # Committed: both are there, and workers have been told. Had anything raised, neither would be.
    return {"order": order.id, "job": receipt.id}


@api.get("/jobs/{job_id}")
async def show_job(job_id: UUID, wait: Annotated[float, Query(ge=0, le=30)] = 0) -> dict[str, Any]:
    """Where a job stands; with *wait*, answers as soon as it has ended."""
    handle = jobs.handle(job_id)
    try:
        return {"status": "completed", "result": await handle.result(timeout=wait)}
    except ResultTimeout:
        return {"status": await handle.status(), "result": None}
