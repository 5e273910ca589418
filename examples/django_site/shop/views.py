"""Two views: one takes an order, the other shows it."""

from __future__ import annotations

import json

from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from shop.jobs import app, send_receipt
from shop.models import Order


@csrf_exempt
@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    """Store the order and the job for its receipt, both or neither."""
    new = json.loads(request.body)
    with transaction.atomic():
        order = Order.objects.create(email=new["email"], cents=new["cents"])
        order.job = send_receipt.within(connection).enqueue_sync(order.pk).id
        order.save(update_fields=["job"])
        if order.cents == 0:
            # Whatever is raised in here, be it this, takes back the order and the job.
            raise ValueError("nothing was bought")
    return JsonResponse({"order": order.pk, "job": order.job}, status=202)


@require_GET
def show_order(request: HttpRequest, order_id: int) -> JsonResponse:
    """The order, and where its job stands."""
    order = get_object_or_404(Order, pk=order_id)
    status = app.wait(app.handle(order.job).status())
    return JsonResponse({"order": order.pk, "receipt": order.receipt, "job": status})
