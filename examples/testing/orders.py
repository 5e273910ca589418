"""A small app to test: an order is paid, and then a receipt is sent."""

from __future__ import annotations

from fencepost import Constant, Fencepost, Permanent

app = Fencepost()

DAY = 86_400.0
sent: list[str] = []
"""What went out: stands for a mail server."""
provider_is_up = True
"""Stands for a payment provider."""


class ProviderDown(Exception):
    """The payment provider doesn't answer."""


@app.job(max_attempts=3, backoff=Constant(DAY))
async def charge(order: int, cents: int, email: str) -> str:
    """Charge an order; tried again a day later when the provider is down."""
    if cents <= 0:
        raise Permanent("an order costs something")
    if not provider_is_up:
        raise ProviderDown("no answer")
    await send_receipt.enqueue(order, email)
    return f"charged {cents / 100:.2f}"


@app.job(queue="mail")
def send_receipt(order: int, email: str, *, copy: bool = False) -> None:
    """Send a receipt."""
    sent.append(f"receipt for order {order} to {email}{' (copy)' if copy else ''}")


async def place_order(order: int, cents: int, email: str) -> None:
    """What the shop does when somebody clicks."""
    await charge.enqueue(order, cents, email)
