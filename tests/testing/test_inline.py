"""One job run here and now, without a database."""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from fencepost import Context, Fencepost, InvalidJob, InvalidSettings, Payload, Snooze, WrongConnection, resource
from fencepost.testing import run_inline, run_inline_sync

from .conftest import MakeKit

pytestmark = pytest.mark.anyio


@dataclasses.dataclass(frozen=True)
class Order:
    number: int
    price: Decimal
    at: datetime


ORDER = Order(7, Decimal("1.10"), datetime(2026, 5, 1, tzinfo=UTC))


async def test_values_come_as_a_worker_would_give_them(app: Fencepost) -> None:
    @app.job
    async def double(order: Order, *, labels: tuple[str, ...] = ("a",)) -> tuple[Order, tuple[str, ...]]:
        return dataclasses.replace(order, price=2 * order.price), labels * 2

    @app.job
    def whole(order: Payload[Order]) -> Order:
        return order

    @app.job
    def untyped(n):  # type: ignore[no-untyped-def]
        return (n, Order(1, Decimal("2"), ORDER.at))

    order, labels = await run_inline(double, ORDER, labels=("x",))
    assert (order.price, labels) == (Decimal("2.20"), ("x", "x"))
    assert await run_inline(whole, ORDER) == ORDER
    assert await run_inline(untyped, 1) == [1, {"number": 1, "price": "2", "at": "2026-05-01T00:00:00Z"}]


async def test_arguments_that_do_not_fit_are_refused(app: Fencepost) -> None:
    @app.job
    async def greet(name: str) -> None: ...

    with pytest.raises(InvalidJob, match=r"name: .*string"):
        await run_inline(greet, 5)
    with pytest.raises(InvalidJob, match="name: is missing"):
        await run_inline(greet)
    with pytest.raises(InvalidJob):
        run_inline_sync(greet, nmae="Ada")


async def test_what_the_function_raises_comes_out(app: Fencepost) -> None:
    @app.job
    async def fails(how: str) -> None:
        if how == "snooze":
            raise Snooze(5)
        raise LookupError(how)

    with pytest.raises(LookupError, match="x") as raised:
        await run_inline(fails, "x")
    assert traceback.extract_tb(raised.value.__traceback__)[-1].name == "fails"
    with pytest.raises(Snooze):
        await run_inline(fails, "snooze")


async def test_the_context_is_that_of_a_first_attempt(app: Fencepost) -> None:
    seen: list[Context] = []

    @app.job(queue="mail", max_attempts=3, timeout=12)
    async def look(context: Context, n: int) -> int:
        context.progress(0.5, "half way")
        context.extend(10)
        seen.append(context)
        return n

    assert await run_inline(look.options(tags=["t"], metadata={"m": 1}), 4) == 4
    [context] = seen
    assert (context.type, context.queue, context.attempt, context.max_attempts) == ("look", "mail", 1, 3)
    assert (context.timeout_seconds, context.tags, context.metadata) == (12, ("t",), {"m": 1})
    assert not context.cancelled
    assert context.remaining_seconds == 22
    with pytest.raises(WrongConnection, match="no attempt"):
        await context.complete_in(object())


def test_sync_tests_run_async_and_plain_functions(app: Fencepost) -> None:
    @app.job
    async def one() -> int:
        return 1

    @app.job
    def two() -> int:
        return 2

    assert (run_inline_sync(one), run_inline_sync(two)) == (1, 2)


async def test_a_kit_opens_the_lifespan(make_kit: MakeKit) -> None:
    opened: list[str] = []

    class Pool:
        name = "a pool"

    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[dict[str, Pool]]:
        opened.append("open")
        yield {"pool": Pool()}
        opened.append("closed")

    app = Fencepost("postgresql://nobody@127.0.0.1:1/nowhere", lifespan=lifespan)

    @app.job
    async def use(n: int, *, pool: Pool = resource()) -> str:
        return f"{n} of {pool.name}"

    with pytest.raises(InvalidSettings, match="no resource"):
        await run_inline(use, 1)
    async with make_kit(app) as kit:
        assert await kit.run_inline(use, 2) == "2 of a pool"
        assert opened == ["open", "closed"]
        await use.enqueue(3)
        report = await kit.drain(raise_errors=True)
        assert report.completed == 1
        assert opened == ["open", "closed"] * 2
        assert kit.enqueued() == []
