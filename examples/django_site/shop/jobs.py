"""What is done after the answer."""

from __future__ import annotations

from django.db import connection, transaction

from fencepost import Context, Permanent
from fencepost.integrations.django import DjangoFencepost
from shop.models import Order

app = DjangoFencepost()


@app.job(queue="mail", max_attempts=8, timeout=30)
def send_receipt(context: Context, order_id: int) -> str:
    """A plain function runs in a thread, and uses the ORM as a view does."""
    order = Order.objects.filter(pk=order_id).first()
    if order is None:
        raise Permanent(f"there is no order {order_id}")
    context.logger.info("sending a receipt", extra={"order_id": order_id})
    with transaction.atomic():
        order.receipt = f"receipt over {order.cents / 100:.2f} for {order.email}"
        order.save(update_fields=["receipt"])
        # The row and the end of the job are one commit, so this happens once.
        context.complete_in_sync(connection, order.receipt)
    return str(order.receipt)


@app.job
async def count_orders(email: str) -> int:
    """An async one awaits the ORM's async methods."""
    return int(await Order.objects.filter(email=email).acount())
