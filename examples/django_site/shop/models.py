"""The one model."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """What somebody has bought."""

    email = models.EmailField()
    cents = models.PositiveIntegerField()
    receipt = models.TextField(blank=True, default="")
    job = models.UUIDField(null=True)
