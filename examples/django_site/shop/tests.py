"""`python manage.py test`: in Django's test database, without a worker."""

from __future__ import annotations

from typing import Any

from django.db import connection, transaction
from django.test import TestCase

from fencepost.testing import recording
from shop.jobs import app, count_orders, send_receipt
from shop.models import Order


def enqueued(name: str) -> list[Any]:
    """The payloads of the jobs of one type that this transaction sees."""
    with connection.cursor() as cursor:
        cursor.execute("select payload::text from fencepost.jobs where type = %s order by id", [name])
        return [payload for (payload,) in cursor.fetchall()]


class OrderTests(TestCase):
    """TestCase runs each test in a transaction, which takes back the orders and the jobs."""

    def post(self, cents: int) -> Any:
        return self.client.post("/orders", {"email": "ada@example.org", "cents": cents}, "application/json")

    def test_an_order_has_its_job(self) -> None:
        placed = self.post(1250)
        self.assertEqual(placed.status_code, 202)
        self.assertEqual(enqueued("send_receipt"), [f'{{"order_id": {placed.json()["order"]}}}'])

    def test_an_error_takes_both_back(self) -> None:
        with self.assertRaises(ValueError):
            self.post(0)
        self.assertEqual(Order.objects.count(), 0)
        self.assertEqual(enqueued("send_receipt"), [])

    def test_a_savepoint_takes_back_its_own(self) -> None:
        with transaction.atomic():
            count_orders.within(connection).enqueue_sync("kept@example.org")
            try:
                with transaction.atomic():
                    count_orders.within(connection).enqueue_sync("gone@example.org")
                    raise ValueError("never mind")
            except ValueError:
                pass
        self.assertEqual(enqueued("count_orders"), ['{"email": "kept@example.org"}'])

    def test_what_is_enqueued_can_be_recorded_instead_of_stored(self) -> None:
        with recording(app) as recorded:
            placed = self.post(1250)
        recorded.assert_enqueued(send_receipt, order_id=placed.json()["order"])
        self.assertEqual(enqueued("send_receipt"), [])

    async def test_a_job_is_a_function_that_can_be_called(self) -> None:
        await Order.objects.acreate(email="ada@example.org", cents=1)
        self.assertEqual(await count_orders("ada@example.org"), 1)
