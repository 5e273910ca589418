"""Unit tests: a job is a function, and an enqueue is a call that can be recorded."""

from __future__ import annotations

import orders
import pytest
from orders import app, charge, place_order, send_receipt

from fencepost import InvalidJob, Permanent
from fencepost.testing import recording, run_inline, run_inline_sync

pytestmark = pytest.mark.anyio


async def test_placing_an_order_enqueues_its_charge() -> None:
    with recording(app) as enqueued:
        await place_order(1, 990, "ada@example.org")
    enqueued.assert_enqueued(charge, 1, 990, email="ada@example.org")
    enqueued.assert_enqueued(send_receipt, count=0)


async def test_a_charge_says_what_it_took_and_asks_for_a_receipt() -> None:
    with recording(app) as enqueued:
        assert await run_inline(charge, 1, 990, "ada@example.org") == "charged 9.90"
    enqueued.assert_enqueued(send_receipt, 1, "ada@example.org")


async def test_an_order_for_nothing_is_never_charged() -> None:
    with pytest.raises(Permanent, match="costs something"):
        await run_inline(charge, 1, 0, "ada@example.org")


def test_arguments_that_no_worker_could_read_are_refused() -> None:
    with pytest.raises(InvalidJob, match="order"):
        run_inline_sync(send_receipt, "first", "ada@example.org")
    assert orders.sent == []
