"""Tests of the app's jobs on a real database, which each test has for itself."""

from __future__ import annotations

import orders
import pytest
from orders import app, charge, place_order, send_receipt

from fencepost.testing import MakeKit

pytestmark = pytest.mark.anyio


async def test_an_order_is_charged_and_a_receipt_is_sent(fencepost_kit: MakeKit) -> None:
    async with fencepost_kit(app) as kit:
        await place_order(1, 990, "ada@example.org")
        kit.assert_enqueued(charge, order=1, cents=990)
        assert orders.sent == [], "nothing runs by itself"

        report = await kit.drain(raise_errors=True)

        assert report.completed == 2
        assert orders.sent == ["receipt for order 1 to ada@example.org"]


async def test_a_charge_is_tried_again_a_day_later(fencepost_kit: MakeKit) -> None:
    async with fencepost_kit(app) as kit:
        kit.freeze()
        orders.provider_is_up = False
        await place_order(1, 990, "ada@example.org")
        assert (await kit.drain()).retried == 1
        assert (await kit.drain()).attempts == (), "not before its time"

        orders.provider_is_up = True
        kit.travel(days=1)

        assert (await kit.drain()).completed == 2


async def test_a_charge_that_is_tried_in_vain_is_kept_for_a_person(fencepost_kit: MakeKit) -> None:
    async with fencepost_kit(app) as kit:
        kit.freeze()
        orders.provider_is_up = False
        await place_order(1, 990, "ada@example.org")
        for _ in range(2):
            await kit.drain()
            kit.travel(days=1)
        report = await kit.drain()
        assert report.dead_letter == 1
        assert report.errors == ["charge: ProviderDown: no answer"]


def test_a_sync_test_needs_no_event_loop(fencepost_kit: MakeKit) -> None:
    with fencepost_kit(app) as kit:
        send_receipt.enqueue_sync(1, "ada@example.org", copy=True)
        kit.assert_enqueued(send_receipt, copy=True)
        assert kit.drain_sync("mail").completed == 1
        assert orders.sent == ["receipt for order 1 to ada@example.org (copy)"]
